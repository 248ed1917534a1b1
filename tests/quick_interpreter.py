"""Triton's interpreter without most of its search: for each call of a kernel's function it lists everything that triton.language has, to
find what it replaces. Those names never change, so here they are listed once.

Called in an interpreted process (outrider_kernels.interpreted_process), before any kernel. What is replaced, when, and by what, is left as
it is. Must not know any kernel.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from triton.language import core
from triton.runtime import interpreter

_TRITONS_OWN = interpreter._patch_builtin
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


def quicken() -> int:
    """From now on; returns how many names there are where a kernel looks."""
    num_names = sum(len(_names(place)) for place in PLACES)
    interpreter._patch_builtin = _patch_builtin
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
