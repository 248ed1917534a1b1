"""What a verifier counts for its operators: how long samples wait, whom it refuses, what is read at a scrape.

pytest tests/unit/test_verifier_metrics.py
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from fakes import TableEngine
from fakes_scheduler import TABLE, Loop, ended
from outrider.errors import Overloaded
from outrider.rpc.status import RemoteFailure
from outrider.session.events import FinishReason
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics, Series
from outrider.telemetry.names import Metric
from outrider.types.statistics import DraftStatistics
from verifier_service.answer import AnswerStream, SessionEnded
from verifier_service.inbox import Nudge, OpenAsked
from verifier_service.metrics import VerifierMetrics
from verifier_service.scheduler import Scheduler, SchedulerSnapshot
from verifier_service.servicer import VerifierServicer


def one(metrics: LocalMetrics, metric: Metric) -> Series:
    (series,) = [series for series in metrics.snapshot() if series.metric is metric]
    return series


def reported(snapshot: SchedulerSnapshot, num_streams: int = 0, num_waiting: int = 0) -> tuple[VerifierMetrics, LocalMetrics]:
    metrics = LocalMetrics()
    scheduler = cast(Scheduler, SimpleNamespace(snapshot=snapshot))
    servicer = cast(VerifierServicer, SimpleNamespace(num_streams=num_streams, num_waiting=num_waiting))
    return VerifierMetrics(metrics, TableEngine(TABLE), scheduler, servicer), metrics


def test_the_time_until_the_first_step_is_observed_once_for_each_sample() -> None:
    """The second came seven seconds before the engine thread heard of it."""
    metrics = LocalMetrics()
    loop = Loop(TableEngine(TABLE), metrics=metrics)
    first = loop.open(30)
    late = AnswerStream(first.request, lambda: loop.scheduler.inbox.put(Nudge()))
    late.asked_us -= 7_000_000
    loop.scheduler.inbox.put(OpenAsked(late))
    for answer in (first, late):
        ended(loop, answer)
        assert answer.has_begun
    loop.stop()
    queue = one(metrics, names.QUEUE_SECONDS)
    after_five = names.QUEUE_SECONDS.buckets.index(5.0) + 1
    assert (sum(queue.counts[:after_five]), sum(queue.counts[after_five:])) == (1, 1)
    assert queue.value >= 7.0


def test_a_sample_that_is_not_taken_has_waited_for_no_step() -> None:
    metrics = LocalMetrics()
    engine = TableEngine(TABLE)
    loop = Loop(engine, max_sessions=0, metrics=metrics)
    answer = loop.open(30)
    assert isinstance(ended(loop, answer).error, Overloaded)
    loop.stop()
    assert not answer.has_begun
    assert not [series for series in metrics.snapshot() if series.metric is names.QUEUE_SECONDS]


@pytest.mark.parametrize(("error", "status"), [(Overloaded("full"), "RESOURCE_EXHAUSTED"), (RemoteFailure("a fault"), "INTERNAL")])
def test_refusals_are_counted_by_status(error: Exception, status: str) -> None:
    verifier, metrics = reported(SchedulerSnapshot())
    verifier.ended(SessionEnded(FinishReason.FAILED, DraftStatistics(), error))  # type: ignore[arg-type]
    verifier.ended(SessionEnded(FinishReason.CANCELLED, DraftStatistics()))
    refused = one(metrics, names.NUM_REFUSED_REQUESTS)
    assert (refused.label_values[1], refused.value) == (status, 1)


def test_a_finished_sample_is_in_the_counters_of_speculation() -> None:
    verifier, metrics = reported(SchedulerSnapshot())
    verifier.ended(SessionEnded(FinishReason.STOP, DraftStatistics(num_rounds=3, num_emitted=7, pacing="serial")))
    assert one(metrics, names.NUM_EMITTED_TOKENS).value == 7
    assert not [series for series in metrics.snapshot() if series.metric is names.NUM_REFUSED_REQUESTS]


def test_a_scrape_finds_the_newest_snapshot() -> None:
    engine = TableEngine(TABLE)
    snapshot = SchedulerSnapshot(num_sessions=2, num_free_blocks=5, num_steps=70, num_lent_steps=3, step_us=1_500_000)
    verifier, metrics = reported(snapshot, num_streams=4, num_waiting=1)
    verifier.refresh()
    verifier.refresh()
    found = {series.metric: series.value for series in metrics.snapshot()}
    assert found == {
        names.LIVE_SESSIONS: 2,
        names.LIVE_STREAMS: 4,
        names.REQUESTS_WAITING: 1,
        names.KV_BLOCKS_FREE: 5,
        names.KV_BLOCKS_IN_USE: engine.limits.num_blocks - 5,
        names.NUM_STEPS: 70,
        names.NUM_LENT_STEPS: 3,
        names.STEP_SECONDS: 1.5,
    }
