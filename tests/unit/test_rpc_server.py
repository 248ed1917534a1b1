"""The server every service runs in: statuses, health, reflection, bounds, drain, signals.

pytest tests/unit/test_rpc_server.py
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from outrider.errors import DoesNotFit, InvalidRequest, Overloaded, Unavailable
from outrider.rpc import server as rpc_server
from outrider.rpc.channel import KEEPALIVE_TIMEOUT_MS, open_channel, wait_ready
from outrider.rpc.context import Context
from outrider.rpc.server import RpcServer, ServerLimits, run_until_signal
from outrider.rpc.status import MAX_DETAILS_LEN, error_from_rpc
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.verifier_pb2_grpc import VerifierServiceServicer, VerifierServiceStub, add_VerifierServiceServicer_to_server
from outrider_bench.chaos.wire import Wires
from outrider_bench.loopback import free_address
from outrider_bench.machine import Machine

SERVICE = "outrider.v1.VerifierService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

MOST_SILENCE_S = 20.0


class Subject(VerifierServiceServicer):
    """Raises what it is told; Decode is an async generator that yields once and waits."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.closed = asyncio.Event()

    async def GetInfo(self, request: pb.VerifierServiceGetInfoRequest, context: Context) -> pb.VerifierServiceGetInfoResponse:
        if self.error is not None:
            raise self.error
        return pb.VerifierServiceGetInfoResponse(max_rows=7)

    async def Decode(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> AsyncIterator[pb.DecodeResponse]:
        try:
            yield pb.DecodeResponse(started=pb.DecodeStarted(pacing="x"))
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        finally:
            self.closed.set()


@asynccontextmanager
async def serve(
    subject: Subject, *addresses: str, limits: ServerLimits | None = None
) -> AsyncIterator[tuple[RpcServer, Any, grpc.aio.Channel]]:
    server = RpcServer(addresses or ("127.0.0.1:0",), limits)
    server.add(SERVICE, add_VerifierServiceServicer_to_server, subject)
    await server.start()
    channel = open_channel(server.address)
    try:
        yield server, VerifierServiceStub(channel), channel  # type: ignore[no-untyped-call]
    finally:
        await channel.close(None)
        await server.stop(grace_s=0.0)


async def info_error(stub: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetInfo(pb.VerifierServiceGetInfoRequest())
    return caught.value


async def test_an_error_of_ours_becomes_its_status_with_sentence_and_field() -> None:
    subject = Subject()
    async with serve(subject) as (_, stub, _):
        subject.error = DoesNotFit("prefix", "has 9 tokens — at most 8")
        failure = await info_error(stub)
        assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
        returned = error_from_rpc(failure)
        assert isinstance(returned, DoesNotFit)
        assert (returned.field, returned.problem) == ("prefix", "has 9 tokens — at most 8")
        subject.error = Overloaded("full")
        call = stub.Decode()
        await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
async def test_a_sentence_that_quotes_a_huge_value_keeps_its_status_and_field(letter: str) -> None:
    subject = Subject()
    subject.error = InvalidRequest("model", f"{letter * 100_000!r} is not served here")
    async with serve(subject) as (_, stub, _):
        failure = await info_error(stub)
    returned = error_from_rpc(failure)
    assert (failure.code(), type(returned)) == (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest)
    assert isinstance(returned, InvalidRequest)
    assert returned.field == "model"
    assert len(str(returned)) == MAX_DETAILS_LEN


async def test_a_bug_is_internal_and_its_traceback_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    subject = Subject()
    async with serve(subject) as (_, stub, _):
        subject.error = ZeroDivisionError("secret detail")
        with caplog.at_level(logging.ERROR, "outrider.rpc.interceptor"):
            failure = await info_error(stub)
    assert failure.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (failure.details() or "")
    assert "ZeroDivisionError: secret detail" in caplog.text


async def test_a_generator_is_closed_at_once_when_its_call_is_cancelled() -> None:
    subject = Subject()
    async with serve(subject) as (_, stub, _):
        call = stub.Decode()
        await call.read()
        call.cancel()
        await asyncio.wait_for(subject.closed.wait(), 30.0)


async def test_health_of_the_whole_and_of_every_service_follows_readiness() -> None:
    async with serve(Subject()) as (server, _, channel):
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == NOT_SERVING, "started is not ready"
        await server.set_serving()
        assert (await watch.read()).status == SERVING
        for name in ("", SERVICE):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await server.set_serving(False, SERVICE)
        assert (await watch.read()).status == NOT_SERVING
        assert (await health.Check(health_pb2.HealthCheckRequest(service=""))).status == SERVING
        watch.cancel()


async def test_reflection_lists_the_services_and_describes_them() -> None:
    async with serve(Subject()) as (_, _, channel):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= listed
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()


async def test_a_draining_server_refuses_new_calls_and_says_so_in_its_health() -> None:
    subject, held = Subject(), asyncio.Event()
    async with serve(subject) as (server, stub, channel):
        await server.set_serving()
        health = health_pb2_grpc.HealthStub(channel)
        call = stub.Decode()
        await call.read()
        reached = asyncio.Event()

        async def drain(grace_s: float) -> None:
            assert grace_s == 5.0
            reached.set()
            await held.wait()

        stopping = asyncio.ensure_future(server.stop(drain, 5.0))
        await reached.wait()
        assert server.draining
        assert (await info_error(stub)).code() is grpc.StatusCode.UNAVAILABLE
        assert (await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))).status == NOT_SERVING
        await server.set_serving()
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING, "draining is for good"
        held.set()
        await stopping
        await asyncio.wait_for(subject.closed.wait(), 30.0)


