"""What is said on a trunk before a message can be written goes with it, up to a bound, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from outrider.rpc.trunk_outbox import MAX_BATCH_BYTES, MAX_WAITING_BYTES, MAX_WAITING_EVENTS, TrunkOutbox
from outrider.v1 import trunk_pb2

WAIT_S = 5.0


class Writer:
    """Notes what is written at a time; each write ends when it is let."""

    def __init__(self) -> None:
        self.written: list[list[trunk_pb2.HandlerEvent]] = []
        self.may_end = asyncio.Semaphore(0)

    async def write(self, events: Sequence[trunk_pb2.HandlerEvent]) -> None:
        self.written.append(list(events))
        await self.may_end.acquire()


async def running(outbox: TrunkOutbox[Any], write: Callable[[Sequence[Any]], Awaitable[None]]) -> asyncio.Task[None]:
    task = asyncio.ensure_future(outbox.run(write))
    await asyncio.sleep(0)
    return task


def said(call: int, num_bytes: int = 1) -> trunk_pb2.HandlerEvent:
    return trunk_pb2.HandlerEvent(call=call, message=b"x" * num_bytes)


async def test_what_is_said_in_one_turn_or_during_a_write_is_one_message() -> None:
    outbox: TrunkOutbox[trunk_pb2.HandlerEvent] = TrunkOutbox()
    writer = Writer()
    task = await running(outbox, writer.write)

    async def handler(number: int) -> None:
        outbox.add(said(number))

    await asyncio.gather(*(handler(number) for number in range(64)))
    await asyncio.sleep(0)
    for number in range(64, 70):
        outbox.add(said(number))
        await asyncio.sleep(0)
    assert outbox.num_waiting == 6
    writer.may_end.release()
    outbox.close()
    writer.may_end.release()
    await asyncio.wait_for(task, WAIT_S)
    assert [[event.call for event in message] for message in writer.written] == [list(range(64)), list(range(64, 70))]


async def test_a_message_is_bounded_unless_a_single_event_is_larger() -> None:
    outbox: TrunkOutbox[trunk_pb2.HandlerEvent] = TrunkOutbox()
    for number, share in enumerate((0.4, 0.4, 0.4, 1.5, 0.1)):
        outbox.add(said(number, int(share * MAX_BATCH_BYTES)))
    outbox.close()
    writer = Writer()
    for _ in range(9):
        writer.may_end.release()
    await asyncio.wait_for(outbox.run(writer.write), WAIT_S)
    assert [[event.call for event in message] for message in writer.written] == [[0, 1], [2], [3], [4]]
    outbox.add(said(9))
    assert outbox.num_waiting == 0, "said to nobody"


@pytest.mark.parametrize(("num_events", "num_bytes"), [(MAX_WAITING_EVENTS, 1), (3, MAX_WAITING_BYTES // 3 - 100)])
async def test_whoever_has_too_much_said_waits_until_it_is_taken(num_events: int, num_bytes: int) -> None:
    outbox: TrunkOutbox[trunk_pb2.HandlerEvent] = TrunkOutbox()
    for number in range(num_events - 1):
        outbox.add(said(number, num_bytes))
    assert not outbox.is_full
    await asyncio.wait_for(outbox.room(), WAIT_S)
    for number in range(2):
        outbox.add(said(number, num_bytes))
    assert outbox.is_full
    waiting = asyncio.ensure_future(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    writer = Writer()
    task = await running(outbox, writer.write)
    await asyncio.wait_for(waiting, WAIT_S)
    assert len(writer.written) == 1, "it is being written, and need not have been"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
