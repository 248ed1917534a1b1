"""Calls that share a trunk do not disturb each other, what is held for them is bounded and freed, and what is said at once is one message.

What a carried call has in common with any other is tested in test_rpc_ways.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import pytest

from fakes_trunks import DECODE, SERVICE, SMALL_MESSAGE_BYTES, WAIT_S, Handlers, a_site, begins, committed, failure_of, next_of, raw, stop
from outrider.rpc import trunk_channel
from outrider.rpc.pipe import MAX_UNREAD
from outrider.rpc.server import RpcServer
from outrider.rpc.trunk_outbox import EVENT_RESERVE_BYTES, TrunkOutbox
from outrider.rpc.trunk_window import UNIT_BYTES, WINDOW
from outrider.v1 import trunk_pb2
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server

# --- calls beside each other ------------------------------------------------------------------------------------------------


async def test_calls_on_one_trunk_have_their_own_messages() -> None:
    async with a_site() as site:
        calls = [await site.begin("echo") for _ in range(5)]
        for number, call in enumerate(calls):
            await call.write(stop("x" * (number + 1)))
        assert [[await next_of(call), await next_of(call)] for call in reversed(calls)] == [[0, length] for length in (5, 4, 3, 2, 1)]
        assert (site.trunks.num_calls, site.carrying.num_calls) == (5, 5)


async def test_a_slow_reader_holds_its_own_handler_back_and_nobody_else() -> None:
    async with a_site() as site:
        slow = await site.begin("write")
        await site.handlers.wait_for(lambda: site.handlers.num_written == WINDOW)
        other = await site.begin("echo")
        for length in range(1, 3 * WINDOW):  # the same connection, and more of them than anybody may have unread
            await other.write(stop("x" * length))
            await next_of(other)
        assert site.handlers.num_written == WINDOW
        for number in range(WINDOW):
            assert await next_of(slow) == number
        await site.handlers.wait_for(lambda: site.handlers.num_written > WINDOW)
        slow.cancel()
        await site.handlers.wait_for(lambda: site.handlers.live == 1)


@pytest.mark.parametrize(("tell_after_s", "num_more"), [(0.0, 1), (WAIT_S, 0)])
async def test_who_reads_seldom_says_so_at_each_message(monkeypatch: pytest.MonkeyPatch, tell_after_s: float, num_more: int) -> None:
    monkeypatch.setattr(trunk_channel, "TELL_AFTER_S", tell_after_s)
    async with a_site() as site:
        slow = await site.begin("write")
        await site.handlers.wait_for(lambda: site.handlers.num_written == WINDOW)
        assert await next_of(slow) == 0
        other = await site.begin("echo")
        for length in range(1, 5):  # whatever was said before is heard before
            await other.write(stop("x" * length))
            await next_of(other)
        await site.handlers.wait_for(lambda: site.handlers.num_written == WINDOW + num_more)
        slow.cancel()
        await site.handlers.wait_for(lambda: site.handlers.live == 1)


async def test_large_messages_fill_a_window_sooner() -> None:
    async with a_site() as site:
        site.handlers.num_bytes = 8 * UNIT_BYTES
        slow = await site.begin("write")
        await site.handlers.wait_for(lambda: site.handlers.num_written == WINDOW // 8)
        other = await site.begin("echo")
        assert await next_of(other) == 0
        assert site.handlers.num_written == WINDOW // 8
        for number in range(3 * WINDOW):
            assert await next_of(slow) == number


async def test_a_handler_that_does_not_read_costs_its_own_caller_the_call() -> None:
    async with a_site() as site:
        deaf, other = await site.begin("wait"), await site.begin("echo")
        for _ in range(MAX_UNREAD + 1):
            await deaf.write(stop("more"))
        failure = await failure_of(deaf)
        assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "wait for this call's handler" in str(failure.details())
        assert await next_of(other) == 0
        await site.handlers.wait_for(lambda: site.handlers.live == 1)


async def test_a_message_too_large_to_send_costs_its_own_call() -> None:
    async with a_site() as site:
        large, other = await site.begin("large"), await site.begin("echo")
        failure = await failure_of(large)
        assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "bytes is more than" in str(failure.details())
        assert await next_of(other) == 0


@pytest.mark.parametrize(("num_beyond", "is_too_large"), [(0, False), (1, True)])
async def test_a_request_too_large_to_send_costs_its_own_call(num_beyond: int, is_too_large: bool) -> None:
    async with a_site() as site:
        large, other = await site.begin("echo"), await site.begin("echo")
        assert [await next_of(call) for call in (large, other)] == [0, 0]
        around = len(stop("x" * SMALL_MESSAGE_BYTES).SerializeToString()) - SMALL_MESSAGE_BYTES
        num_letters = SMALL_MESSAGE_BYTES - EVENT_RESERVE_BYTES - around + num_beyond
        await large.write(stop("x" * num_letters))
        if is_too_large:
            failure = await failure_of(large)
            assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "bytes is more than" in str(failure.details())
            await site.handlers.wait_for(lambda: site.handlers.live == 1)
        else:
            assert await next_of(large) == num_letters
        await other.write(stop("xyz"))
        assert await next_of(other) == 3


async def test_what_is_said_at_once_goes_in_as_many_messages_as_may_be_that_large() -> None:
    """Both ends of a channel whose bound is below the usual one's."""
    async with a_site(max_calls=32) as site:
        calls = [await site.begin("echo") for _ in range(16)]
        assert [await next_of(call) for call in calls] == [0] * 16
        for call in calls:
            await call.write(stop("x" * (SMALL_MESSAGE_BYTES // 4)))
        assert [await next_of(call) for call in calls] == [SMALL_MESSAGE_BYTES // 4] * 16
        site.handlers.num_bytes = SMALL_MESSAGE_BYTES // 4
        loud = [await site.begin("write") for _ in range(16)]
        assert len({await next_of(call) for _ in range(4) for call in loud}) > 16, "all of them go on"


async def test_calls_of_all_trunks_together_are_bounded() -> None:
    async with a_site(max_calls=3) as site:
        calls = [await site.begin("echo") for _ in range(3)]
        assert [await next_of(call) for call in calls] == [0, 0, 0]
        assert (await failure_of(await site.begin("echo"))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls[0].cancel()
        await site.handlers.wait_for(lambda: site.handlers.live == 2)
        assert await next_of(await site.begin("echo")) == 0


@pytest.mark.parametrize("method", [f"/{SERVICE}/GetInfo", f"/{SERVICE}/Nothing", "/outrider.v1.TrunkService/Carry", ""])
async def test_other_methods_than_streams_of_both_ways_are_not_carried(method: str) -> None:
    async with a_site() as site:
        stream = await raw(site, begins(1, method), begins(2))
        (event,) = (await asyncio.wait_for(stream.read(), WAIT_S)).events
        assert (event.call, event.status.code) == (1, grpc.StatusCode.UNIMPLEMENTED.value[0])
        assert site.carrying.num_calls == 1
        stream.cancel()


async def test_a_request_that_is_none_ends_its_own_call() -> None:
    async with a_site() as site:
        stream = await raw(site, begins(1), begins(2), trunk_pb2.CallerEvent(call=1, message=b"\xff\xff\xff"))
        (event,) = (await asyncio.wait_for(stream.read(), WAIT_S)).events
        assert (event.call, event.status.code) == (1, grpc.StatusCode.INVALID_ARGUMENT.value[0])
        stream.cancel()


# --- what breaks a trunk ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "field"),
    [
        ((begins(1), begins(1)), "events.call"),
        ((trunk_pb2.CallerEvent(call=1),), "events.event"),
        ((begins(1), trunk_pb2.CallerEvent(call=1, num_read=1)), "events.num_read"),
        ((trunk_pb2.CallerEvent(call=1, begin=trunk_pb2.CallBegin(method=DECODE, timeout_us=0)),), "events.begin.timeout_us"),
    ],
)
async def test_what_cannot_be_said_ends_the_trunk_and_its_calls(events: Sequence[trunk_pb2.CallerEvent], field: str) -> None:
    async with a_site() as site:
        stream = await raw(site, begins(7), *events)
        failure = await failure_of(aiter(stream))
        assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(failure.details()).startswith(field)
        await site.handlers.wait_for(lambda: site.handlers.live == 0)
        assert site.carrying.num_calls == 0


async def test_a_bug_in_taking_in_what_is_said_leaves_no_handler_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_site() as site:
        call = await site.begin("wait")
        await site.handlers.wait_for(lambda: site.handlers.live == 1)
        monkeypatch.setattr("outrider.rpc.trunk_service._CarriedCall.hear", None)
        await call.write(stop("more"))
        assert (await failure_of(call)).code() is grpc.StatusCode.INTERNAL
        await site.handlers.wait_for(lambda: site.handlers.live == 0)
        assert (site.carrying.num_calls, site.carrying.num_trunks) == (0, 0)


async def test_what_is_said_of_a_call_that_has_ended_is_no_error() -> None:
    async with a_site() as site:
        late = (trunk_pb2.CallerEvent(call=5, num_read=1), trunk_pb2.CallerEvent(call=5, cancelled=trunk_pb2.CallCancelled()))
        first = trunk_pb2.CallerEvent(call=1, message=stop("echo").SerializeToString())
        stream = await raw(site, *late, begins(1), first)
        (event,) = (await asyncio.wait_for(stream.read(), WAIT_S)).events
        assert pb.DecodeResponse.FromString(event.message) == committed(0)
        stream.cancel()


async def test_callers_that_leave_together_end_all_their_handlers() -> None:
    async with a_site() as site:
        calls = [await site.begin("wait") for _ in range(4)]
        await site.handlers.wait_for(lambda: site.handlers.live == 4)
        await site.trunks.close()
        await site.handlers.wait_for(lambda: site.handlers.live == 0)
        for call in calls:
            assert (await failure_of(call)).code() is grpc.StatusCode.UNAVAILABLE
        assert site.trunks.num_calls == 0


async def test_a_server_that_stops_ends_the_calls_and_the_next_one_finds_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.rpc.server.CLOSE_GRACE_S", 10.0 * WAIT_S)  # which an open trunk must not take
    async with a_site() as site:
        old = await site.begin("wait")
        await site.handlers.wait_for(lambda: site.handlers.live == 1)
        address = site.server.address
        await asyncio.wait_for(site.server.stop(grace_s=0.0), WAIT_S)
        assert (await failure_of(old)).code() is grpc.StatusCode.UNAVAILABLE
        assert (site.handlers.live, site.carrying.num_calls, site.carrying.num_trunks, site.trunks.num_calls) == (0, 0, 0, 0)
        successor = RpcServer((address,))
        successor.add(SERVICE, add_VerifierServiceServicer_to_server, Handlers())
        successor.add_trunks()
        await successor.start()
        try:
            async with asyncio.timeout(WAIT_S):
                await site.channel.channel_ready()
            assert await next_of(await site.begin("echo")) == 0
        finally:
            await site.trunks.close()
            await successor.stop(grace_s=0.0)


# --- one message for what is said at once -----------------------------------------------------------------------------------


async def test_a_step_of_many_calls_is_one_message_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run = TrunkOutbox.run

    async def counted(self: TrunkOutbox[Any], write: Callable[[Sequence[Any]], Awaitable[None]]) -> None:
        async def noted(events: Sequence[Any]) -> None:
            if isinstance(events[0], trunk_pb2.HandlerEvent):
                sizes.append(len(events))
            await write(events)

        await run(self, noted)

    monkeypatch.setattr(TrunkOutbox, "run", counted)
    async with a_site() as site:
        calls = [await site.begin("echo") for _ in range(16)]
        assert [await next_of(call) for call in calls] == [0] * 16
        sizes.clear()
        for call in calls:
            await call.write(stop("xy"))
        assert [await next_of(call) for call in calls] == [2] * 16
    assert sizes[0] == 16
