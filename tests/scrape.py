"""What a process' metrics endpoint answers, as values by name and labels.

Knows the text format, by Prometheus' own parser. Must not know what a test expects.
"""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from outrider.telemetry.names import Metric

SCRAPE_S = 30.0
ANY_PORT = ("--metrics-port", "0")


class Scrape:
    """One answer. url: of a ready line's "metrics"."""

    def __init__(self, url: object) -> None:
        with urllib.request.urlopen(str(url), timeout=SCRAPE_S) as answer:
            text = answer.read().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        self._values = {(sample.name, *map(str, sample.labels.values())): sample.value for sample in samples}

    def value(self, metric: Metric | str, *labels: str) -> float | None:
        """None for a series that is not there. labels: values in the order of the labels' names."""
        return self._values.get((metric if isinstance(metric, str) else metric.name, *labels))

    def total(self, metric: Metric) -> float:
        """Of all labels."""
        return sum(value for (name, *_), value in self._values.items() if name == metric.name)
