"""A channel to a service of the same process, and one whose streams share a trunk, do what one over a socket does, as far as callers can
tell, and bound what they hold. What is common is tested over all three, so that none can drift from the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from outrider.errors import DoesNotFit, InvalidRequest, OutriderError, Overloaded, Unavailable
from outrider.rpc.channel import open_channel, wait_ready
from outrider.rpc.context import Context, propagated_metadata, remaining_s
from outrider.rpc.in_process_channel import InProcessChannel
from outrider.rpc.pipe import MAX_UNREAD, Pipe
from outrider.rpc.server import RpcServer, ServerLimits
from outrider.rpc.status import error_from_rpc
from outrider.rpc.trunk_channel import TrunkChannel
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.verifier_pb2_grpc import VerifierServiceServicer, VerifierServiceStub, add_VerifierServiceServicer_to_server

SERVICE = "outrider.v1.VerifierService"
WAYS = pytest.mark.parametrize("way", ["socket", "in_process", "trunk"])
WAIT_S = 5.0
INFO = pb.VerifierServiceGetInfoRequest()
TRACE_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Echo(VerifierServiceServicer):
    """Answers each stop with a commit whose `begin` counts them; ends after a stop whose detail is `end`; raises where one says `raise`.

    endless: writes for ever instead. num_written: messages that its writes were done with. closed: its handler has ended, however.
    """

    def __init__(self, error: Exception | None = None, *, endless: bool = False) -> None:
        self.error = error
        self.endless = endless
        self.num_written = 0
        self.closed = asyncio.Event()
        self.told: tuple[tuple[tuple[str, str], ...], float | None] = ((), None)

    async def GetInfo(self, request: pb.VerifierServiceGetInfoRequest, context: Context) -> pb.VerifierServiceGetInfoResponse:
        self.told = propagated_metadata(context), remaining_s(context)
        if self.error is not None:
            raise self.error
        if self.endless:
            await asyncio.Event().wait()
        return pb.VerifierServiceGetInfoResponse(max_rows=7)

    async def Decode(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> None:
        self.told = propagated_metadata(context), remaining_s(context)
        try:
            while self.endless:
                await self._write(context)
            async for request in requests:
                if request.stop.detail == "raise":
                    assert self.error is not None
                    raise self.error
                await self._write(context)
                if request.stop.detail == "end":
                    return
        finally:
            self.closed.set()

    async def _write(self, context: Context) -> None:
        await context.write(pb.DecodeResponse(committed=pb.DecodeCommitted(begin=self.num_written)))
        self.num_written += 1


@asynccontextmanager
async def serving(subject: Echo, way: str, limits: ServerLimits | None = None) -> AsyncIterator[tuple[Any, grpc.aio.Channel, RpcServer]]:
    server = RpcServer(("127.0.0.1:0",), limits)
    server.add(SERVICE, add_VerifierServiceServicer_to_server, subject)
    server.add_trunks()
    await server.start()
    channel = server.in_process_channel() if way == "in_process" else open_channel(server.address)
    await wait_ready(channel, server.address)
    trunks = TrunkChannel(channel) if way == "trunk" else None
    try:
        yield VerifierServiceStub(trunks or channel), channel, server  # type: ignore[no-untyped-call]
    finally:
        if trunks is not None:
            await trunks.close()
        await channel.close(None)
        await server.stop(grace_s=0.0)


def stop(detail: str = "") -> pb.DecodeRequest:
    return pb.DecodeRequest(stop=pb.DecodeStop(detail=detail))


async def failure_of(reading: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(reading, WAIT_S)
    return caught.value


# --- over all ----------------------------------------------------------------------------------------------------------------


@WAYS
async def test_an_answer_comes_with_the_callers_metadata_and_deadline(way: str) -> None:
    subject = Echo()
    async with serving(subject, way) as (stub, _, _):
        assert (await stub.GetInfo(INFO)).max_rows == 7
        assert subject.told == ((), None)
        await stub.GetInfo(INFO, timeout=60.0, metadata=(("traceparent", TRACE_PARENT), ("other", "x")))
        metadata: list[tuple[str, str]] = list(subject.told[0])
        left_s = subject.told[1]
        assert metadata == [("traceparent", TRACE_PARENT)]
        assert left_s is not None
        assert 50.0 < left_s < 61.0


@WAYS
async def test_so_does_a_stream(way: str) -> None:
    subject = Echo()
    async with serving(subject, way) as (stub, _, _):
        for timeout_s in (None, 60.0):
            call = stub.Decode(timeout=timeout_s, metadata=(("traceparent", TRACE_PARENT), ("other", "x")))
            await call.write(stop("end"))
            assert len([response async for response in call]) == 1
            assert subject.told[0] == (("traceparent", TRACE_PARENT),)
            left_s = subject.told[1]
            assert (left_s is None) if timeout_s is None else (left_s is not None and 50.0 < left_s < 61.0)


@WAYS
async def test_what_grpc_refuses_to_send_for_a_handler_is_told_to_a_caller_that_is_there(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the error that a write to a caller raises who has left; the call would never end."""
    async with serving(Echo(grpc.aio.InternalError("Failed grpc_call_start_batch: 11")), way) as (stub, _, _):
        with caplog.at_level(logging.ERROR, "outrider.rpc.interceptor"):
            failure = await failure_of(stub.GetInfo(INFO))
    assert failure.code() is grpc.StatusCode.INTERNAL
    assert "Failed grpc_call_start_batch: 11" in caplog.text


