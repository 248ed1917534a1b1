"""How trunks end: by callers that leave at any moment, by peers that are gone, and by those that keep to no rule.

Run: pytest tests/unit/test_rpc_trunk_ends.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from fakes_trunks import DECODE, SERVICE, WAIT_S, Handlers, a_site, begins, failure_of, stop
from outrider.rpc.channel import open_channel
from outrider.rpc.context import Context
from outrider.rpc.server import RpcServer
from outrider.rpc.trunk_channel import TrunkChannel
from outrider.rpc.trunk_window import WINDOW
from outrider.v1 import trunk_pb2
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.trunk_pb2_grpc import TrunkServiceServicer, add_TrunkServiceServicer_to_server
from outrider.v1.verifier_pb2_grpc import VerifierServiceStub, add_VerifierServiceServicer_to_server


@pytest.mark.parametrize("num_turns", range(8))
async def test_a_caller_that_says_no_more_and_is_gone_some_turns_later_leaves_no_handler_behind(num_turns: int) -> None:
    """Cancelled at whatever the end of a trunk waits for."""
    context: Any = NoContext()
    no_more = asyncio.Event()

    async def requests() -> AsyncIterator[trunk_pb2.CarryRequest]:
        calls = range(4)
        said = [trunk_pb2.CallerEvent(call=call, message=stop("wait").SerializeToString()) for call in calls]
        yield trunk_pb2.CarryRequest(events=[*map(begins, calls), *said])
        await no_more.wait()

    async with a_site() as site:
        carrying = asyncio.ensure_future(site.carrying.Carry(requests(), context))
        await site.handlers.wait_for(lambda: site.handlers.live == 4)
        no_more.set()
        loop = asyncio.get_running_loop()
        leaves_after(loop, num_turns, carrying)
        await asyncio.gather(carrying, return_exceptions=True)
        await site.handlers.wait_for(lambda: site.handlers.live == 0)
        await asyncio.gather(*site.carrying._endings)
        assert (site.carrying.num_calls, site.carrying.num_trunks) == (0, 0)


def leaves_after(loop: asyncio.AbstractEventLoop, num_turns: int, carrying: asyncio.Future[None]) -> None:
    if num_turns:
        loop.call_soon(leaves_after, loop, num_turns - 1, carrying)
    else:
        carrying.cancel()


class SlowReader:
    """Takes a turn of the loop for each message. most: of what was said and not taken, at any time."""

    def __init__(self) -> None:
        self.statuses: list[trunk_pb2.HandlerEvent] = []
        self.trunk: Any = None
        self.most = 0

    async def write(self, response: trunk_pb2.CarryResponse) -> None:
        self.most = max(self.most, len(response.events) + self.trunk.outbox.num_waiting)
        await asyncio.sleep(0)
        self.statuses += response.events


@pytest.mark.parametrize("num_at_once", [1, 400])
@pytest.mark.parametrize("name", ["x" * 100_000, DECODE])
async def test_a_caller_that_does_not_read_what_its_calls_are_refused_with_is_not_heard_meanwhile(
    num_at_once: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.rpc.trunk_outbox.MAX_WAITING_EVENTS", 8)
    reader = SlowReader()
    context: Any = reader

    async def requests() -> AsyncIterator[trunk_pb2.CarryRequest]:
        (reader.trunk,) = site.carrying._trunks
        for number in range(0, 400, num_at_once):
            yield trunk_pb2.CarryRequest(events=[begins(number + one, name) for one in range(num_at_once)])

    async with a_site() as site:
        monkeypatch.setattr(site.carrying, "_max_calls", 0)
        await asyncio.wait_for(site.carrying.Carry(requests(), context), WAIT_S)
    assert [event.call for event in reader.statuses] == list(range(400))
    assert reader.most <= 2 * (8 + 1), "under way, and gathered meanwhile"
    assert max(event.ByteSize() for event in reader.statuses) < 1000, "a name of any length is not said back"


class NoContext:
    """Of a trunk that nothing is to be said on."""

    async def write(self, message: object) -> None:
        raise AssertionError(message)


async def code_of_a_call_to(address: str) -> grpc.StatusCode:
    channel = open_channel(address)
    trunks = TrunkChannel(channel)
    try:
        call: Any = VerifierServiceStub(trunks).Decode()  # type: ignore[no-untyped-call]
        return (await failure_of(call)).code()
    finally:
        await trunks.close()
        await channel.close(None)


async def test_a_trunk_is_closed_in_the_turn_it_was_opened_in() -> None:
    async with a_site() as site:
        trunks = TrunkChannel(site.channel)
        call: Any = VerifierServiceStub(trunks).Decode()  # type: ignore[no-untyped-call]
        async with asyncio.timeout(WAIT_S):  # not wait_for, which may give the tasks a turn
            await trunks.close()
        assert (await failure_of(call)).code() is grpc.StatusCode.UNAVAILABLE
        assert trunks.num_calls == 0


async def test_a_peer_that_knows_no_trunks_counts_as_gone() -> None:
    server = RpcServer(("127.0.0.1:0",))
    server.add(SERVICE, add_VerifierServiceServicer_to_server, Handlers())
    await server.start()
    try:
        assert await code_of_a_call_to(server.address) is grpc.StatusCode.UNAVAILABLE
    finally:
        await server.stop(grace_s=0.0)


class Broken:
    """A stream that was written to as it ended, for which grpc makes its own status of the peer's (its issue 36066)."""

    def Carry(self) -> Broken:
        return self

    async def write(self, request: trunk_pb2.CarryRequest) -> None:
        raise asyncio.InvalidStateError

    def cancel(self) -> bool:
        return False

    async def __aiter__(self) -> AsyncIterator[trunk_pb2.CarryResponse]:
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, "Internal error from Core", None)
        yield


