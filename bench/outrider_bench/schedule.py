"""In which order contestants answer: every repetition of every cell starts with another contestant.

Whatever drifts during a run (clock frequency, other load, caches) then falls on all of them alike. Must not know contestants.
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
    """Every contestant in every cell, `repeats` times; the first of a cell moves on with each repetition and cell."""
    for repetition in range(repeats):
        for index, cell in enumerate(cells):
            first = (repetition + index) % num_contestants
            for offset in range(num_contestants):
                yield Turn(repetition, cell, (first + offset) % num_contestants)
