"""The example alerts ask for metrics that exist, under the labels that they have: one that is misspelt would never fire.

pytest tests/unit/test_alert_rules.py
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider.gateway.auditor import AuditOutcome
from outrider.telemetry.names import METRICS, MetricKind

RULES = (Path(__file__).parents[2] / "deploy/prometheus/rules.yaml").read_text(encoding="utf-8")
EXPRESSIONS = re.findall(r"^ +expr: (.+)$", RULES, re.MULTILINE)
BY_NAME = {metric.name: metric for metric in METRICS}
ADDED_BY_PROMETHEUS = {"instance", "job"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_alert_asks_for_a_metric_and_labels_that_exist(expression: str) -> None:
    (found,) = re.findall(r"(?:outrider|gen_ai)_\w+", expression)
    name = found.removesuffix("_bucket")
    metric = BY_NAME[name]
    assert (metric.kind is MetricKind.HISTOGRAM) == (found != name)
    assert ("rate(" in expression or "increase(" in expression) == (metric.kind is not MetricKind.GAUGE) or "mismatch" in name
    labels = {str(label) for label in metric.labels} | ADDED_BY_PROMETHEUS | ({"le"} if metric.kind is MetricKind.HISTOGRAM else set())
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
