"""What ended sessions add to the counters of their drafters, which stand at zero from the moment a drafter is met.

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

    def met(self, drafter: str) -> None:
        """Its stream is up. An alarm on what was added needs the zero before the first: a series that begins at one has added nothing."""
        self._name(drafter)

    def ended(self, drafter: str, tally: DrafterTally) -> None:
        """A session that it might draft for has ended."""
        label = {Label.DRAFTER: self._name(drafter)}
        self._metrics.add(names.NUM_JUDGED_TOKENS, label, tally.num_judged)
        self._metrics.add(names.NUM_RIGHT_TOKENS, label, tally.num_right)
        self._metrics.add(names.NUM_DRAFT_DEADLINE_MISSES, label, tally.num_missed_deadlines)

    def dropped(self, drafter: str) -> None:
        """It is left out of new sessions, for it is hardly ever right."""
        self._metrics.add(names.NUM_DRAFTER_DROPS, _drop_labels(self._name(drafter)))

    def _name(self, drafter: str) -> str:
        """What it is called in labels; a name that is new gets its zeros."""
        name = drafter if drafter in self._names or len(self._names) < MAX_NAMES else OTHER
        if name not in self._names:
            self._names.add(name)
            for metric in (names.NUM_JUDGED_TOKENS, names.NUM_RIGHT_TOKENS, names.NUM_DRAFT_DEADLINE_MISSES):
                self._metrics.add(metric, {Label.DRAFTER: name}, 0.0)
            self._metrics.add(names.NUM_DRAFTER_DROPS, _drop_labels(name), 0.0)
        return name


def _drop_labels(name: str) -> dict[Label, str]:
    return {Label.DRAFTER: name, Label.CAUSE: LOW_ACCEPTANCE}
