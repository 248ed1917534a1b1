"""A verifier's process from settings to exit code: log, event loop, signals. Must not parse, nor know what a resident drafter is."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable

from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.errors import OutriderError
from outrider.rpc.server import run_service, run_until_signal
from verifier_service.resident import ResidentDrafter
from verifier_service.service import VerifierServer
from verifier_service.settings import VerifierSettings

# The loop thread must not wait 5 ms for the interpreter while the engine thread prepares a step.
SWITCH_INTERVAL_S = 0.0005


def run_verifier(settings: VerifierSettings, load_resident: Callable[[], ResidentDrafter] | None = None) -> int:
    """Load the target and serve it (serve_engine). load_resident: loads a drafter of this process, in the engine thread."""
    return serve_engine(settings, lambda: load_engine(settings.engine), load_resident)


def serve_engine(settings: VerifierSettings, load: Callable[[], Engine], load_resident: Callable[[], ResidentDrafter] | None = None) -> int:
    """Serve until a signal. Exit codes: 0 after a drain, 1 when the engine died, 2 when it could not start. load: in the engine thread."""
    logging.basicConfig(level=os.environ.get("OUTRIDER_LOG", "INFO"), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    died: list[bool] = []
    try:
        run_service(_serve(settings, load, load_resident, died))
    except OutriderError as error:
        print(f"verifier_service: {error}", file=sys.stderr)
        return 2
    return 1 if died else 0


async def _serve(
    settings: VerifierSettings, load: Callable[[], Engine], load_resident: Callable[[], ResidentDrafter] | None, died: list[bool]
) -> None:
    def on_death() -> None:
        died.append(True)
        os.kill(os.getpid(), signal.SIGTERM)

    server = VerifierServer(settings, load, on_death, load_resident)
    try:
        await server.start()
        await run_until_signal(server.rpc, "verifier", server.drain, settings.grace_s)
    finally:
        await server.stop()
