"""A DrafterService over real grpc whose guesses come from a table: it can freeze, break its stream, or send garbage.

Real parts: the wire, the handshake's messages, DrafterSession. It drafts as fast as the event loop allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from fakes import TruthTable
from fakes_simulation import ScriptedDrafter
from outrider.errors import Unavailable
from outrider.rpc.context import Context
from outrider.rpc.convert.drafter_frames import draft_response
from outrider.rpc.convert.link import BadFrame, Hello, Ping, Pong, ToVerifier, Welcome
from outrider.rpc.convert.verifier_frames import verifier_frames
from outrider.rpc.server import RpcServer
from outrider.types.frames import Open
from outrider.types.identity import ModelIdentity, Numerics
from outrider.v1 import drafter_pb2 as pb
from outrider.v1.drafter_pb2_grpc import DrafterServiceServicer, add_DrafterServiceServicer_to_server

DRAFTER_SERVICE = "outrider.v1.DrafterService"


def table_identity(vocab_size: int, name: str = "table") -> ModelIdentity:
    """What TableEngine says of itself, for the other side of the pair."""
    return ModelIdentity(name, "", "w", f"vocab{vocab_size}", vocab_size, "float32", Numerics.INVARIANT, "f", 4096, (0,))


class FakeDrafterService(DrafterServiceServicer):
    """frozen: reads and answers nothing while set. garbage: sent as they are for every session that opens."""

    def __init__(self, table: TruthTable, alpha: float, *, width: int = 1, garbage: tuple[pb.DraftResponseFrame, ...] = ()) -> None:
        self.identity = table_identity(table.vocab_size)
        self.drafter = ScriptedDrafter("d", table, alpha, 1, width=width)
        self.frozen = False
        self.num_streams = 0
        self.num_opens = 0
        self._garbage = garbage
        self._broken = asyncio.Event()
        self._thawed = asyncio.Event()

    def freeze(self) -> None:
        """As SIGSTOP would."""
        self.frozen = True
        self._thawed.clear()

    def thaw(self) -> None:
        """As SIGCONT would."""
        self.frozen = False
        self._thawed.set()

    def break_stream(self) -> None:
        """The stream ends with a status, as when the process dies."""
        self._broken.set()

    async def Draft(self, requests: AsyncIterator[pb.DraftRequest], context: Context) -> None:
        self.num_streams += 1
        self._broken.clear()
        self.drafter.sessions.clear()
        reading = asyncio.ensure_future(self._serve(requests, context))
        breaking = asyncio.ensure_future(self._broken.wait())
        try:
            await asyncio.wait({reading, breaking}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            raise Unavailable("the fake drafter broke its stream")
        finally:
            reading.cancel()
            breaking.cancel()
            await asyncio.gather(reading, breaking, return_exceptions=True)

    async def _serve(self, requests: AsyncIterator[pb.DraftRequest], context: Context) -> None:
        async for request in requests:
            while self.frozen:
                await self._thawed.wait()
            frames = [answer for frame in verifier_frames(request) for answer in self._answers(frame)]
            await self._send(frames, context)
            await self._work(context)

    def _answers(self, frame: object) -> list[ToVerifier]:
        match frame:
            case Hello():
                return [Welcome(self.identity, time.monotonic_ns(), 64)]
            case Ping():
                return [Pong(frame.sent_ns, time.monotonic_ns())]
            case BadFrame():
                raise AssertionError(f"the verifier sent a bad frame: {frame.error}")
            case _:
                self.num_opens += isinstance(frame, Open)
                return list(self.drafter.receive(frame))  # type: ignore[arg-type]

    async def _work(self, context: Context) -> None:
        """Draft until every session is out of credit."""
        while not self.frozen:
            now_us = time.monotonic_ns() // 1000
            self.drafter.start(now_us)
            if self.drafter.busy_until is None:
                return
            await asyncio.sleep(0)
            await self._send(list(self.drafter.finish(time.monotonic_ns() // 1000)), context)

    async def _send(self, frames: list[ToVerifier], context: Context) -> None:
        if not frames:
            return
        message = draft_response(frames)
        for frame in frames:
            for bad in self._garbage:
                mangled = message.frames.add()
                mangled.CopyFrom(bad)
                if hasattr(frame, "session"):
                    getattr(mangled, mangled.WhichOneof("frame") or "tail").session = frame.session
        await context.write(message)


@contextlib.asynccontextmanager
async def serving_drafter(service: FakeDrafterService, folder: Path, name: str = "d") -> AsyncIterator[str]:
    """The service on a unix socket; yields its address."""
    server = RpcServer([f"unix:{folder}/{name}.sock"])
    server.add(DRAFTER_SERVICE, add_DrafterServiceServicer_to_server, service)
    await server.start()
    try:
        yield server.address
    finally:
        service.thaw()
        await server.stop(grace_s=0.1)
