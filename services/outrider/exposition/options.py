"""Where a process lets itself be scraped: --metrics-port and --metrics-host.

Knows the two options and their rules. Must not import prometheus_client: a wrong command line is refused before anything is loaded.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from outrider.errors import InvalidRequest

DEFAULT_HOST = "127.0.0.1"
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """host: a name, an IPv4 address, or an IPv6 one, in brackets or not. port: None = nowhere, 0 = any free one."""

    host: str = DEFAULT_HOST
    port: int | None = None

    @property
    def listen(self) -> tuple[str, ...]:
        """`host:port`, or nothing."""
        return () if self.port is None else (f"{self.url_host}:{self.port}",)

    @property
    def url_host(self) -> str:
        """The host as it stands before a port: an IPv6 address in brackets."""
        return f"[{self.host.strip('[]')}]" if ":" in self.host else self.host

    def check(self) -> None:
        """Raise InvalidRequest naming the first argument that is wrong."""
        if self.port is None and self.host != DEFAULT_HOST:
            raise InvalidRequest("--metrics-port", "is missing: --metrics-host says nothing without one")
        if self.port is not None and not 0 <= self.port <= MAX_PORT:
            raise InvalidRequest("--metrics-port", f"must be in [0, {MAX_PORT}], got {self.port}")
        if not self.host:
            raise InvalidRequest("--metrics-host", "is empty")


NOWHERE = MetricsAddress()


def add_metrics_options(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare --metrics-port and --metrics-host."""
    group.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="let Prometheus scrape http://HOST:PORT/metrics; 0: any free port (default: off)"
    )
    group.add_argument(
        "--metrics-host", default=DEFAULT_HOST, metavar="HOST", help="where that listens; nobody is asked who they are (%(default)s)"
    )


def metrics_address_from(given: argparse.Namespace) -> MetricsAddress:
    """The options' values; raises InvalidRequest naming a wrong one."""
    address = MetricsAddress(given.metrics_host, given.metrics_port)
    address.check()
    return address
