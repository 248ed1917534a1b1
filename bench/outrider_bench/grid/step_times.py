"""Steps of a target by rows, timed in this process while others are at work, or not: what a verifier would do, without its sessions.

Knows an engine. Must not know who else is at work, or what the times are used for.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.session.pacing.contract import CostCurve
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from verifier_service.cost_model import rising, time_steps
from verifier_service.settings import parse_settings

NUM_TOGETHER = 8  # steps
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


def time_together(engine: Engine, num_sessions: int, prompt_len: int) -> list[float]:
    """Microseconds of plain steps of so many sequences behind prompts of their own. Raises DoesNotFit and Overloaded where they are too
    many for the engine's cache."""
    spec = SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(0), prompt_len, prompt_len + NUM_TOGETHER, 1)
    opened: list[int] = []
    try:
        for sequence in range(num_sessions):
            engine.open(sequence, spec)
            opened.append(sequence)
            engine.step(StepPlan((_plain_rows(sequence, prompt_len),)))
        return [float(engine.step(StepPlan(tuple(_plain_rows(each, 1) for each in opened))).step_us) for _ in range(NUM_TOGETHER)]
    finally:
        for sequence in opened:
            engine.close(sequence)


def _plain_rows(sequence: int, num_tokens: int) -> SequenceRows:
    nothing = np.empty(0, np.int32)
    return SequenceRows(sequence, np.zeros(num_tokens, np.int32), nothing, nothing)


def load_target(model: str, options: Sequence[str]) -> Engine:
    """As a verifier with these options would load it. Raises what loading raises."""
    return load_engine(parse_settings(["--model", model, *options, "--listen", _NO_LISTEN]).engine)
