"""Names are well-formed and unique, counters count, and a sample's statistics arrive in vLLM's shape."""

from __future__ import annotations

import re
import threading

import pytest

from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import METRICS, Attribute, Label, Metric, MetricKind, Span
from outrider.telemetry.speculation import record_sample
from outrider.types.statistics import DraftStatistics

LABELS = {Label.MODEL: "ref-large", Label.PACING: "pearl"}


def value_of(metrics: LocalMetrics, metric: Metric, *label_values: str) -> float:
    (value,) = (series.value for series in metrics.snapshot() if series.metric is metric and series.label_values == label_values)
    return value


def test_metric_names_are_unique_and_carry_their_unit() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS) >= 15
    for metric in METRICS:
        assert re.fullmatch(r"(outrider|gen_ai)(_[a-z0-9]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert metric.name.removesuffix("_total").endswith(metric.unit)
        assert (metric.kind is MetricKind.HISTOGRAM) == bool(metric.buckets)
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.help.endswith(".")


def test_attributes_stay_in_their_namespaces_and_never_carry_contents() -> None:
    assert all(re.fullmatch(r"(gen_ai|outrider|error)(\.[a-z_]+)+", name) for name in Attribute)
    assert not [name for name in Attribute if "message" in name or "prompt" in name or "instructions" in name]
    assert {Span.GENERATE, Span.CHAT} < set(Span)


def test_a_sample_adds_up_in_the_shape_of_vllm() -> None:
    metrics = LocalMetrics()
    sample = DraftStatistics(
        num_rounds=5,
        num_drafted=9,
        num_accepted=6,
        num_looked_up=4,
        num_looked_up_accepted=3,
        num_emitted=11,
        drafted_by_depth=(4, 3, 2),
        accepted_by_depth=(3, 2, 1),
        draft_us=2_000_000,
        overlapped_draft_us=500_000,
        reconcile_us=250_000,
        session_us=750_000,
        plan_us=125_000,
        pacing="pearl",
        num_drafter_losses=3,
        drafter_losses=(("acceptance", 1), ("gone", 2)),
    )
    record_sample(metrics, "ref-large", sample)
    record_sample(metrics, "ref-large", sample)
    assert value_of(metrics, names.NUM_DRAFTS, "ref-large", "pearl") == 8
    assert value_of(metrics, names.NUM_DRAFT_TOKENS, "ref-large", "pearl") == 18
    assert value_of(metrics, names.NUM_ACCEPTED_TOKENS, "ref-large", "pearl") == 12
    assert value_of(metrics, names.NUM_LOOKED_UP_TOKENS, "ref-large", "pearl") == 8
    assert value_of(metrics, names.NUM_LOOKED_UP_ACCEPTED_TOKENS, "ref-large", "pearl") == 6
    assert [value_of(metrics, names.NUM_ACCEPTED_TOKENS_PER_POS, "ref-large", "pearl", str(depth)) for depth in range(3)] == [6, 4, 2]
    assert value_of(metrics, names.NUM_EMITTED_TOKENS, "ref-large", "pearl") == 22
    assert value_of(metrics, names.DRAFT_SECONDS, "ref-large", "pearl") == 4.0
    assert value_of(metrics, names.OVERLAPPED_DRAFT_SECONDS, "ref-large", "pearl") == 1.0
    assert value_of(metrics, names.RECONCILE_SECONDS, "ref-large", "pearl") == 0.5
    assert value_of(metrics, names.SESSION_SECONDS, "ref-large", "pearl") == 1.5
    assert value_of(metrics, names.PLAN_SECONDS, "ref-large", "pearl") == 0.25
    assert [value_of(metrics, names.NUM_DRAFTER_LOSSES, "ref-large", "pearl", cause) for cause in ("acceptance", "gone")] == [2, 4]


def test_a_sample_without_drafts_counts_rounds_only() -> None:
    metrics = LocalMetrics()
    record_sample(metrics, "ref-large", DraftStatistics(num_rounds=3, num_emitted=3, pacing="plain"))
    assert value_of(metrics, names.NUM_ROUNDS, "ref-large", "plain") == 3
    assert value_of(metrics, names.NUM_DRAFTS, "ref-large", "plain") == 0


def test_gauges_are_replaced_and_counters_grow() -> None:
    metrics = LocalMetrics()
    for value in (3.0, 1.0):
        metrics.set(names.LIVE_SESSIONS, {Label.SERVICE: "verifier"}, value)
        metrics.add(names.NUM_ROUNDS, LABELS, value)
    assert value_of(metrics, names.LIVE_SESSIONS, "verifier") == 1.0
    assert value_of(metrics, names.NUM_ROUNDS, "ref-large", "pearl") == 4.0


def test_several_counters_grow_as_each_by_itself() -> None:
    together, apart = LocalMetrics(max_series=2), LocalMetrics(max_series=2)
    for metric in (names.NUM_ROUNDS, names.NUM_EMITTED_TOKENS, names.NUM_DRAFTS, names.NUM_ROUNDS):
        apart.add(metric, LABELS, 2.0)
    together.add_all(LABELS, [(names.NUM_ROUNDS, 2.0), (names.NUM_EMITTED_TOKENS, 2.0)])
    together.add_all(LABELS, [(names.NUM_DRAFTS, 2.0), (names.NUM_ROUNDS, 2.0)])
    assert together.snapshot() == apart.snapshot()
    assert together.num_dropped == apart.num_dropped == 1


def test_series_are_bounded() -> None:
    metrics = LocalMetrics(max_series=2)
    for model in ("a", "b", "c", "a"):
        metrics.add(names.NUM_ROUNDS, {Label.MODEL: model, Label.PACING: "plain"})
    assert [series.label_values[0] for series in metrics.snapshot()] == ["a", "b"]
    assert metrics.num_dropped == 1
    assert value_of(metrics, names.NUM_ROUNDS, "a", "plain") == 2


def test_wrong_use_is_a_programmer_error() -> None:
    metrics = LocalMetrics()
    with pytest.raises(AssertionError, match="labels"):
        metrics.add(names.NUM_ROUNDS, {Label.MODEL: "a"})
    with pytest.raises(AssertionError, match="not a gauge"):
        metrics.set(names.NUM_ROUNDS, LABELS, 1.0)
    with pytest.raises(AssertionError, match="shrink"):
        metrics.add(names.NUM_ROUNDS, LABELS, -1.0)


def test_no_count_is_lost_between_threads() -> None:
    metrics = LocalMetrics()

    def count() -> None:
        for _ in range(1000):
            metrics.add(names.NUM_ROUNDS, LABELS)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value_of(metrics, names.NUM_ROUNDS, "ref-large", "pearl") == 4000


def test_a_counter_that_is_kept_elsewhere_never_goes_back() -> None:
    metrics = LocalMetrics()
    for total in (3.0, 7.0, 5.0):
        metrics.raise_to(names.NUM_STEPS, {Label.MODEL: "m"}, total)
    assert value_of(metrics, names.NUM_STEPS, "m") == 7.0
    with pytest.raises(AssertionError, match="not a counter"):
        metrics.raise_to(names.LIVE_SESSIONS, {Label.SERVICE: "verifier"}, 1.0)


def test_a_histogram_keeps_its_sum_and_a_count_for_each_bucket() -> None:
    metrics = LocalMetrics()
    for seconds in (0.0, 0.001, 0.0011, 1e9):
        metrics.observe(names.QUEUE_SECONDS, {Label.MODEL: "m"}, seconds)
    (series,) = metrics.snapshot()
    assert len(series.counts) == len(names.QUEUE_SECONDS.buckets) + 1
    assert (series.counts[:2], series.counts[-1], sum(series.counts)) == ((2, 1), 1, 4)
    assert series.value == pytest.approx(1e9)
    with pytest.raises(AssertionError, match="not a histogram"):
        metrics.observe(names.NUM_STEPS, {Label.MODEL: "m"}, 1.0)
