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
