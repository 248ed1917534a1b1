"""Where an operator says how many replicas this machine gives to the fleet: ScalingService on a thread of its own.

Knows the messages. Must not know what a replica is, nor how one is started: a function is handed in, and may take minutes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from outrider.errors import Unavailable
from outrider.launch.process import StartFailed
from outrider.rpc.context import Context
from outrider.rpc.server import RpcServer, ServerLimits
from outrider.v1 import scaling_pb2 as pb
from outrider.v1.scaling_pb2_grpc import add_ScalingServiceServicer_to_server

SERVICE_NAME = "outrider.v1.ScalingService"
START_TIMEOUT_S, STOP_TIMEOUT_S = 30.0, 30.0
MAX_CALLS = 8

Scale = Callable[[int | None, int | None], Mapping[str, str]]


class ScalingServicer:
    """scale: takes how many verifiers and drafters there are to be (None: as it is), and returns addresses by name."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale

    async def Scale(self, request: pb.ScaleRequest, context: Context) -> pb.ScaleResponse:
        """See scaling.proto. Who hangs up has asked all the same: what was begun is brought to its end."""
        num_verifiers = request.num_verifiers if request.HasField("num_verifiers") else None
        num_drafters = request.num_drafters if request.HasField("num_drafters") else None
        try:
            replicas = await asyncio.to_thread(self._scale, num_verifiers, num_drafters)
        except StartFailed as error:
            raise Unavailable(str(error)) from error
        return pb.ScaleResponse(replicas=[pb.ScaledReplica(replica_id=name, address=address) for name, address in replicas.items()])


@dataclass(frozen=True, slots=True)
class _Running:
    address: str
    loop: asyncio.AbstractEventLoop
    stopping: asyncio.Event


class ScalingDoor:
    """Serves from its construction until `close`. Raises InvalidRequest when it cannot listen there."""

    def __init__(self, listen: str, scale: Scale) -> None:
        self._running: Future[_Running] = Future()
        self._thread = threading.Thread(target=self._run, args=(listen, ScalingServicer(scale)), name="scaling", daemon=True)
        self._thread.start()
        self.address = self._running.result(START_TIMEOUT_S).address

    def close(self) -> None:
        """Take no more orders; one that is being carried out is waited for, within a bound. Safe to repeat."""
        running = self._running.result()
        if self._thread.is_alive():
            running.loop.call_soon_threadsafe(running.stopping.set)
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self, listen: str, servicer: ScalingServicer) -> None:
        try:
            asyncio.run(self._serve(listen, servicer))
        except BaseException as error:
            if self._running.done():
                raise
            self._running.set_exception(error)

    async def _serve(self, listen: str, servicer: ScalingServicer) -> None:
        server = RpcServer([listen], ServerLimits(max_concurrent_rpcs=MAX_CALLS))
        server.add(SERVICE_NAME, add_ScalingServiceServicer_to_server, servicer)
        await server.start()
        await server.set_serving()
        stopping = asyncio.Event()
        self._running.set_result(_Running(server.address, asyncio.get_running_loop(), stopping))
        await stopping.wait()
        await server.stop(grace_s=0.0)
