"""What failovers add to the process' counters.

Knows names of metrics and causes. Must not know samples or verifiers.
"""

from __future__ import annotations

from outrider.gateway.loss import LossCause
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label


class FailoverCounters:
    """model: the served target's name."""

    def __init__(self, metrics: LocalMetrics, model: str) -> None:
        self.metrics = metrics
        self._model = model
        for cause in LossCause:  # an alarm on what was added needs the zero before the first: a series that begins at one has added nothing
            labels = self._labels(cause)
            for metric in (names.NUM_FAILOVERS, names.NUM_FAILED_FAILOVERS, names.FAILOVER_SECONDS):
                metrics.add(metric, labels, 0.0)

    def went_on(self, cause: LossCause, stall_s: float) -> None:
        """A sample goes on at another verifier. stall_s: from the loss being found to the new stream."""
        labels = self._labels(cause)
        self.metrics.add(names.NUM_FAILOVERS, labels)
        self.metrics.add(names.FAILOVER_SECONDS, labels, stall_s)

    def gave_up(self, cause: LossCause) -> None:
        """A sample lost its verifier and fails."""
        self.metrics.add(names.NUM_FAILED_FAILOVERS, self._labels(cause))

    def _labels(self, cause: LossCause) -> dict[Label, str]:
        return {Label.MODEL: self._model, Label.CAUSE: cause.value}
