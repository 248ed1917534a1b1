"""What waits for what follows it, for whom, and how long: a client that takes bundles gets fewer messages, in the same order, never late.

Run: pytest tests/unit/test_gateway_client_stream.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import pytest

from fakes_client_stream import BOUND_S, DONE, FINISHED, STARTED, Reader, messages, stream_to
from outrider.gateway.client_stream import MAX_WAIT_S, ClientStream
from outrider.rpc.convert.bundle import unbundled
from outrider.rpc.handled_call import Metadata


async def write_all(stream: ClientStream, *calls: Sequence[str]) -> None:
    for kinds in calls:
        await stream.write(*messages(*kinds))


ANSWER = ([STARTED], ["a"], ["b"], ["c", FINISHED], [DONE])


async def test_what_is_due_together_is_one_message() -> None:
    reader = Reader()
    await write_all(stream_to(reader), *ANSWER)
    assert reader.kinds == [[STARTED, "delta"], ["delta"], ["delta", FINISHED, DONE]]
    assert [each.delta.text for one in reader.messages for each in unbundled(one) if each.HasField("delta")] == ["a", "b", "c"]


@pytest.mark.parametrize("metadata", [(), (("outrider-takes-bundles", "0"),), (("traceparent", "1"),)])
async def test_who_does_not_ask_for_bundles_gets_none(metadata: Metadata) -> None:
    reader = Reader(metadata)
    stream = stream_to(reader)
    for num, kinds in enumerate(ANSWER, 1):
        await write_all(stream, kinds)
        assert len(reader.messages) == sum(map(len, ANSWER[:num])), "nothing waits"
    assert reader.kinds == [[STARTED], *[["delta"]] * 3, [FINISHED], [DONE]]


async def test_what_nothing_follows_in_time_goes_alone() -> None:
    reader = Reader()
    stream = stream_to(reader)
    begin_s = asyncio.get_running_loop().time()
    await write_all(stream, [STARTED])
    assert not reader.messages
    async with asyncio.timeout(BOUND_S):
        await reader.got.wait()
    assert asyncio.get_running_loop().time() - begin_s >= 0.9 * MAX_WAIT_S  # the loop's timers are a little early by its own clock
    await write_all(stream, ["a"])
    assert reader.kinds == [[STARTED], ["delta"]]


async def test_the_end_of_one_sample_does_not_make_another_ones_text_wait() -> None:
    reader = Reader()
    await write_all(stream_to(reader), [FINISHED], ["a"])
    assert reader.kinds == [[FINISHED, "delta"]]


@pytest.mark.parametrize("kind", ["a", FINISHED])
async def test_a_message_that_went_late_is_waited_for_and_keeps_its_place(kind: str) -> None:
    reader = Reader()
    reader.takes.clear()
    stream = stream_to(reader)
    await write_all(stream, [STARTED])
    stream._write_waiting()  # its time is over, and the reader slow
    writing = asyncio.ensure_future(write_all(stream, [kind]))
    for _ in range(8):
        await asyncio.sleep(0)
    assert not writing.done()
    reader.takes.set()
    async with asyncio.timeout(BOUND_S):
        await writing
    assert reader.kinds == [[STARTED], [kind if kind == FINISHED else "delta"]]


async def test_what_a_late_write_raises_is_raised_by_the_next_one() -> None:
    reader = Reader()
    reader.error = grpc.aio.InternalError("the caller left")
    stream = stream_to(reader)
    await write_all(stream, [STARTED])
    stream._write_waiting()
    with pytest.raises(grpc.aio.InternalError):
        await write_all(stream, ["a"])


async def test_settling_writes_what_waits() -> None:
    reader = Reader()
    stream = stream_to(reader)
    await write_all(stream, [STARTED])
    await stream.settle()
    assert reader.kinds == [[STARTED]]


async def test_closing_drops_what_waits_and_its_timer() -> None:
    reader = Reader()
    stream = stream_to(reader)
    await write_all(stream, [STARTED])
    stream.close()
    reached = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * MAX_WAIT_S, reached.set)
    async with asyncio.timeout(BOUND_S):
        await reached.wait()
    assert not reader.messages
