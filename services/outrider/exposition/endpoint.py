"""The HTTP endpoint itself: one thread that answers one scrape at a time, beside whatever the process does.

Knows sockets and prometheus_client. Must not know metrics' names. Nothing runs between scrapes, so it costs the per-round path nothing; a
client that sends or reads nothing is left after REQUEST_TIMEOUT_S, and a shutdown waits for none.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import TCPServer
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from outrider.errors import InvalidRequest
from outrider.exposition.collector import LocalCollector
from outrider.exposition.options import MetricsAddress
from outrider.telemetry.local_metrics import LocalMetrics

_LOG = logging.getLogger(__name__)
PATH = "/metrics"
REQUEST_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 1.0


@contextmanager
def serving_metrics(address: MetricsAddress, metrics: LocalMetrics, refresh: Callable[[], None]) -> Iterator[str]:
    """Answer scrapes for the block's time; yields the endpoint's URL, empty where there is none.

    refresh: as in LocalCollector. Raises InvalidRequest when the address cannot be bound.
    """
    if address.port is None:
        yield ""
        return
    endpoint = MetricsEndpoint(address.url_host, address.port, metrics, refresh)
    try:
        yield endpoint.url
    finally:
        endpoint.stop()


class MetricsEndpoint:
    """Serves from its construction until `stop`. host: an IPv6 address in brackets."""

    def __init__(self, host: str, port: int, metrics: LocalMetrics, refresh: Callable[[], None]) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(LocalCollector(metrics, refresh))
        ProcessCollector(registry=registry)
        self._exposition = make_wsgi_app(registry)
        try:
            self._server = (_Server6 if ":" in host else _Server)((host.strip("[]"), port), _Handler)
        except OSError as error:
            raise InvalidRequest("--metrics-port", f"cannot bind {host}:{port}: {error.strerror or error}") from error
        self._server.set_app(self._answer)
        self.url = f"http://{host}:{self._server.server_address[1]}{PATH}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_INTERVAL_S,), name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the socket; a scrape under way is given STOP_TIMEOUT_S."""
        stopper = threading.Thread(target=self._server.shutdown, name="metrics-stop", daemon=True)
        stopper.start()
        stopper.join(STOP_TIMEOUT_S)
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH:
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"metrics are at {PATH}\n".encode()]
        answer: Iterable[bytes] = self._exposition(environ, start_response)
        return answer


class _Server(WSGIServer):
    def server_bind(self) -> None:
        """Without the base class's question to the name service, which may take seconds to go unanswered."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Of a client that says nothing or leaves, such as a probe of the port: no traceback of it on stderr, as the base class has it."""
        _LOG.debug("a scrape from %s came to nothing", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        _LOG.debug(format, *args)
