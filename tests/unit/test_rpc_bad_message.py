"""Bytes that no method takes cost their own call, with a status that says whose mistake it was, and nothing in the log.

pytest tests/unit/test_rpc_bad_message.py
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from outrider.errors import InvalidRequest
from outrider.rpc.channel import open_channel
from outrider.rpc.context import Context
from outrider.rpc.server import RpcServer
from outrider.rpc.status import error_from_rpc
from outrider.rpc.trunk_channel import TrunkChannel
from outrider.v1 import generation_pb2, verifier_pb2
from outrider.v1.generation_pb2_grpc import GenerationServiceServicer, add_GenerationServiceServicer_to_server
from outrider.v1.verifier_pb2_grpc import VerifierServiceServicer, add_VerifierServiceServicer_to_server

GENERATION, VERIFIER = "outrider.v1.GenerationService", "outrider.v1.VerifierService"
GARBAGE = [b"\xff\xff\xff\xff", b"\x0a\x05ab"]
READABLE = verifier_pb2.DecodeRequest(stop=verifier_pb2.DecodeStop(detail="x")).SerializeToString()
INVALID = grpc.StatusCode.INVALID_ARGUMENT
WAIT_S = 5.0
GARBLED = pytest.mark.parametrize("garbage", GARBAGE)
WAYS = pytest.mark.parametrize("carried", [False, True])


class Generation(GenerationServiceServicer):
    """One message for a request, singly or as a stream."""

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Context) -> None:
        await context.write(generation_pb2.GenerateResponse())

    async def Abort(self, request: generation_pb2.AbortRequest, context: Context) -> generation_pb2.AbortResponse:
        return generation_pb2.AbortResponse()


class Verifier(VerifierServiceServicer):
    """One message for each."""

    async def Decode(self, requests: AsyncIterator[verifier_pb2.DecodeRequest], context: Context) -> None:
        async for _ in requests:
            await context.write(verifier_pb2.DecodeResponse())


@asynccontextmanager
async def serving() -> AsyncIterator[grpc.aio.Channel]:
    server = RpcServer(("127.0.0.1:0",))
    server.add(GENERATION, add_GenerationServiceServicer_to_server, Generation())
    server.add(VERIFIER, add_VerifierServiceServicer_to_server, Verifier())
    server.add_trunks()
    await server.start()
    channel = open_channel(server.address)
    try:
        yield channel
    finally:
        await channel.close(None)
        await server.stop(grace_s=0.0)


@asynccontextmanager
async def streams(*, carried: bool) -> AsyncIterator[Any]:
    """A channel whose streams go singly or on a trunk."""
    async with serving() as channel:
        trunks = TrunkChannel(channel)
        yield trunks if carried else channel
        await trunks.close()


def as_it_is(payload: bytes | Message) -> bytes:
    return payload if isinstance(payload, bytes) else payload.SerializeToString()


async def refusal(reading: AsyncIterator[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        async for _ in reading:
            pass
    return failure.value


def is_the_callers_mistake(failure: grpc.aio.AioRpcError, caplog: pytest.LogCaptureFixture) -> bool:
    error = error_from_rpc(failure)
    assert isinstance(error, InvalidRequest)
    assert str(error) == "request: is no message that this method takes"
    return failure.code() is INVALID and not [record for record in caplog.records if record.levelno >= logging.WARNING]


@GARBLED
@pytest.mark.parametrize("method", [f"/{GENERATION}/Abort", "/grpc.health.v1.Health/Check"])
async def test_a_request_that_cannot_be_read_is_the_callers_mistake(garbage: bytes, method: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as channel:
        call = channel.unary_unary(method, as_it_is, None)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call(garbage, timeout=WAIT_S)
        assert is_the_callers_mistake(failure.value, caplog)
        assert await call(b"", timeout=WAIT_S) == (
            b"" if "Abort" in method else health_pb2.HealthCheckResponse(status=2).SerializeToString()
        )


@GARBLED
@WAYS
async def test_so_is_one_that_is_answered_with_a_stream(garbage: bytes, carried: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with streams(carried=carried) as channel:
        call = channel.unary_stream(f"/{GENERATION}/Generate", as_it_is, generation_pb2.GenerateResponse.FromString)
        assert is_the_callers_mistake(await refusal(call(garbage, timeout=WAIT_S)), caplog)
        assert len([message async for message in call(b"", timeout=WAIT_S)]) == 1


@GARBLED
@WAYS
@pytest.mark.parametrize("num_before", [0, 2])
async def test_so_is_one_of_a_stream(garbage: bytes, carried: bool, num_before: int, caplog: pytest.LogCaptureFixture) -> None:
    async with streams(carried=carried) as channel:
        call = channel.stream_stream(f"/{VERIFIER}/Decode", as_it_is, verifier_pb2.DecodeResponse.FromString)(timeout=WAIT_S)
        reading = aiter(call)
        for _ in range(num_before):
            await call.write(READABLE)
            assert await anext(reading) == verifier_pb2.DecodeResponse()
        await call.write(garbage)
        assert is_the_callers_mistake(await refusal(reading), caplog)
