"""How often each drafter was right, from sessions that it alone drafted for.

Knows sessions' statistics by drafter. Must not know sessions, streams or who reads it. A session with several drafters says nothing here:
its statistics do not tell them apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from outrider.session.statistics import TESTS_TO_REMEMBER, DraftPriors, SessionStatistics

MAX_DRAFTERS = 64


class DrafterRecord:
    """Running rates of at most MAX_DRAFTERS drafters, those heard of last."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def count(self, drafters: Collection[str], statistics: SessionStatistics) -> None:
        """A session that these might draft for has ended; one with too few judged guesses says too little to begin with."""
        if len(drafters) != 1:
            return
        (drafter,) = drafters
        known = self._rates.get(drafter)
        if known is None and statistics.num_tested < TESTS_TO_REMEMBER:
            return
        rate = statistics.acceptance if known is None else statistics.remembered(DraftPriors(known)).acceptance
        self._rates.pop(drafter, None)
        self._rates[drafter] = rate
        if len(self._rates) > MAX_DRAFTERS:
            del self._rates[next(iter(self._rates))]

    def rates(self) -> Mapping[str, float]:
        """Accepted share of judged guesses, by drafter; a copy that any thread may read."""
        return dict(self._rates)
