"""Requests are counted by the status they end with, whoever ends them.

pytest tests/unit/test_gateway_request_counters.py
"""

from __future__ import annotations

import asyncio
import time

import pytest

from outrider.errors import DoesNotFit, Overloaded
from outrider.gateway.request_counters import RequestCounters
from outrider.rpc.status import DeadlinePassed, RemoteFailure
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Overloaded("full"), "RESOURCE_EXHAUSTED"),
        (DoesNotFit("prompt", "is long"), "INVALID_ARGUMENT"),
        (DeadlinePassed("late"), "DEADLINE_EXCEEDED"),
        (RemoteFailure("a fault"), "INTERNAL"),
        (asyncio.CancelledError(), "CANCELLED"),
        (ZeroDivisionError(), "INTERNAL"),
    ],
)
def test_a_request_that_fails_is_counted_by_its_status(error: BaseException, status: str) -> None:
    metrics = LocalMetrics()
    with pytest.raises(type(error)), RequestCounters(metrics, "m").ending(time.monotonic()):
        raise error
    (series,) = metrics.snapshot()
    assert (series.metric, series.label_values, sum(series.counts)) == (names.REQUEST_SECONDS, ("m", status), 1)


@pytest.mark.parametrize(
    ("timeout_s", "elapsed_s", "status"),
    [
        (None, 9.0, "CANCELLED"),
        (60.0, 30.0, "CANCELLED"),
        (60.0, 60.0, "DEADLINE_EXCEEDED"),
        (60.2, 60.0, "DEADLINE_EXCEEDED"),
        (0.0, 0.0, "DEADLINE_EXCEEDED"),
    ],
)
def test_a_cancellation_at_the_deadline_is_the_deadline_s(timeout_s: float | None, elapsed_s: float, status: str) -> None:
    """grpc cancels the handler, and the client sees another status than one that left."""
    metrics = LocalMetrics()
    with pytest.raises(asyncio.CancelledError), RequestCounters(metrics, "m").ending(time.monotonic() - elapsed_s, timeout_s):
        raise asyncio.CancelledError
    (series,) = metrics.snapshot()
    assert series.label_values == ("m", status)


def test_a_request_that_is_answered_has_its_times() -> None:
    metrics = LocalMetrics()
    counters = RequestCounters(metrics, "m")
    with counters.ending(time.monotonic() - 5.0):
        counters.answered(0.25, 0.004)
        counters.answered(0.5, 0.0)
    found = {series.metric: series for series in metrics.snapshot()}
    assert found[names.REQUEST_SECONDS].label_values == ("m", "OK")
    assert found[names.REQUEST_SECONDS].value >= 5.0
    assert (found[names.FIRST_TOKEN_SECONDS].value, sum(found[names.FIRST_TOKEN_SECONDS].counts)) == (0.75, 2)
    assert (found[names.OUTPUT_TOKEN_SECONDS].value, sum(found[names.OUTPUT_TOKEN_SECONDS].counts)) == (0.004, 1)
