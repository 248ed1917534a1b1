"""Counters come out in Prometheus' text format under the names they have here; an endpoint answers scrapes and nothing else.

pytest tests/unit/test_exposition.py
"""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outrider.errors import InvalidRequest
from outrider.exposition.endpoint import MetricsEndpoint, _Handler, serving_metrics
from outrider.exposition.options import NOWHERE, MetricsAddress
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import METRICS, Label, Metric, MetricKind

HOST = "127.0.0.1"
TIMEOUT_S = 10.0


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        text: str = answer.read().decode()
    return text


def exposition(metrics: LocalMetrics) -> str:
    with serving_metrics(MetricsAddress(HOST, 0), metrics, lambda: None) as url:
        return scrape(url)


def count(metrics: LocalMetrics, metric: Metric) -> None:
    labels = {label: f"a {label}" for label in metric.labels}
    match metric.kind:
        case MetricKind.COUNTER:
            metrics.add(metric, labels, 2.0)
        case MetricKind.GAUGE:
            metrics.set(metric, labels, 2.0)
        case MetricKind.HISTOGRAM:
            metrics.observe(metric, labels, 2.0)


def test_every_metric_has_its_own_name_and_labels_on_the_wire() -> None:
    metrics = LocalMetrics()
    for metric in METRICS:
        if metric is not names.NUM_DROPPED_SERIES:
            count(metrics, metric)
    lines = exposition(metrics).splitlines()
    for metric in METRICS:
        kind = metric.kind.name.lower()
        assert f"# TYPE {metric.name} {kind}" in lines
        assert f"# HELP {metric.name} {metric.help}" in lines
        labels = ",".join(f'{label}="a {label}"' for label in sorted(metric.labels))
        labelled = f"{{{labels}}}" if labels else ""
        value = "0.0" if metric is names.NUM_DROPPED_SERIES else "2.0"
        name = f"{metric.name}_sum" if kind == "histogram" else metric.name
        assert f"{name}{labelled} {value}" in lines


def test_a_histogram_counts_what_is_at_most_each_bound() -> None:
    metrics = LocalMetrics()
    for seconds in (0.001, 0.002, 0.003, 60.0):
        metrics.observe(names.QUEUE_SECONDS, {Label.MODEL: "m"}, seconds)
    (family,) = [
        family for family in text_string_to_metric_families(exposition(metrics)) if family.name == "outrider_request_queue_time_seconds"
    ]
    found = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert (found["0.001"], found["0.0025"], found["0.005"], found["30.0"], found["+Inf"]) == (1, 2, 3, 3, 4)
    assert found["outrider_request_queue_time_seconds_count"] == 4
    assert found["outrider_request_queue_time_seconds_sum"] == pytest.approx(60.006)


def test_a_scrape_reads_the_present_moment() -> None:
    metrics, moments = LocalMetrics(), iter((3, 5))
    with serving_metrics(
        MetricsAddress(HOST, 0), metrics, lambda: metrics.set(names.LIVE_SESSIONS, {Label.SERVICE: "verifier"}, next(moments))
    ) as url:
        assert 'outrider_live_sessions{service="verifier"} 3.0' in scrape(url)
        assert 'outrider_live_sessions{service="verifier"} 5.0' in scrape(url)


def test_there_is_nothing_but_metrics_and_the_port_is_free_afterwards() -> None:
    with serving_metrics(MetricsAddress(HOST, 0), LocalMetrics(), lambda: None) as url, pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(url.removesuffix("/metrics") + "/")
    port = int(url.split(":")[2].split("/")[0])
    again = MetricsEndpoint(HOST, port, LocalMetrics(), lambda: None)
    again.stop()


def test_an_endpoint_stops_though_a_client_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 100.0)
    begun_s = time.monotonic()
    endpoint = MetricsEndpoint(HOST, 0, LocalMetrics(), lambda: None)
    port = int(endpoint.url.split(":")[2].split("/")[0])
    with socket.create_connection((HOST, port), TIMEOUT_S) as silent:
        silent.sendall(b"GET /met")
        endpoint.stop()
    assert time.monotonic() - begun_s < 50.0


def test_a_client_that_says_nothing_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.01)
    with serving_metrics(MetricsAddress(HOST, 0), LocalMetrics(), lambda: None) as url:
        port = int(url.split(":")[2].split("/")[0])
        with socket.create_connection((HOST, port), TIMEOUT_S) as silent:
            assert silent.recv(1) == b"", "it is left"
        assert "outrider" in scrape(url), "one at a time: what is said of the one before has been said"
    assert capfd.readouterr().err == ""


def test_a_port_in_use_is_refused_by_name() -> None:
    with serving_metrics(MetricsAddress(HOST, 0), LocalMetrics(), lambda: None) as url:
        port = int(url.split(":")[2].split("/")[0])
        with pytest.raises(InvalidRequest, match=f"--metrics-port: cannot bind {HOST}:{port}"):
            MetricsEndpoint(HOST, port, LocalMetrics(), lambda: None)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_host_is_scraped_in_brackets(host: str) -> None:
    assert MetricsAddress(host, 9100).listen == ("[::1]:9100",)
    with serving_metrics(MetricsAddress(host, 0), LocalMetrics(), lambda: None) as url:
        assert url.startswith("http://[::1]:")
        assert "outrider" in scrape(url)


def test_without_a_port_there_is_no_endpoint() -> None:
    with serving_metrics(NOWHERE, LocalMetrics(), lambda: None) as url:
        assert url == ""


def test_addresses_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="--metrics-port: must be in"):
        MetricsAddress(HOST, 70_000).check()
    with pytest.raises(InvalidRequest, match="--metrics-port: is missing"):
        MetricsAddress("0.0.0.0", None).check()
