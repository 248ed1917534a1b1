"""What ended sessions add to the counters of their drafters.

Knows names of metrics. Must not know sessions or streams. Addresses come from requests too, so that as labels they are bounded.
"""

from __future__ import annotations

from outrider.session.drafter_tally import DrafterTally
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label

MAX_NAMES = 64
OTHER = "other"
LOW_ACCEPTANCE = "acceptance"


class DrafterCounters:
    """The first MAX_NAMES drafters have labels of their own, the rest are `other`."""

    def __init__(self, metrics: LocalMetrics) -> None:
        self._metrics = metrics
        self._names: set[str] = set()

    def ended(self, drafter: str, tally: DrafterTally) -> None:
        """A session that it might draft for has ended."""
        label = {Label.DRAFTER: self._name(drafter)}
        self._metrics.add(names.NUM_JUDGED_TOKENS, label, tally.num_judged)
        self._metrics.add(names.NUM_RIGHT_TOKENS, label, tally.num_right)
        self._metrics.add(names.NUM_DRAFT_DEADLINE_MISSES, label, tally.num_missed_deadlines)

    def dropped(self, drafter: str) -> None:
        """It is left out of new sessions, for it is hardly ever right."""
        self._metrics.add(names.NUM_DRAFTER_DROPS, {Label.DRAFTER: self._name(drafter), Label.CAUSE: LOW_ACCEPTANCE})

    def _name(self, drafter: str) -> str:
        if drafter in self._names or len(self._names) < MAX_NAMES:
            self._names.add(drafter)
            return drafter
        return OTHER