async def test_a_drain_that_overstays_its_grace_is_left_behind() -> None:
    async with serve(Subject()) as (server, _, _):

        async def drain(grace_s: float) -> None:
            await asyncio.Event().wait()

        await asyncio.wait_for(server.stop(drain, 0.05), 30.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_after_the_ready_line(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    drained: list[float] = []

    async def drain(grace_s: float) -> None:
        drained.append(grace_s)

    async with serve(Subject()) as (server, _, _):
        running = asyncio.ensure_future(run_until_signal(server, "verifier", drain, 3.0))
        await asyncio.sleep(0)
        line = json.loads(capsys.readouterr().out)
        os.kill(os.getpid(), number)
        await asyncio.wait_for(running, 30.0)
    assert (line["ready"], line["address"], line["service"], line["pid"]) == (True, server.address, "verifier", os.getpid())
    assert drained == [3.0]


async def test_collections_leave_what_a_started_service_holds_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Else a full one walks through all that torch and transformers ever made, and every session waits."""
    held = [[number] for number in range(1000)]
    async with serve(Subject()) as (server, _, _):
        num_frozen = gc.get_freeze_count()
        running = asyncio.ensure_future(run_until_signal(server, "verifier"))
        await asyncio.sleep(0)
        assert json.loads(capsys.readouterr().out)["ready"]
        assert gc.get_freeze_count() >= num_frozen + len(held)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 30.0)


async def test_a_second_signal_cuts_the_drain_short() -> None:
    async def drain(grace_s: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    async with serve(Subject()) as (server, stub, _):
        call = stub.Decode()
        await call.read()
        running = asyncio.ensure_future(run_until_signal(server, "verifier", drain, 60.0))
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 30.0)
        host, _, port = server.address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        assert await call.code() is not grpc.StatusCode.OK, "it was told that it ends"


async def test_a_unix_socket_serves_beside_a_port(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s.sock"
    async with serve(Subject(), address, "127.0.0.1:0") as (server, stub, _):
        assert server.addresses[0] == address
        assert (await stub.GetInfo(pb.VerifierServiceGetInfoRequest())).max_rows == 7
        async with open_channel(server.addresses[1]) as other:
            await wait_ready(other, server.addresses[1], 2.0)


async def test_messages_and_concurrent_calls_are_bounded() -> None:
    async with serve(Subject(), limits=ServerLimits(max_message_bytes=1024, max_concurrent_rpcs=1)) as (_, stub, _):
        call = stub.Decode()
        await call.read()
        assert (await info_error(stub)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED, "one call is live already"
        call.cancel()
    async with serve(Subject(), limits=ServerLimits(max_message_bytes=1024)) as (_, stub, _):
        unknown_field = bytes([0x9A, 0x06, 0x80, 0x20]) + bytes(4096)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetInfo(pb.VerifierServiceGetInfoRequest.FromString(unknown_field))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert type(error_from_rpc(caught.value)) is DoesNotFit, "in whatever words grpc has for it"


@pytest.mark.parametrize("address", ["", "nohost", "host:", "host:x", "host:70000", ":80", "unix:"])
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="listen"):
        RpcServer([address])
    with pytest.raises(InvalidRequest, match="address"):
        open_channel(address)


async def test_a_taken_port_is_refused_with_its_address() -> None:
    async with serve(Subject()) as (server, _, _):
        other = RpcServer([server.address])
        with pytest.raises(InvalidRequest, match=r"listen: cannot bind 127\.0\.0\.1"):
            await other.start()
        await other.stop()


async def test_waiting_for_a_peer_that_is_not_there_ends_with_its_address(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nobody.sock"
    async with open_channel(address) as channel:
        with pytest.raises(Unavailable, match=r"nobody\.sock did not answer within 0\.05 s"):
            await wait_ready(channel, address, 0.05)


async def test_a_client_that_falls_off_the_network_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cable is pulled: no end of its stream ever comes, and what a service holds for it is freed all the same."""
    monkeypatch.setattr(rpc_server, "SERVER_KEEPALIVE_TIME_MS", 300)
    monkeypatch.setattr(rpc_server, "KEEPALIVE_TIMEOUT_MS", 300)
    subject = Subject()
    async with serve(subject) as (server, _, _):
        with Wires() as wires:
            wire = wires.add(Machine("127.0.0.1"), free_address("127.0.0.1"), server.address)
            async with open_channel(wire.listen) as channel:
                call: Any = VerifierServiceStub(channel).Decode()  # type: ignore[no-untyped-call]
                assert (await anext(aiter(call))).started.pacing == "x"
                wires.cut(wire)
                async with asyncio.timeout(MOST_SILENCE_S):
                    await subject.closed.wait()


def test_what_is_held_for_a_silent_client_is_freed_within_a_bound() -> None:
    assert rpc_server.SERVER_KEEPALIVE_TIME_MS + KEEPALIVE_TIMEOUT_MS <= 1000 * MOST_SILENCE_S


async def test_no_method_is_waited_for_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """grpc does so for methods that are registered one by one, again with every call."""
    num_waited: list[int] = []
    wait = asyncio.wait

    async def counted(waited: Any, **options: Any) -> Any:
        num_waited.append(len(waited))
        return await wait(waited, **options)

    monkeypatch.setattr(asyncio, "wait", counted)
    async with serve(Subject()) as (_, stub, _):
        for _ in range(2):
            assert (await stub.GetInfo(pb.VerifierServiceGetInfoRequest())).max_rows == 7
    assert max(num_waited, default=0) <= 1
