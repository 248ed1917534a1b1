"""Parameters of which a default run takes the first few, and `make test-all` all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], num_quick: int) -> Sequence[Any]:
    """The first num_quick of them as they are, the others marked slow. A tuple stands for one parameter."""
    return [value if at < num_quick else pytest.param(value, marks=pytest.mark.slow) for at, value in enumerate(values)]


def mostly_slow_rows(rows: Iterable[tuple[Any, ...]], num_quick: int) -> Sequence[Any]:
    """The same where a tuple stands for several parameters."""
    return [row if at < num_quick else pytest.param(*row, marks=pytest.mark.slow) for at, row in enumerate(rows)]


def crossed(first: Sequence[Any], second: Sequence[Any], num_quick: int = 1) -> Sequence[Any]:
    """All pairs of two parameters. Of the longer one every value meets num_quick of the other's as it is, and by that each of these meets
    some; pairs besides are marked slow."""
    if len(first) >= len(second):
        quick = {(at, (at + turn) % len(second)) for at in range(len(first)) for turn in range(num_quick)}
    else:
        quick = {((at + turn) % len(first), at) for at in range(len(second)) for turn in range(num_quick)}
    pairs = ((one, other) for one in range(len(first)) for other in range(len(second)))
    marks = {False: (pytest.mark.slow,), True: ()}
    return [pytest.param(first[one], second[other], marks=marks[(one, other) in quick]) for one, other in pairs]
