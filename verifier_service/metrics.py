"""What a verifier's metrics say, beside what is counted where it happens: finished samples, refusals, and what is read at a scrape.

Knows names of metrics and where the numbers are kept. Must not know who scrapes. `refresh` runs on the thread that scrapes and reads
plain numbers only: nothing is computed for it between two scrapes.
"""

from __future__ import annotations

from pathlib import Path

from outrider.engine.contract import Engine
from outrider.rpc.status import status_of
from outrider.session.events import FinishReason
from outrider.store.shared_ngrams import SharedNgrams
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label
from outrider.telemetry.speculation import record_sample
from verifier_service.answer import SessionEnded
from verifier_service.scheduler import Scheduler
from verifier_service.servicer import VerifierServicer
from verifier_service.sharing import refresh_sharing

SERVICE = {Label.SERVICE: "verifier"}
US_PER_S = 1_000_000


class VerifierMetrics:
    """Of one running verifier. metrics: what its scheduler counts into too."""

    def __init__(
        self, metrics: LocalMetrics, engine: Engine, scheduler: Scheduler, servicer: VerifierServicer, sharing: SharedNgrams | None = None
    ) -> None:
        self._metrics = metrics
        self._sharing = sharing
        self._model = Path(engine.identity.model).name
        self._num_blocks = engine.limits.num_blocks
        self._scheduler = scheduler
        self._servicer = servicer

    def ended(self, message: SessionEnded) -> None:
        """A sample has ended, or was not taken at all."""
        statistics = message.statistics
        if statistics.num_rounds:
            record_sample(self._metrics, self._model, statistics)
        elif message.error is not None and message.reason is FinishReason.FAILED:
            labels = {Label.MODEL: self._model, Label.STATUS: status_of(message.error).name}
            self._metrics.add(names.NUM_REFUSED_REQUESTS, labels)

    def refresh(self) -> None:
        """Set what is read at a scrape."""
        snapshot, metrics, model = self._scheduler.snapshot, self._metrics, {Label.MODEL: self._model}
        metrics.set(names.LIVE_SESSIONS, SERVICE, snapshot.num_sessions)
        metrics.set(names.LIVE_STREAMS, SERVICE, self._servicer.num_streams)
        metrics.set(names.REQUESTS_WAITING, SERVICE, self._servicer.num_waiting)
        metrics.set(names.KV_BLOCKS_FREE, SERVICE, snapshot.num_free_blocks)
        metrics.set(names.KV_BLOCKS_IN_USE, SERVICE, self._num_blocks - snapshot.num_free_blocks)
        metrics.raise_to(names.NUM_STEPS, model, snapshot.num_steps)
        metrics.raise_to(names.NUM_LENT_STEPS, model, snapshot.num_lent_steps)
        metrics.raise_to(names.STEP_SECONDS, model, snapshot.step_us / US_PER_S)
        if self._sharing is not None:
            refresh_sharing(metrics, self._sharing)