@WAYS
@pytest.mark.parametrize(
    "error", [InvalidRequest("prefix", "is empty"), DoesNotFit("prefix", "is long"), Overloaded("busy", 1.5), Unavailable("it drains")]
)
async def test_a_refusal_keeps_its_class_its_sentence_and_its_field(error: OutriderError, way: str) -> None:
    subject = Echo(error)
    async with serving(subject, way) as (stub, _, _):
        unary = error_from_rpc(await failure_of(stub.GetInfo(INFO)))
        call = stub.Decode()
        await call.write(stop("raise"))
        streamed = error_from_rpc(await failure_of(anext(aiter(call))))
    for found in (unary, streamed):
        assert (type(found), str(found)) == (type(error), str(error))
        assert getattr(found, "field", None) == getattr(error, "field", None)
        assert getattr(found, "retry_after_s", None) == getattr(error, "retry_after_s", None)


@WAYS
async def test_a_bug_is_internal(way: str) -> None:
    async with serving(Echo(ZeroDivisionError("secret")), way) as (stub, _, _):
        failure = await failure_of(stub.GetInfo(INFO))
    assert failure.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(failure.details())


@WAYS
async def test_messages_come_in_order_and_nothing_can_be_written_after_the_end(way: str) -> None:
    async with serving(Echo(), way) as (stub, _, _):
        call = stub.Decode()
        for detail in ("", "", "end"):
            await call.write(stop(detail))
        assert [response.committed.begin async for response in call] == [0, 1, 2]
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(stop())
        assert not call.cancel()


@WAYS
async def test_cancelling_ends_the_handler_and_is_told_to_nobody_but_the_caller(way: str) -> None:
    subject = Echo()
    async with serving(subject, way) as (stub, _, _):
        call = stub.Decode()
        await call.write(stop())
        await anext(aiter(call))
        assert call.cancel()
        await asyncio.wait_for(subject.closed.wait(), WAIT_S)
        with pytest.raises(asyncio.CancelledError):
            await anext(aiter(call))


@WAYS
async def test_a_deadline_ends_either_kind_of_call(way: str) -> None:
    subject = Echo(endless=True)
    async with serving(subject, way) as (stub, _, _):
        assert (await failure_of(stub.GetInfo(INFO, timeout=0.05))).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        subject.endless = False
        assert (await failure_of(anext(aiter(stub.Decode(timeout=0.05))))).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(subject.closed.wait(), WAIT_S)


