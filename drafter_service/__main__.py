"""The drafter process: load in the drafting thread, serve, drain on SIGTERM. One JSON line on stdout says where it listens.

Exit codes: 0 drained, 1 the drafting thread failed, 2 it could not start (the sentence is on stderr), 3 a newer incarnation of this replica
has announced itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from drafter_service.drafting_thread import LoadedDrafter
from drafter_service.lane_door import LaneDoor
from drafter_service.loading import load_drafter
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings, parse_settings
from outrider.errors import InvalidRequest, OutriderError
from outrider.exposition.endpoint import serving_metrics
from outrider.rpc.announcer import SUPERSEDED_EXIT_CODE, Announcer, drain_this_process, end_this_process
from outrider.rpc.listening import check_free
from outrider.rpc.process_exit import exit_at_once
from outrider.rpc.process_log import level_from_environment, start_log
from outrider.rpc.server import RpcServer, ServerLimits, run_service, run_until_signal
from outrider.types.fleet import Replica

SERVICE_NAME = "outrider.v1.DrafterService"
# Python lets the drafting thread keep the interpreter this long while a commit waits to be read; the default of 5 ms is several rounds.
SWITCH_INTERVAL_S = 0.0005


async def serve(settings: DrafterSettings, load: Callable[[], LoadedDrafter]) -> None:
    """Until a signal; returns when drained. load: in the drafting thread.

    Raises OutriderError when it cannot start, SystemExit when it ends of itself.
    """
    from outrider.v1.drafter_pb2_grpc import add_DrafterServiceServicer_to_server

    check_free({"--listen": settings.listen, "--metrics-port": settings.metrics.listen})
    incarnation = time.time_ns()
    limits, num_threads = settings.limits, settings.engine.num_threads
    servicer = DrafterServicer(limits, num_threads, on_failure=_ask_for_drain, with_lanes=settings.lanes)
    loaded, scheduler = await servicer.thread.start(load)
    servicer.serve(loaded, scheduler)
    server = RpcServer(settings.listen, ServerLimits(max_message_bytes=settings.max_message_bytes))
    server.add(SERVICE_NAME, add_DrafterServiceServicer_to_server, servicer)
    try:
        await server.start()
        async with _lanes(settings, server, servicer):
            await server.set_serving()
            with serving_metrics(settings.metrics, servicer.metrics, servicer.refresh_metrics) as metrics_url:
                is_superseded = await _run_announced(settings, server, servicer, incarnation, metrics_url)
    finally:
        await servicer.thread.stop()
    if servicer.thread.failure is not None:
        raise SystemExit(1)
    if is_superseded:
        raise SystemExit(SUPERSEDED_EXIT_CODE)


async def _run_announced(
    settings: DrafterSettings, server: RpcServer, servicer: DrafterServicer, incarnation: int, metrics_url: str
) -> bool:
    """Until a signal, announcing this drafter meanwhile; returns whether a newer incarnation has taken its place."""
    membership = settings.membership
    endpoint = membership.endpoint(server.address) if membership.coordinators else ""

    def snapshot() -> Replica:
        return servicer.replica(membership, incarnation, endpoint, draining=server.draining)

    async def drain(grace_s: float) -> None:
        announcer.announce_now()  # that it drains
        await servicer.drain(grace_s)

    announcer = Announcer(membership.coordinators, snapshot, drain_this_process, end_this_process)
    announcer.start()
    try:
        await run_until_signal(server, "drafter", drain, settings.drain_grace_s, metrics_url)
    finally:
        await announcer.stop()
    return announcer.is_superseded


@asynccontextmanager
async def _lanes(settings: DrafterSettings, server: RpcServer, servicer: DrafterServicer) -> AsyncIterator[None]:
    """Lanes beside the server's unix: addresses, once it has bound them; stops the server when that fails."""
    try:
        door = LaneDoor(server.addresses if settings.lanes else (), servicer.lane_for, settings.max_message_bytes)
    except InvalidRequest:
        await server.stop()
        raise
    door.start()
    try:
        yield
    finally:
        await door.stop()


def _ask_for_drain() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def main(argv: list[str]) -> int:
    """Parse and serve."""
    try:
        settings = parse_settings(argv)
    except OutriderError as error:
        return _refused(error)
    return serve_loaded(settings, lambda: load_drafter(settings))


def serve_loaded(settings: DrafterSettings, load: Callable[[], LoadedDrafter]) -> int:
    """Serve what `load` makes, and turn what went wrong at start into a sentence; returns the exit code, raises SystemExit(1) late."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        start_log(level_from_environment())
        run_service(serve(settings, load))
    except OutriderError as error:
        return _refused(error)
    return 0


def _refused(error: OutriderError) -> int:
    print(f"drafter_service: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    exit_at_once(main(sys.argv[1:]))
