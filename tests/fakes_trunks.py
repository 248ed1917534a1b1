"""A server that carries calls on trunks, its handlers, and a channel to it, all of one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from outrider.rpc.channel import open_channel
from outrider.rpc.context import Context
from outrider.rpc.server import RpcServer, ServerLimits
from outrider.rpc.trunk_channel import TrunkChannel
from outrider.rpc.trunk_service import TrunkServicer
from outrider.v1 import generation_pb2, trunk_pb2
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.trunk_pb2_grpc import TrunkServiceStub
from outrider.v1.verifier_pb2_grpc import VerifierServiceServicer, VerifierServiceStub, add_VerifierServiceServicer_to_server

SERVICE = "outrider.v1.VerifierService"
DECODE = f"/{SERVICE}/Decode"
WAIT_S = 5.0
SMALL_MESSAGE_BYTES = 1 << 16


class Handlers(VerifierServiceServicer):
    """Each call does what its first stop says: `echo` (an answer to every stop), `write` (without end), `large` (one message that nobody
    may send), `wait` (reads nothing more). num_written: messages of those that write, of num_bytes more than they need. live: handlers that
    run."""

    def __init__(self) -> None:
        self.num_written = 0
        self.num_bytes = 0
        self.live = 0
        self.changed = asyncio.Condition()

    async def Decode(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> None:
        await self._change(live=1)
        try:
            first = await anext(requests)
            await getattr(self, f"_{first.stop.detail}")(requests, context)
        finally:
            await asyncio.shield(self._change(live=-1))

    async def wait_for(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(is_so)

    async def _echo(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> None:
        await context.write(committed(0))
        async for request in requests:
            await context.write(committed(len(request.stop.detail)))

    async def _write(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> None:
        while True:
            fill = pb.DecodeFinished(statistics=generation_pb2.DraftStatistics(pacing="x" * self.num_bytes)) if self.num_bytes else None
            await context.write(pb.DecodeResponse(committed=pb.DecodeCommitted(begin=self.num_written, end=fill)))
            await self._change(num_written=1)

    async def _large(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> None:
        await context.write(pb.DecodeResponse(started=pb.DecodeStarted(fingerprint="x" * SMALL_MESSAGE_BYTES)))

    async def _wait(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> None:
        await asyncio.Event().wait()

    async def _change(self, live: int = 0, num_written: int = 0) -> None:
        async with self.changed:
            self.live += live
            self.num_written += num_written
            self.changed.notify_all()


class Site:
    """A server with a trunk, and a channel that uses it."""

    def __init__(self, server: RpcServer, channel: grpc.aio.Channel, handlers: Handlers) -> None:
        self.handlers = handlers
        self.server = server
        self.channel = channel
        self.trunks = TrunkChannel(channel, SMALL_MESSAGE_BYTES)
        self.stub: Any = VerifierServiceStub(self.trunks)  # type: ignore[no-untyped-call]

    async def begin(self, what: str) -> Any:
        call = self.stub.Decode()
        await call.write(stop(what))
        return call

    @property
    def carrying(self) -> TrunkServicer:
        assert self.server.trunks is not None
        return self.server.trunks


@asynccontextmanager
async def a_site(max_calls: int = 16) -> AsyncIterator[Site]:
    server = RpcServer(("127.0.0.1:0",), ServerLimits(SMALL_MESSAGE_BYTES, max_calls))
    site: Site | None = None
    try:
        handlers = Handlers()
        server.add(SERVICE, add_VerifierServiceServicer_to_server, handlers)
        server.add_trunks()
        await server.start()
        site = Site(server, open_channel(server.address), handlers)
        yield site
    finally:
        if site is not None:
            await site.trunks.close()
            await site.channel.close(None)
        await server.stop(grace_s=0.0)


def stop(detail: str) -> pb.DecodeRequest:
    return pb.DecodeRequest(stop=pb.DecodeStop(detail=detail))


def committed(begin: int) -> pb.DecodeResponse:
    return pb.DecodeResponse(committed=pb.DecodeCommitted(begin=begin))


async def next_of(call: Any) -> int:
    response = await asyncio.wait_for(anext(call), WAIT_S)
    return int(response.committed.begin)


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(anext(call), WAIT_S)
    return caught.value


async def raw(site: Site, *events: trunk_pb2.CallerEvent) -> Any:
    stream = TrunkServiceStub(site.channel).Carry()  # type: ignore[no-untyped-call]
    await stream.write(trunk_pb2.CarryRequest(events=events))
    return stream


def begins(call: int, method: str = DECODE) -> trunk_pb2.CallerEvent:
    return trunk_pb2.CallerEvent(call=call, begin=trunk_pb2.CallBegin(method=method))
