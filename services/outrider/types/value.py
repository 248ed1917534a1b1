"""Values that a round makes by the dozen: what the type checker holds to be frozen, made as quickly as what is not.

The `__init__` of a frozen dataclass hands each field to `object.__setattr__`, which takes five times as long as an assignment, and a round
of one request makes some forty such values of two hundred fields: nearly a tenth of the engine thread's time with a small pair. Knows
dataclasses. Must not know what becomes a value.
"""

from __future__ import annotations

from copy import copy
from dataclasses import fields, make_dataclass
from typing import Any, TypeVar

_Value = TypeVar("_Value")


def quickly_made(value: type[_Value]) -> type[_Value]:
    """Put above `@dataclass(frozen=True, slots=True)`: the same class with an `__init__` that assigns, and without the guards that would
    stop it. So the type checker alone keeps others from assigning; equality, hash, defaults, `replace` and pickling are as they were."""
    bare: Any = value
    after = {"__post_init__": bare.__post_init__} if hasattr(bare, "__post_init__") else {}
    own = [(one.name, one.type, copy(one)) for one in fields(bare)]
    twin: Any = make_dataclass(value.__name__, own, namespace=after, slots=True)
    bare.__init__ = twin.__init__
    del bare.__setattr__, bare.__delattr__
    return value
