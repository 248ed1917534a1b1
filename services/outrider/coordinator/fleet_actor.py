"""The coordinator as a Ray actor: FleetService at a fixed address, brought back by Ray whenever its process dies.

A plain class with async methods; cluster.py makes an actor of it. Nothing is saved: whoever comes back has a later epoch and an empty
fleet, and replicas say within a heartbeat that they are there. Must not know placement.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack

from outrider.coordinator.server import STOP_GRACE_S, metrics_refresher, serve_fleet
from outrider.coordinator.servicer import FleetServicer
from outrider.coordinator.state import FleetState, new_epoch, new_fleet
from outrider.coordinator.waking_clock import WakingClock
from outrider.errors import InvalidRequest
from outrider.exposition.endpoint import serving_metrics
from outrider.exposition.options import NOWHERE, MetricsAddress
from outrider.rpc.server import RpcServer

_LOG = logging.getLogger(__name__)
ACTOR_NAME = "outrider-fleet"
# The process before this one may still hold the port for a moment.
MAX_BIND_ATTEMPTS = 50
BIND_PAUSE_S = 0.1


class FleetActor:
    """listen: host:port. make: an empty fleet of an epoch. metrics: where it is scraped. Serves from its construction on, for after a
    restart nobody calls it. Ray constructs it inside the event loop."""

    def __init__(self, listen: str, make: Callable[[int], FleetState] = new_fleet, metrics: MetricsAddress = NOWHERE) -> None:
        self._listen = listen
        self._epoch = new_epoch()
        self._clock = WakingClock(time.monotonic)
        self._servicer = FleetServicer(make(self._epoch), self._clock)
        self._exposed = ExitStack()
        # Nobody but who asks for it hears that this fails: a coordinator that cannot be scraped is better than none.
        self._metrics = asyncio.get_running_loop().create_task(self._expose(metrics))
        self._metrics.add_done_callback(_log_failure)
        self._server = asyncio.get_running_loop().create_task(self._serve())
        self._server.add_done_callback(_end_unless_serving)

    async def address(self) -> str:
        """Where it serves, once it does."""
        return (await asyncio.shield(self._server)).address

    async def metrics_url(self) -> str:
        """Where it is scraped, empty for nowhere. Raises InvalidRequest when the port cannot be had."""
        return await asyncio.shield(self._metrics)

    async def epoch(self) -> int:
        """Of this start."""
        return self._epoch

    async def pid(self) -> int:
        """Of its process."""
        return os.getpid()

    async def stop(self) -> None:
        """Serve no more; the actor itself is ended by whoever owns it."""
        await (await asyncio.shield(self._server)).stop(None, STOP_GRACE_S)
        self._exposed.close()

    async def _serve(self) -> RpcServer:
        for _ in range(MAX_BIND_ATTEMPTS - 1):
            try:
                return await serve_fleet([self._listen], self._servicer, self._clock)
            except InvalidRequest as error:
                _LOG.warning("the coordinator does not serve yet: %s", error)
            await asyncio.sleep(BIND_PAUSE_S)
        return await serve_fleet([self._listen], self._servicer, self._clock)

    async def _expose(self, address: MetricsAddress) -> str:
        refresh = metrics_refresher(self._servicer)
        for _ in range(MAX_BIND_ATTEMPTS - 1):
            try:
                return self._exposed.enter_context(serving_metrics(address, self._servicer.metrics, refresh))
            except InvalidRequest as error:
                _LOG.warning("the coordinator is not scraped yet: %s", error)
            await asyncio.sleep(BIND_PAUSE_S)
        return self._exposed.enter_context(serving_metrics(address, self._servicer.metrics, refresh))


def _log_failure(exposing: asyncio.Task[str]) -> None:
    if not exposing.cancelled() and exposing.exception() is not None:
        _LOG.error("the coordinator serves, but cannot be scraped: %s", exposing.exception())


def _end_unless_serving(server: asyncio.Task[RpcServer]) -> None:
    """An actor that does not serve is of no use: Ray starts another process in its place."""
    if not server.cancelled() and server.exception() is not None:
        logging.getLogger(__name__).error("the coordinator cannot serve: %s", server.exception())
        os._exit(1)
