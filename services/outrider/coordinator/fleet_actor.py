"""The coordinator as a Ray actor: FleetService at a fixed address, brought back by Ray whenever its process dies.

A plain class with async methods; cluster.py makes an actor of it. Nothing is saved: whoever comes back has a later epoch and an empty
fleet, and replicas say within a heartbeat that they are there. Must not know placement.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from outrider.coordinator.server import STOP_GRACE_S, start_coordinator
from outrider.coordinator.state import FleetState, new_epoch, new_fleet
from outrider.errors import InvalidRequest
from outrider.rpc.server import RpcServer

_LOG = logging.getLogger(__name__)
ACTOR_NAME = "outrider-fleet"
# The process before this one may still hold the port for a moment.
MAX_BIND_ATTEMPTS = 50
BIND_PAUSE_S = 0.1


class FleetActor:
    """listen: host:port. make: an empty fleet of an epoch. Serves from its construction on, for after a restart nobody calls it. Ray
    constructs it inside the event loop."""

    def __init__(self, listen: str, make: Callable[[int], FleetState] = new_fleet) -> None:
        self._make = make
        self._listen = listen
        self._epoch = new_epoch()
        self._server = asyncio.get_running_loop().create_task(self._serve())
        self._server.add_done_callback(_end_unless_serving)

    async def address(self) -> str:
        """Where it serves, once it does."""
        return (await asyncio.shield(self._server)).address

    async def epoch(self) -> int:
        """Of this start."""
        return self._epoch

    async def pid(self) -> int:
        """Of its process."""
        return os.getpid()

    async def stop(self) -> None:
        """Serve no more; the actor itself is ended by whoever owns it."""
        await (await asyncio.shield(self._server)).stop(None, STOP_GRACE_S)

    async def _serve(self) -> RpcServer:
        state = self._make(self._epoch)
        for _ in range(MAX_BIND_ATTEMPTS - 1):
            try:
                return await start_coordinator([self._listen], state)
            except InvalidRequest as error:
                _LOG.warning("the coordinator does not serve yet: %s", error)
            await asyncio.sleep(BIND_PAUSE_S)
        return await start_coordinator([self._listen], state)


def _end_unless_serving(server: asyncio.Task[RpcServer]) -> None:
    """An actor that does not serve is of no use: Ray starts another process in its place."""
    if not server.cancelled() and server.exception() is not None:
        logging.getLogger(__name__).error("the coordinator cannot serve: %s", server.exception())
        os._exit(1)
