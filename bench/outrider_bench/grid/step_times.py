"""Steps of a target by rows, timed in this process while others are at work, or not: what a verifier would do, without its sessions.

Knows an engine. Must not know who else is at work, or what the times are used for.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.session.pacing.contract import CostCurve
from verifier_service.cost_model import rising, time_steps
from verifier_service.settings import parse_settings

_NO_LISTEN = "unix:/nowhere"  # what loading does not look at


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Microseconds by rows, of all that were timed."""

    by_rows: dict[int, list[float]] = field(default_factory=dict)

    def time(self, engine: Engine) -> None:
        """Some steps of every number of rows, in turn. Raises DoesNotFit and Overloaded where the engine's cache is too small."""
        for rows, times_us in time_steps(engine).items():
            self.by_rows.setdefault(rows, []).extend(times_us)

    def curve(self) -> CostCurve:
        """Medians."""
        return rising(list(self.by_rows), self._medians().values())

    def over(self, other: StepTimes) -> float:
        """How many times as long as the other's: the median over numbers of rows, from those that wait for memory to those that compute."""
        ours, theirs = self._medians(), other._medians()
        return statistics.median(ours[rows] / theirs[rows] for rows in ours)

    def _medians(self) -> dict[int, float]:
        return {rows: statistics.median(times_us) for rows, times_us in self.by_rows.items()}


def load_target(model: str, options: Sequence[str]) -> Engine:
    """As a verifier with these options would load it. Raises what loading raises."""
    return load_engine(parse_settings(["--model", model, *options, "--listen", _NO_LISTEN]).engine)
