"""How often each drafter was right, and how often late, from sessions that it alone drafted for.

Knows sessions' statistics by drafter, and which model each of them was last. Must not know sessions, streams or who reads it. A session
with several drafters says nothing here: its statistics do not tell them apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from outrider.session.statistics import TESTS_TO_REMEMBER, DraftPriors, SessionStatistics

MAX_DRAFTERS = 64
MIN_ROUNDS = 32  # before anything is said of lateness
ROUNDS_MEMORY = 2_048  # rounds that are remembered; older ones fade


_Value = TypeVar("_Value")


class DrafterRecord:
    """Running rates of at most MAX_DRAFTERS drafters, those heard of last."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._rounds: dict[str, tuple[float, float]] = {}  # all, and those that went on without it though it was due
        self._models: dict[str, tuple[str, int]] = {}  # hash of its weights, and since when it is another than before

    def met(self, drafter: str, weights: str, now_us: int) -> bool:
        """Its stream is up. Whether another model is there than the last time: nothing that is remembered of it holds any more then."""
        known = self._models.get(drafter)
        is_other = known is not None and known[0] != weights
        _remember(self._models, drafter, (weights, now_us) if known is None or is_other else known)
        if is_other:
            self._rates.pop(drafter, None)
            self._rounds.pop(drafter, None)
        return is_other

    def is_of_now(self, drafter: str, opened_us: int) -> bool:
        """Whether a session that was opened then has met no other model under this name."""
        known = self._models.get(drafter)
        return known is None or opened_us >= known[1]

    def count(self, drafters: Collection[str], statistics: SessionStatistics) -> None:
        """A session that these might draft for has ended; one with too few judged guesses says too little to begin with."""
        if len(drafters) != 1:
            return
        (drafter,) = drafters
        self._count_rounds(drafter, statistics)
        known = self._rates.get(drafter)
        if known is None and statistics.num_tested < TESTS_TO_REMEMBER:
            return
        rate = statistics.acceptance if known is None else statistics.remembered(DraftPriors(known)).acceptance
        _remember(self._rates, drafter, rate)

    def rates(self) -> Mapping[str, float]:
        """Accepted share of judged guesses, by drafter; a copy that any thread may read."""
        return dict(self._rates)

    def late_shares(self) -> Mapping[str, float]:
        """Of rounds, those that passed their deadline without it, by drafter; a copy that any thread may read."""
        return {drafter: missed / rounds for drafter, (rounds, missed) in self._rounds.items() if rounds >= MIN_ROUNDS}

    def _count_rounds(self, drafter: str, statistics: SessionStatistics) -> None:
        rounds, missed = self._rounds.get(drafter, (0.0, 0.0))
        kept = min(1.0, max(0.0, 1.0 - statistics.num_rounds / ROUNDS_MEMORY))
        late = min(statistics.num_rounds, statistics.num_missed_deadlines)
        _remember(self._rounds, drafter, (kept * rounds + statistics.num_rounds, kept * missed + late))


def _remember(values: dict[str, _Value], drafter: str, value: _Value) -> None:
    """As the newest; the one heard of longest ago gives way."""
    values.pop(drafter, None)
    values[drafter] = value
    if len(values) > MAX_DRAFTERS:
        del values[next(iter(values))]
