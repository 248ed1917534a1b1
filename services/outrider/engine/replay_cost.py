"""What a replayed step costs and how the time passes: computing, waiting, or only counted.

A verifier on a CPU is busy while it steps; one on an accelerator leaves the CPU free: benchmarks choose. Must not know engines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

StepCost = Callable[[int], float]  # rows of the step -> seconds


class StepClock(Protocol):
    """Lets a step's time pass."""

    def spend(self, seconds: float) -> int:
        """Return after `seconds`; the microseconds that passed."""
        ...


class BusyClock:
    """Computes until the time is over, as a model on this CPU would."""

    def spend(self, seconds: float) -> int:
        """See StepClock."""
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            pass
        return int((time.perf_counter() - begin) * 1e6)


class WaitingClock:
    """Sleeps, as a thread that waits for an accelerator does."""

    def spend(self, seconds: float) -> int:
        """See StepClock."""
        begin = time.perf_counter()
        if seconds > 0.0:
            time.sleep(seconds)
        return int((time.perf_counter() - begin) * 1e6)


class CountingClock:
    """Passes no time, only adds it up: for simulations and tests."""

    def __init__(self) -> None:
        self.elapsed_us = 0

    def spend(self, seconds: float) -> int:
        """See StepClock."""
        microseconds = round(seconds * 1e6)
        self.elapsed_us += microseconds
        return microseconds


def free_steps(num_rows: int) -> float:
    """A step that costs nothing."""
    return 0.0


def linear_cost(base_ms: float, row_ms: float) -> StepCost:
    """base_ms a step and row_ms for every row of it."""
    return lambda num_rows: (base_ms + row_ms * num_rows) / 1000.0
