"""What a caller says comes first, then as it is said, whether by grpc's iterator or by the pipe of a call within the process.

Run: pytest tests/unit/test_rpc_requests.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from outrider.errors import InvalidRequest
from outrider.rpc.pipe import MAX_UNREAD, Pipe
from outrider.rpc.requests import Requests

BOUND_S = 30.0  # against hanging
UNREADABLE = -1
EITHER = pytest.mark.parametrize("is_pipe", [False, True], ids=["iterator", "pipe"])


class Caller:
    """Says numbers to a handler's side."""

    def __init__(self, *, is_pipe: bool) -> None:
        self.pipe: Pipe[int] = Pipe()
        self.said = Requests(self.pipe if is_pipe else self._through())
        self.told: list[int] = []
        self.refused: list[InvalidRequest] = []

    async def _through(self) -> AsyncIterator[int]:
        async for number in self.pipe:
            if number == UNREADABLE:
                raise InvalidRequest("request", "cannot be read")
            yield number

    def take(self, number: int) -> bool:
        """All up to nine are wanted."""
        self.told.append(number)
        return number < 9

    async def until_told(self, num: int) -> None:
        async with asyncio.timeout(BOUND_S):
            while len(self.told) < num:
                await asyncio.sleep(0)


@EITHER
async def test_the_first_is_there_and_further_ones_are_told_in_order(*, is_pipe: bool) -> None:
    caller = Caller(is_pipe=is_pipe)
    for number in (1, 2, 3):
        await caller.pipe.send(number)
    assert await caller.said.first(BOUND_S) == 1
    caller.said.tell(caller.take, caller.refused.append)
    await caller.pipe.send(4)
    await caller.until_told(3)
    assert caller.told == [2, 3, 4]
    await caller.said.close()


@EITHER
@pytest.mark.parametrize("num_early", [0, 1, 2])
async def test_nothing_is_told_beyond_the_last_that_is_wanted(num_early: int, *, is_pipe: bool) -> None:
    """num_early: said before anybody listens."""
    caller = Caller(is_pipe=is_pipe)
    await caller.pipe.send(1)
    await caller.said.first(BOUND_S)
    for number in (9, 5)[:num_early]:
        await caller.pipe.send(number)
    caller.said.tell(caller.take, caller.refused.append)
    for number in (9, 5)[num_early:]:
        await caller.pipe.send(number)
    await caller.until_told(1)
    await caller.pipe.send(6)
    await asyncio.sleep(0)
    assert caller.told == [9]
    await caller.said.close()


@EITHER
async def test_nothing_is_told_after_the_end(*, is_pipe: bool) -> None:
    caller = Caller(is_pipe=is_pipe)
    await caller.pipe.send(1)
    await caller.said.first(BOUND_S)
    caller.said.tell(caller.take, caller.refused.append)
    await caller.said.close()
    await caller.pipe.send(2)
    for _ in range(4):
        await asyncio.sleep(0)
    assert caller.told == []


async def test_what_is_no_message_is_told_at_once_and_ends_the_telling() -> None:
    caller = Caller(is_pipe=False)
    for number in (1, 2, UNREADABLE, 3):
        await caller.pipe.send(number)
    assert await caller.said.first(BOUND_S) == 1
    caller.said.tell(caller.take, caller.refused.append)
    async with asyncio.timeout(BOUND_S):
        while not caller.refused:
            await asyncio.sleep(0)
    await caller.said.close()
    assert caller.told == [2]
    assert [str(error) for error in caller.refused] == ["request: cannot be read"]


@EITHER
async def test_a_caller_that_says_nothing_is_left_in_time(*, is_pipe: bool) -> None:
    caller = Caller(is_pipe=is_pipe)
    with pytest.raises(TimeoutError):
        await caller.said.first(0.01)


@EITHER
async def test_a_caller_may_end_without_a_word(*, is_pipe: bool) -> None:
    caller = Caller(is_pipe=is_pipe)
    caller.pipe.close()
    assert await asyncio.wait_for(caller.said.first(BOUND_S), BOUND_S) is None


async def test_a_pipe_that_tells_has_room_for_any_number_and_needs_no_task() -> None:
    caller = Caller(is_pipe=True)
    await caller.pipe.send(1)
    await caller.said.first(BOUND_S)
    caller.said.tell(caller.take, caller.refused.append)
    for _ in range(2 * MAX_UNREAD):
        await asyncio.wait_for(caller.pipe.send(0), BOUND_S)
    assert caller.pipe.num_unread == 0
    assert len(caller.told) == 2 * MAX_UNREAD
    assert asyncio.all_tasks() == {asyncio.current_task()}
