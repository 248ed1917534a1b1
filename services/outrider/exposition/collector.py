"""A process' LocalMetrics as metric families of Prometheus, made when somebody asks and not before.

Knows prometheus_client and the names of telemetry, which come out as they are written there. Must not know who asks, or what is counted.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics, Series
from outrider.telemetry.names import Metric, MetricKind


class LocalCollector(Collector):
    """refresh: called first, on the thread that scrapes, to set what is read rather than counted (gauges, totals kept elsewhere)."""

    def __init__(self, metrics: LocalMetrics, refresh: Callable[[], None]) -> None:
        self._metrics = metrics
        self._refresh = refresh

    def collect(self) -> Iterator[Family]:
        """Every series of now."""
        self._refresh()
        for metric, series in itertools.groupby(self._metrics.snapshot(), operator.attrgetter("metric")):
            yield _family(metric, series)
        yield CounterMetricFamily(names.NUM_DROPPED_SERIES.name, names.NUM_DROPPED_SERIES.help, value=self._metrics.num_dropped)


def _family(metric: Metric, series: Iterable[Series]) -> Family:
    labels = [str(label) for label in metric.labels]
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for one in series:
            histogram.add_metric(one.label_values, _buckets(metric, one), one.value)
        return histogram
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(metric.name, metric.help, labels=labels)
    for one in series:
        family.add_metric(one.label_values, one.value)
    return family


def _buckets(metric: Metric, series: Series) -> list[tuple[str, float]]:
    """(upper bound, observations up to it), with +Inf last."""
    bounds = [*map(str, metric.buckets), "+Inf"]
    return list(zip(bounds, map(float, itertools.accumulate(series.counts)), strict=True))
