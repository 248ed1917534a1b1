"""A running coordinator: a state behind FleetService on a socket. What __main__, the Ray actor and tests start.

Knows how the parts are put together. Must not know the command line or Ray.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from outrider.coordinator.servicer import SERVICE_NAME, FleetServicer
from outrider.coordinator.state import FleetState
from outrider.coordinator.waking_clock import WakingClock
from outrider.rpc.server import RpcServer
from outrider.v1.fleet_pb2_grpc import add_FleetServiceServicer_to_server

READY_NAME = "coordinator"
# Replicas and gateways; a heartbeat and a placement are answered at once, so that few calls are ever under way.
STOP_GRACE_S = 1.0
REFRESH_TIMEOUT_S = 2.0  # the event loop owns what a scrape reads; one that is stuck must not hold the scraper


async def start_coordinator(listen: Sequence[str], state: FleetState, now_s: Callable[[], float] = time.monotonic) -> RpcServer:
    """Bind and serve; the caller stops it. now_s: a monotonic clock. Raises InvalidRequest naming an address."""
    clock = WakingClock(now_s)
    return await serve_fleet(listen, FleetServicer(state, clock), clock)


def metrics_refresher(servicer: FleetServicer) -> Callable[[], None]:
    """What a scrape calls on its own thread before it reads the servicer's metrics. To be made inside the event loop."""
    loop = asyncio.get_running_loop()

    async def refresh() -> None:
        servicer.refresh_metrics()

    return lambda: asyncio.run_coroutine_threadsafe(refresh(), loop).result(REFRESH_TIMEOUT_S)


async def serve_fleet(listen: Sequence[str], servicer: FleetServicer, clock: WakingClock) -> RpcServer:
    """The same with a servicer of the caller's, which goes by this clock."""
    server = RpcServer(listen)
    server.add(SERVICE_NAME, add_FleetServiceServicer_to_server, servicer)
    await server.start()
    server.keep(asyncio.create_task(clock.tick(), name="waking clock"))
    await server.set_serving()
    return server
