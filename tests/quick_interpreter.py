"""Triton's interpreter without most of its search: for each call of a kernel's function it lists everything that triton.language has, to
find what it replaces, and for each value that it makes it builds the table of all types, to look one up. Neither ever changes, so here the
names are listed once, and a type is looked up once.

Called in an interpreted process (outrider_kernels.interpreted_process), before any kernel. What is replaced, when, and by what, is left as
it is. Must not know any kernel.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np
from triton.language import core
from triton.runtime import interpreter

_TRITONS_OWN = interpreter._patch_builtin
_TRITONS_TYPES = interpreter._get_np_dtype
PLACES = (core, core.tensor, core.tensor_descriptor_base, interpreter.tl, interpreter.tl.math)


@cache
def _names(place: Any) -> tuple[str, ...]:
    """Of what is built in there; to be asked before anything is replaced."""
    return tuple(name for name, member in inspect.getmembers(place) if core.is_builtin(member))


def _patch_builtin(place: Any, builder: Any, scope: Any) -> None:
    """As Triton's own, which looks at every name."""
    for name in _names(place):
        member = getattr(place, name)
        if core.is_builtin(member):
            interpreter._patch_attr(place, name, member, builder, scope)


_types: dict[str, np.dtype[Any]] = {}  # numpy's of each of Triton's that was asked for, by its name


def _get_np_dtype(of: Any) -> np.dtype[Any]:
    """As Triton's own. A block's is that of its elements; all pointers are alike."""
    one = of.element_ty if isinstance(of, core.block_type) else of
    name = "a pointer" if isinstance(one, core.pointer_type) else one.name
    found = _types.get(name)
    if found is None:
        found = _types[name] = _TRITONS_TYPES(one)
    return found


def quicken() -> int:
    """From now on; returns how many names there are where a kernel looks."""
    num_names = sum(len(_names(place)) for place in PLACES)
    interpreter._patch_builtin = _patch_builtin
    interpreter._get_np_dtype = _get_np_dtype
    return num_names


class _Replaced:
    """A scope that notes what would be replaced."""

    def __init__(self) -> None:
        self.names: set[tuple[str, str]] = set()

    def set_attr(self, place: Any, name: str, value: object) -> None:
        """See the interpreter's own."""
        self.names.add((str(place), name))


def differing_names() -> list[tuple[str, str]]:
    """What only one of the two would replace: Triton's own search and this one."""
    owns, ours = _Replaced(), _Replaced()
    for place in PLACES:
        _TRITONS_OWN(place, None, owns)
        _patch_builtin(place, None, ours)
    assert owns.names, "there is nothing to compare"
    return sorted(owns.names ^ ours.names)


def differing_types() -> list[str]:
    """Those for which the two would have different numbers: Triton's types, pointers to them, and blocks of either."""
    plain = [one for one in vars(core).values() if isinstance(one, core.dtype) and one.name != "void"]
    pointers = [core.pointer_type(one) for one in plain]
    blocks = [core.block_type(one, [2, 4]) for one in (*plain, *pointers)]
    assert len(plain) > 10, "there is nothing to compare"
    return [str(one) for one in (*plain, *pointers, *blocks) if _number(_TRITONS_TYPES, one) != _number(_get_np_dtype, one)]


def _number(of: Any, one: Any) -> np.dtype[Any] | None:
    try:
        found: np.dtype[Any] = of(one)
    except KeyError:  # none of numpy's
        return None
    return found