async def test_a_peer_that_is_gone_while_it_is_written_to_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.rpc.trunk_channel.TrunkServiceStub", lambda channel: Broken())
    assert await code_of_a_call_to("127.0.0.1:1") is grpc.StatusCode.UNAVAILABLE


def said(call: int, num_bytes: int = 1) -> trunk_pb2.HandlerEvent:
    return trunk_pb2.HandlerEvent(call=call, message=b"x" * num_bytes)


class Peer(TrunkServiceServicer):
    """Answers the first thing that is said with so many messages to call 0 and one to call 1, and nothing else with anything."""

    def __init__(self, num_messages: int) -> None:
        self.num_messages = num_messages

    async def Carry(self, requests: AsyncIterator[trunk_pb2.CarryRequest], context: Context) -> None:
        await anext(requests)
        await context.write(trunk_pb2.CarryResponse(events=[*[said(0, 0) for _ in range(self.num_messages)], said(1, 0)]))
        async for _ in requests:
            pass


@asynccontextmanager
async def trunks_to(peer: Peer) -> AsyncIterator[TrunkChannel]:
    server = RpcServer(("127.0.0.1:0",))
    server.add("outrider.v1.TrunkService", add_TrunkServiceServicer_to_server, peer)
    await server.start()
    channel = open_channel(server.address)
    trunks = TrunkChannel(channel)
    try:
        yield trunks
    finally:
        await trunks.close()
        await channel.close(None)
        await server.stop(grace_s=0.0)


async def test_a_deadline_needs_no_word_from_the_peer() -> None:
    async with trunks_to(Peer(0)) as trunks:
        call: Any = VerifierServiceStub(trunks).Decode(timeout=0.05)  # type: ignore[no-untyped-call]
        assert (await failure_of(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert trunks.num_calls == 0


@pytest.mark.parametrize(("num_messages", "is_too_many"), [(WINDOW, False), (WINDOW + 1, True)])
async def test_a_peer_that_does_not_wait_for_readers_costs_them_their_calls(num_messages: int, is_too_many: bool) -> None:
    async with trunks_to(Peer(num_messages)) as trunks:
        stub: Any = VerifierServiceStub(trunks)  # type: ignore[no-untyped-call]
        call, behind = stub.Decode(), stub.Decode()
        assert await asyncio.wait_for(anext(behind), WAIT_S) == pb.DecodeResponse()  # so all that was for the other has come
        assert trunks.num_calls == (1 if is_too_many else 2)
        for _ in range(WINDOW):
            assert await asyncio.wait_for(anext(call), WAIT_S) == pb.DecodeResponse()
        if is_too_many:
            assert (await failure_of(call)).code() is grpc.StatusCode.INTERNAL
