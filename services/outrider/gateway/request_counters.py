"""What requests add to the process' counters: how they ended, how long they took, and where their first token was.

Knows names of metrics and statuses. Must not know what a request is made of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from outrider.errors import OutriderError
from outrider.rpc.status import status_of
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label

_OK, _CANCELLED, _INTERNAL, _DEADLINE_EXCEEDED = "OK", "CANCELLED", "INTERNAL", "DEADLINE_EXCEEDED"
# A deadline travels rounded up to three digits, so that a client gives up at its own a little before it is ours.
DEADLINE_SHARE, DEADLINE_MARGIN_S = 0.98, 0.005


class RequestCounters:
    """model: the served target's name."""

    def __init__(self, metrics: LocalMetrics, model: str) -> None:
        self._metrics = metrics
        self._model = {Label.MODEL: model}

    @contextmanager
    def ending(self, arrived_s: float, timeout_s: float | None = None) -> Iterator[None]:
        """Count the block's request by the status that its client sees. arrived_s: time.monotonic() when it came. timeout_s: until its
        deadline, then; None: it has none. One that passes comes as a cancellation, as a client does that leaves."""
        status = _INTERNAL
        try:
            yield
            status = _OK
        except OutriderError as error:
            status = status_of(error).name
            raise
        except asyncio.CancelledError:
            elapsed_s = time.monotonic() - arrived_s
            status = _CANCELLED if timeout_s is None or elapsed_s < _latest_s(timeout_s) else _DEADLINE_EXCEEDED
            raise
        finally:
            self._metrics.observe(names.REQUEST_SECONDS, self._model | {Label.STATUS: status}, time.monotonic() - arrived_s)

    def answered(self, first_token_s: float, token_s: float) -> None:
        """A request had tokens. first_token_s: from its arrival to the first; token_s: of each after that, 0 when there was no other."""
        self._metrics.observe(names.FIRST_TOKEN_SECONDS, self._model, first_token_s)
        if token_s:
            self._metrics.observe(names.OUTPUT_TOKEN_SECONDS, self._model, token_s)


def _latest_s(timeout_s: float) -> float:
    """A cancellation behind this is the deadline's."""
    return min(DEADLINE_SHARE * timeout_s, timeout_s - DEADLINE_MARGIN_S)
