"""The first event of its kind is seen by an alarm on what was added: the counter is exported at zero before it happens.

Prometheus' increase() of a series that begins at its first value is nothing. pytest tests/unit/test_first_events.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes import TableEngine
from fakes_scheduler import TABLE, Loop
from outrider.exposition.endpoint import serving_metrics
from outrider.exposition.options import MetricsAddress
from outrider.gateway.failover_counters import FailoverCounters
from outrider.gateway.loss import LossCause
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from scrape import Scrape
from verifier_service.drafter_counters import LOW_ACCEPTANCE, MAX_NAMES, OTHER, DrafterCounters
from verifier_service.inbox import PairUp

RULES = (Path(__file__).parents[2] / "deploy/prometheus/rules.yaml").read_text(encoding="utf-8")
DRAFTER = "10.0.0.2:7072"


@contextmanager
def exported(metrics: LocalMetrics) -> Iterator[str]:
    with serving_metrics(MetricsAddress("127.0.0.1", 0), metrics, lambda: None) as url:
        yield url


def test_a_gateway_exports_every_cause_of_a_failover_before_one_happens() -> None:
    metrics = LocalMetrics()
    counters = FailoverCounters(metrics, "m")
    with exported(metrics) as url:
        before = Scrape(url)
        for metric in (names.NUM_FAILED_FAILOVERS, names.NUM_FAILOVERS, names.FAILOVER_SECONDS):
            assert [before.value(metric, cause, "m") for cause in LossCause] == [0.0] * len(LossCause)
        counters.gave_up(LossCause.GONE)
        assert Scrape(url).value(names.NUM_FAILED_FAILOVERS, "gone", "m") == 1.0


def test_a_verifier_exports_a_drafter_from_its_connection_on() -> None:
    metrics = LocalMetrics()
    loop = Loop(TableEngine(TABLE), metrics=metrics)
    loop.scheduler.inbox.put(PairUp(DRAFTER, 1))
    loop.freed()  # whatever came before it is worked off
    loop.stop()
    with exported(metrics) as url:
        found = Scrape(url)
    assert found.value(names.NUM_DRAFTER_DROPS, LOW_ACCEPTANCE, DRAFTER) == 0.0
    for metric in (names.NUM_JUDGED_TOKENS, names.NUM_RIGHT_TOKENS, names.NUM_DRAFT_DEADLINE_MISSES):
        assert found.value(metric, DRAFTER) == 0.0


def test_drafters_beyond_those_with_a_name_of_their_own_have_a_zero_together() -> None:
    metrics = LocalMetrics()
    counters = DrafterCounters(metrics)
    for number in range(MAX_NAMES + 2):
        counters.met(f"d{number}")
    counters.dropped("d0")
    with exported(metrics) as url:
        found = Scrape(url)
    assert [found.value(names.NUM_DRAFTER_DROPS, LOW_ACCEPTANCE, name) for name in ("d0", "d1", OTHER)] == [1.0, 0.0, 0.0]
    assert len([one for one in metrics.snapshot() if one.metric is names.NUM_DRAFTER_DROPS]) == MAX_NAMES + 1


@pytest.mark.parametrize("metric", re.findall(r"\(increase\((\w+)\[\w+\]\)\) > 0$", RULES, re.MULTILINE))
def test_whatever_an_alert_expects_to_grow_by_one_is_a_counter_with_zeros(metric: str) -> None:
    assert metric in {names.NUM_FAILED_FAILOVERS.name, names.NUM_DRAFTER_DROPS.name}, "give it a zero, and a test of it above"
