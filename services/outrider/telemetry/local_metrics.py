"""Counters, gauges and histograms of one process, from any thread, as plain numbers that any exporter can read.

Knows the metrics of `names`. Must not know an exporter. The number of series is bounded, because a label that carries a client's word
would otherwise grow without end.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outrider.telemetry.names import Label, Metric, MetricKind

MAX_SERIES = 4096
_Key = tuple[Metric, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Series:
    """A metric with its label values in the metric's order. value: the number, of a histogram the sum of what was observed. counts: of a
    histogram, observations by bucket, those above every bound last."""

    metric: Metric
    label_values: tuple[str, ...]
    value: float
    counts: tuple[int, ...] = ()


class LocalMetrics:
    """The present numbers. Thread-safe. At most MAX_SERIES series: further ones are dropped and counted in `num_dropped`."""

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._lock = threading.Lock()
        self._max_series = max_series
        self._values: dict[_Key, float] = {}
        self._counts: dict[_Key, list[int]] = {}
        self.num_dropped = 0

    def add(self, metric: Metric, labels: Mapping[Label, str], amount: float = 1.0) -> None:
        """Grow a counter; amount must not be negative."""
        assert metric.kind is MetricKind.COUNTER, f"{metric.name} is not a counter"
        assert amount >= 0, f"{metric.name} cannot shrink by {amount}"
        self._update(metric, labels, amount, keep=True)

    def add_all(self, labels: Mapping[Label, str], amounts: Iterable[tuple[Metric, float]]) -> None:
        """As `add` for each of several counters with the same labels, at a fraction of its calls."""
        label_values: dict[tuple[Label, ...], tuple[str, ...]] = {}
        with self._lock:
            for metric, amount in amounts:
                assert metric.kind is MetricKind.COUNTER, f"{metric.name} is not a counter"
                assert amount >= 0, f"{metric.name} cannot shrink by {amount}"
                if metric.labels not in label_values:
                    _, label_values[metric.labels] = _key(metric, labels)
                key = metric, label_values[metric.labels]
                if key in self._values or self._has_room(key):
                    self._values[key] = amount + self._values.get(key, 0.0)

    def raise_to(self, metric: Metric, labels: Mapping[Label, str], total: float) -> None:
        """A counter that is kept elsewhere now stands at this total; it never goes back."""
        assert metric.kind is MetricKind.COUNTER, f"{metric.name} is not a counter"
        key = _key(metric, labels)
        with self._lock:
            if self._has_room(key):
                self._values[key] = max(total, self._values.get(key, 0.0))

    def observe(self, metric: Metric, labels: Mapping[Label, str], value: float) -> None:
        """One more observation of a histogram."""
        assert metric.kind is MetricKind.HISTOGRAM, f"{metric.name} is not a histogram"
        key = _key(metric, labels)
        with self._lock:
            if self._has_room(key):
                counts = self._counts.setdefault(key, [0] * (len(metric.buckets) + 1))
                counts[bisect.bisect_left(metric.buckets, value)] += 1
                self._values[key] = value + self._values.get(key, 0.0)

    def set(self, metric: Metric, labels: Mapping[Label, str], value: float) -> None:
        """Set a gauge."""
        assert metric.kind is MetricKind.GAUGE, f"{metric.name} is not a gauge"
        self._update(metric, labels, value, keep=False)

    def snapshot(self) -> tuple[Series, ...]:
        """Every series, ordered by metric name and label values."""
        with self._lock:
            found = [Series(*key, value, tuple(self._counts.get(key, ()))) for key, value in self._values.items()]
        return tuple(sorted(found, key=lambda series: (series.metric.name, series.label_values)))

    def _update(self, metric: Metric, labels: Mapping[Label, str], value: float, *, keep: bool) -> None:
        key = _key(metric, labels)
        with self._lock:
            if self._has_room(key):
                self._values[key] = value + (self._values.get(key, 0.0) if keep else 0.0)

    def _has_room(self, key: _Key) -> bool:
        """Whether this series is there, or may be."""
        if key in self._values or len(self._values) < self._max_series:
            return True
        self.num_dropped += 1
        return False


def _key(metric: Metric, labels: Mapping[Label, str]) -> _Key:
    assert set(labels) == set(metric.labels), f"{metric.name} has the labels {metric.labels}, got {tuple(labels)}"
    return metric, tuple(labels[label] for label in metric.labels)