@WAYS
async def test_a_draining_server_refuses_new_calls_and_ends_old_ones(way: str) -> None:
    subject = Echo()
    async with serving(subject, way) as (stub, _, server):
        old = stub.Decode()
        await old.write(stop())
        await anext(aiter(old))
        refused: list[grpc.aio.AioRpcError] = []

        async def drain(grace_s: float) -> None:
            refused.append(await failure_of(stub.GetInfo(INFO)))

        await server.stop(drain, grace_s=WAIT_S)
        assert refused[0].code() is grpc.StatusCode.UNAVAILABLE
        assert (await failure_of(anext(aiter(old)))).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        await asyncio.wait_for(subject.closed.wait(), WAIT_S)
        assert (await failure_of(stub.GetInfo(INFO))).code() is grpc.StatusCode.UNAVAILABLE


# --- in the process only ----------------------------------------------------------------------------------------------------


async def turns(num: int = 5 * MAX_UNREAD) -> None:
    """Let everybody who can go on go on."""
    for _ in range(num):
        await asyncio.sleep(0)


async def test_a_slow_reader_holds_the_writer_back() -> None:
    subject = Echo(endless=True)
    async with serving(subject, "in_process") as (stub, _, _):
        call = stub.Decode()
        await turns()
        assert subject.num_written == MAX_UNREAD
        assert [(await anext(call)).committed.begin for _ in range(3)] == [0, 1, 2]
        await turns()
        assert subject.num_written == MAX_UNREAD + 3
        call.cancel()
        await asyncio.wait_for(subject.closed.wait(), WAIT_S)


async def test_a_handler_that_does_not_read_holds_its_caller_back() -> None:
    async with serving(Echo(endless=True), "in_process") as (stub, _, _):
        call = stub.Decode()
        for _ in range(MAX_UNREAD):
            await call.write(stop())
        waiting = asyncio.ensure_future(call.write(stop()))
        await turns()
        assert not waiting.done()
        call.cancel()
        with pytest.raises(asyncio.InvalidStateError):
            await waiting


async def test_calls_are_bounded_and_counted_until_their_handlers_have_ended() -> None:
    async with serving(Echo(), "in_process", limits=ServerLimits(max_concurrent_rpcs=2)) as (stub, channel, _):
        assert isinstance(channel, InProcessChannel)
        calls = [stub.Decode(), stub.Decode()]
        assert (await failure_of(anext(aiter(stub.Decode())))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()
        await turns()
        assert channel.num_calls == 0
        again = stub.Decode()
        await again.write(stop("end"))
        assert len([response async for response in again]) == 1
        await turns()
        assert channel.num_calls == 0


async def test_a_closed_channel_ends_its_streams_only() -> None:
    subject = Echo()
    async with serving(subject, "in_process") as (stub, channel, server):
        call = stub.Decode()
        await call.write(stop())
        await anext(call)
        await channel.close(None)
        assert (await failure_of(anext(call))).code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(subject.closed.wait(), WAIT_S)
        other = VerifierServiceStub(server.in_process_channel())  # type: ignore[no-untyped-call]
        assert (await other.GetInfo(INFO)).max_rows == 7


async def test_a_reader_that_was_cancelled_misses_nothing() -> None:
    pipe: Pipe[int] = Pipe()
    reading = asyncio.ensure_future(pipe.receive())
    await turns()
    reading.cancel()
    await pipe.send(1)
    await turns()
    reading = asyncio.ensure_future(pipe.receive())
    assert await asyncio.wait_for(reading, WAIT_S) == 1
    reading = asyncio.ensure_future(pipe.receive())
    await turns()
    await pipe.send(2)  # the reader is woken, and cancelled before it runs
    reading.cancel()
    await turns()
    assert await asyncio.wait_for(pipe.receive(), WAIT_S) == 2


async def test_closing_wakes_whoever_waits() -> None:
    empty: Pipe[int] = Pipe()
    full: Pipe[int] = Pipe()
    for number in range(MAX_UNREAD):
        await full.send(number)
    reading, writing = asyncio.ensure_future(empty.receive()), asyncio.ensure_future(full.send(MAX_UNREAD))
    await turns()
    assert not reading.done()
    assert not writing.done()
    empty.close()
    full.close()
    assert await asyncio.wait_for(reading, WAIT_S) is None
    assert not await asyncio.wait_for(writing, WAIT_S)
