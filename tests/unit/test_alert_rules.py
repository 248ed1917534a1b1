"""The example alerts ask for metrics that exist, under the labels that they have: one that is misspelt would never fire.

pytest tests/unit/test_alert_rules.py
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from outrider.errors import Overloaded
from outrider.exposition.endpoint import serving_metrics
from outrider.exposition.options import MetricsAddress
from outrider.gateway.auditor import AuditOutcome
from outrider.gateway.request_counters import RequestCounters
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import METRICS, MetricKind
from scrape import Scrape

RULES = (Path(__file__).parents[2] / "deploy/prometheus/rules.yaml").read_text(encoding="utf-8")
# One line, or several that YAML folds into one (>-), indented below their key.
FOUND = re.findall(r"^ +- alert: (\w+)\n(?: +#.*\n)*        expr: (?:>-\n((?: {10}\S.*\n)+)|(.+))", RULES, re.MULTILINE)
BY_ALERT = {alert: " ".join((folded or line).split()) for alert, folded, line in FOUND}
EXPRESSIONS = list(BY_ALERT.values())
BY_NAME = {metric.name: metric for metric in METRICS}
ADDED_BY_PROMETHEUS = {"instance", "job"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_alert_asks_for_metrics_and_labels_that_exist(expression: str) -> None:
    found = re.findall(r"(?:outrider|gen_ai)_\w+", expression)
    assert found
    labels = set(ADDED_BY_PROMETHEUS)
    for asked_metric in found:
        name = re.sub(r"_(bucket|count)$", "", asked_metric)
        metric = BY_NAME[name]
        assert (metric.kind is MetricKind.HISTOGRAM) == (asked_metric != name)
        before = expression.split(asked_metric)[0]
        is_rate = before.endswith(("rate(", "increase("))
        assert is_rate == (metric.kind is not MetricKind.GAUGE) or "mismatch" in name
        labels |= {str(label) for label in metric.labels} | ({"le"} if metric.kind is MetricKind.HISTOGRAM else set())
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    asked = {label.strip() for group in grouped for label in group.split(",")} | set(re.findall(r"[{,]\s*(\w+)\s*=", expression))
    assert asked <= labels


def test_every_alert_has_an_expression_and_a_sentence() -> None:
    num_alerts = RULES.count("- alert: ")
    assert num_alerts == len(EXPRESSIONS) == len(re.findall(r"^ +summary: \S", RULES, re.MULTILINE)) >= 5
    assert "outrider_identity_mismatch_total) > 0" in RULES


def test_the_outcomes_that_are_watched_exist() -> None:
    (pattern,) = re.findall(r'outcome=~"([^"]*)"', RULES)
    assert set(pattern.split("|")) <= {outcome.value for outcome in AuditOutcome}


def test_the_alert_on_refusals_counts_what_a_gateway_says_to_its_clients() -> None:
    """Whoever was full: where a coordinator or the gateway refuses no verifier counts anything."""
    metrics = LocalMetrics()
    with pytest.raises(Overloaded), RequestCounters(metrics, "m").ending(time.monotonic()):
        raise Overloaded("the whole fleet is full")
    (name, label, value) = re.findall(r'rate\((\w+)\{(\w+)="(\w+)"\}', BY_ALERT["OutriderRequestsRefused"])[0]
    with serving_metrics(MetricsAddress("127.0.0.1", 0), metrics, lambda: None) as url:
        found = Scrape(url)
    assert label == "status"
    assert found.value(name, "m", value) == 1.0


def fires(now: tuple[float, float], day_before: tuple[float, float]) -> bool:
    """Whether the alert's own expression holds for a drafter with these (right, judged) guesses in half an hour and a day. What Prometheus
    computes here is what Python does: comparisons bind less than products, `and` least."""
    spans = {"30m": (1800.0, now), "1d": (86_400.0, day_before)}

    def amount(found: re.Match[str]) -> str:
        function, name, span = found.groups()
        seconds, (right, judged) = spans[span]
        return str({"right": right, "judged": judged}[name] / (seconds if function == "rate" else 1.0))

    term = r"sum by \(drafter\) \((rate|increase)\(outrider_num_(right|judged)_tokens_total\[(\w+)\](?: offset 1h)?\)\)"
    numbers, num_terms = re.subn(term, amount, BY_ALERT["OutriderAcceptanceFell"])
    assert num_terms == 5
    assert re.fullmatch(r"[-0-9.e+*/()<> and]+", numbers), numbers
    return bool(eval(numbers))


@pytest.mark.parametrize(
    ("now", "day_before", "told"),
    [
        ((7_000, 10_000), (700_000, 1_000_000), False),
        ((5_000, 10_000), (700_000, 1_000_000), False),  # other texts are that different
        ((4_000, 10_000), (700_000, 1_000_000), True),
        ((1_000, 10_000), (98_000, 100_000), True),  # a cache that came back on one side: 0.98 before, 0.10 since
        ((0, 10_000), (98_000, 100_000), True),
        ((30, 100), (700_000, 1_000_000), False),  # too few to tell
        ((2_000, 10_000), (210_000, 1_000_000), False),  # it was never better
    ],
)
def test_the_alert_fires_where_acceptance_has_fallen_and_only_there(
    now: tuple[float, float], day_before: tuple[float, float], told: bool
) -> None:
    assert fires(now, day_before) is told
