"""In which order contestants answer: every repetition of every cell starts with another one, and each follows each of the others as often.

Whatever drifts during a run (clock frequency, other load, caches) then falls on all of them alike, and so does what a contestant leaves
behind: after one that mostly waits, a processor needs tens of milliseconds to be as quick as after one that computes.
Source: Williams, Experimental designs balanced for the estimation of residual effects of treatments, 1949. Must not know contestants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Cell = TypeVar("Cell")


@dataclass(frozen=True, slots=True)
class Turn(Generic[Cell]):
    """contestant: an index. repetition: 0-based."""

    repetition: int
    cell: Cell
    contestant: int


def turns(cells: Sequence[Cell], num_contestants: int, repeats: int) -> Iterator[Turn[Cell]]:
    """Every contestant in every cell, `repeats` times."""
    for repetition in range(repeats):
        for index, cell in enumerate(cells):
            for contestant in _order(num_contestants, repetition + index):
                yield Turn(repetition, cell, contestant)


def _order(num: int, at: int) -> list[int]:
    """The at-th order of `num`: balanced over any `num` orders in a row, or 2 * num where num is odd."""
    zigzag = [place // 2 if place % 2 == 0 else num - 1 - place // 2 for place in range(num)]
    order = [(one + at) % num for one in zigzag]
    return order[::-1] if num % 2 and at % 2 else order
