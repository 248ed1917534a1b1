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

    def went_on(self, cause: LossCause, stall_s: float) -> None:
        """A sample goes on at another verifier. stall_s: from the loss being found to the new stream."""
        labels = {Label.MODEL: self._model, Label.CAUSE: cause.value}
        self.metrics.add(names.NUM_FAILOVERS, labels)
        self.metrics.add(names.FAILOVER_SECONDS, labels, stall_s)

    def gave_up(self, cause: LossCause) -> None:
        """A sample lost its verifier and fails."""
        self.metrics.add(names.NUM_FAILED_FAILOVERS, {Label.MODEL: self._model, Label.CAUSE: cause.value})
