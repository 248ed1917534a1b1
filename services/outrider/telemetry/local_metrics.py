"""Counters and gauges of one process, from any thread, as plain numbers that any exporter can read.

Knows the metrics of `names`. Must not know an exporter. The number of series is bounded, because a label that carries a client's word
would otherwise grow without end.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from outrider.telemetry.names import Label, Metric, MetricKind

MAX_SERIES = 4096


@dataclass(frozen=True, slots=True)
class Series:
    """One line of an exposition: a metric, its label values in the metric's order, and the number."""

    metric: Metric
    label_values: tuple[str, ...]
    value: float


class LocalMetrics:
    """The present numbers. Thread-safe. At most MAX_SERIES series: further ones are dropped and counted in `num_dropped`."""

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._lock = threading.Lock()
        self._max_series = max_series
        self._values: dict[tuple[Metric, tuple[str, ...]], float] = {}
        self.num_dropped = 0

    def add(self, metric: Metric, labels: Mapping[Label, str], amount: float = 1.0) -> None:
        """Grow a counter; amount must not be negative."""
        assert metric.kind is MetricKind.COUNTER, f"{metric.name} is not a counter"
        assert amount >= 0, f"{metric.name} cannot shrink by {amount}"
        self._update(metric, labels, amount, keep=True)

    def set(self, metric: Metric, labels: Mapping[Label, str], value: float) -> None:
        """Set a gauge."""
        assert metric.kind is MetricKind.GAUGE, f"{metric.name} is not a gauge"
        self._update(metric, labels, value, keep=False)

    def snapshot(self) -> tuple[Series, ...]:
        """Every series, ordered by metric name and label values."""
        with self._lock:
            items = list(self._values.items())
        ordered = sorted(items, key=lambda item: (item[0][0].name, item[0][1]))
        return tuple(Series(metric, label_values, value) for (metric, label_values), value in ordered)

    def _update(self, metric: Metric, labels: Mapping[Label, str], value: float, *, keep: bool) -> None:
        assert set(labels) == set(metric.labels), f"{metric.name} has the labels {metric.labels}, got {tuple(labels)}"
        key = (metric, tuple(labels[label] for label in metric.labels))
        with self._lock:
            if key not in self._values and len(self._values) >= self._max_series:
                self.num_dropped += 1
                return
            self._values[key] = value + (self._values.get(key, 0.0) if keep else 0.0)
