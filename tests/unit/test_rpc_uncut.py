"""What waits for a coroutine may be cancelled, and the coroutine goes on where it was.

Run: pytest tests/unit/test_rpc_uncut.py
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from outrider.rpc.uncut import Uncut

BOUND_S = 30.0  # against hanging


class Writing:
    """Waits for `taken` twice over, as a write waits for flow control, with a turn of the loop between."""

    def __init__(self, error: Exception | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.taken: list[asyncio.Future[None]] = [loop.create_future(), loop.create_future()]
        self.error = error
        self.steps: list[str] = []

    async def write(self) -> None:
        try:
            await self.taken[0]
            self.steps.append("first")
            await asyncio.sleep(0)
            await self.taken[1]
            if self.error is not None:
                raise self.error
            self.steps.append("second")
        finally:
            self.steps.append("left")


async def turns(num: int = 8) -> None:
    for _ in range(num):
        await asyncio.sleep(0)


async def test_it_returns_when_the_coroutine_has_and_takes_no_task() -> None:
    writing = Writing()
    waiting = asyncio.ensure_future(Uncut(writing.write()).rest())
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task(), waiting}
    for taken in writing.taken:
        assert not waiting.done()
        taken.set_result(None)
        await turns()
    assert waiting.done()
    assert writing.steps == ["first", "second", "left"]


@pytest.mark.parametrize("num_taken", [0, 1])
async def test_a_cancelled_wait_leaves_it_where_it_was_however_often(num_taken: int) -> None:
    writing = Writing()
    uncut = Uncut(writing.write())
    for taken in writing.taken[:num_taken]:
        taken.set_result(None)
    for _ in range(2):
        waiting = asyncio.ensure_future(uncut.rest())
        await turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert not any(taken.cancelled() for taken in writing.taken)
    assert "left" not in writing.steps
    for taken in writing.taken[num_taken:]:
        taken.set_result(None)
    await asyncio.wait_for(uncut.rest(), BOUND_S)
    assert writing.steps == ["first", "second", "left"]
    await asyncio.wait_for(uncut.rest(), BOUND_S)  # nothing is left


async def test_what_it_waits_for_may_be_done_before_it_is_waited_for_again() -> None:
    writing = Writing()
    uncut = Uncut(writing.write())
    waiting = asyncio.ensure_future(uncut.rest())
    await turns()
    waiting.cancel()
    for taken in writing.taken:
        taken.set_result(None)
    await turns()
    await asyncio.wait_for(uncut.rest(), BOUND_S)
    assert writing.steps == ["first", "second", "left"]


async def test_its_error_comes_once() -> None:
    writing = Writing(ValueError("broken"))
    uncut = Uncut(writing.write())
    for taken in writing.taken:
        taken.set_result(None)
    with pytest.raises(ValueError, match="broken"):
        await asyncio.wait_for(uncut.rest(), BOUND_S)
    await asyncio.wait_for(uncut.rest(), BOUND_S)


async def test_an_error_of_what_it_waits_for_is_the_coroutines_to_handle() -> None:
    writing = Writing()
    uncut = Uncut(writing.write())
    writing.taken[0].set_exception(ConnectionError("the reader left"))
    with pytest.raises(ConnectionError, match="the reader left"):
        await asyncio.wait_for(uncut.rest(), BOUND_S)
    assert writing.steps == ["left"]


async def given_up() -> tuple[Writing, Uncut]:
    """A write that nobody waits for any more."""
    writing = Writing()
    uncut = Uncut(writing.write())
    waiting = asyncio.ensure_future(uncut.rest())
    await turns()
    waiting.cancel()
    await turns()
    return writing, uncut


async def test_what_is_left_can_be_given_up() -> None:
    writing, uncut = await given_up()
    uncut.close()
    uncut.close()
    assert writing.steps == ["left"]
    assert not writing.taken[0].done(), "grpc may still end the write, to nobody"


@pytest.mark.parametrize("is_early", [True, False])
async def test_how_a_write_that_was_given_up_ends_is_nobodys_complaint(is_early: bool) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    writing, uncut = await given_up()
    taken = writing.taken
    if is_early:
        taken[0].set_exception(ConnectionError("the reader left"))
    uncut.close()
    if not is_early:
        taken[0].set_exception(ConnectionError("the reader left"))
    await turns()
    taken.clear()
    del writing, uncut
    gc.collect()
    assert complaints == []
