"""A verifier's process from settings to exit code: log, event loop, signals. Must not parse, nor know what a resident drafter is."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.errors import OutriderError
from outrider.exposition.endpoint import serving_metrics
from outrider.rpc.announcer import SUPERSEDED_EXIT_CODE, Announcer, drain_this_process, end_this_process
from outrider.rpc.listening import check_free
from outrider.rpc.process_log import level_from_environment, start_log
from outrider.rpc.server import run_service, run_until_signal
from verifier_service.fleet_entry import FleetEntry
from verifier_service.resident import ResidentDrafter
from verifier_service.service import VerifierServer
from verifier_service.settings import VerifierSettings

# The loop thread must not wait 5 ms for the interpreter while the engine thread prepares a step, nor the engine thread behind a loop with
# many streams. Either mostly needs it for less than this in one go; a shorter interval would have them interrupt each other there.
SWITCH_INTERVAL_S = 0.0005


LoadResident = Callable[[], ResidentDrafter]
# What goes on while a started verifier serves, until a signal: it prints the ready line, and ends with the verifier's RPC server stopped.
Serve = Callable[[VerifierServer, str], Awaitable[None]]


def run_verifier(settings: VerifierSettings, load_resident: LoadResident | None = None, serve: Serve | None = None) -> int:
    """Load the target and serve it (serve_engine). load_resident: loads a drafter of this process, in the engine thread."""
    return serve_engine(settings, lambda: load_engine(settings.engine), load_resident, serve)


def serve_engine(
    settings: VerifierSettings, load: Callable[[], Engine], load_resident: LoadResident | None = None, serve: Serve | None = None
) -> int:
    """Serve until a signal. load: in the engine thread. serve: instead of serving alone, as a member of the fleet it was given.

    Exit codes: 0 after a drain, 1 when the engine died, 2 when it could not start, 3 when a newer incarnation of it is in the fleet.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    codes: list[int] = []
    try:
        start_log(level_from_environment())
        run_service(_serve(settings, load, load_resident, serve, codes))
    except OutriderError as error:
        print(f"verifier_service: {error}", file=sys.stderr)
        return 2
    return max(codes, default=0)


async def _serve(
    settings: VerifierSettings, load: Callable[[], Engine], load_resident: LoadResident | None, serve: Serve | None, codes: list[int]
) -> None:
    """codes: gets the process's exit code when it is to end for another reason than a signal."""

    def on_death() -> None:
        codes.append(1)
        os.kill(os.getpid(), signal.SIGTERM)

    def on_superseded() -> None:
        codes.append(SUPERSEDED_EXIT_CODE)
        end_this_process()

    check_free({"--listen": (settings.listen,), "--metrics-port": settings.metrics.listen})
    incarnation = time.time_ns()
    server = VerifierServer(settings, load, on_death, load_resident)
    try:
        await server.start()
        with serving_metrics(settings.metrics, server.metrics, server.refresh_metrics) as metrics_url:
            if serve is None:
                await _run_announced(server, incarnation, on_superseded, metrics_url)
            else:
                await serve(server, metrics_url)
    finally:
        await server.stop()


async def _run_announced(server: VerifierServer, incarnation: int, on_superseded: Callable[[], None], metrics_url: str) -> None:
    """Until a signal, announcing this verifier meanwhile."""
    async with _announced(server, incarnation, on_superseded) as announcer:

        async def drain(grace_s: float) -> None:
            announcer.announce_now()  # that it drains
            await server.drain(grace_s)

        await run_until_signal(server.rpc, "verifier", drain, server.settings.grace_s, metrics_url)


@asynccontextmanager
async def _announced(server: VerifierServer, incarnation: int, on_superseded: Callable[[], None]) -> AsyncIterator[Announcer]:
    """Announce a started server for the block's time, to nobody where it belongs to no fleet."""
    settings = server.settings
    endpoint = settings.membership.endpoint(server.rpc.address) if settings.membership.coordinators else ""
    entry = FleetEntry(settings.membership.replica_id, incarnation, endpoint, settings.max_sessions)
    announcer = Announcer(settings.membership.coordinators, lambda: server.replica(entry), drain_this_process, on_superseded)
    announcer.start()
    try:
        yield announcer
    finally:
        await announcer.stop()
