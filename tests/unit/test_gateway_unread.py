"""Readers that take nothing: whose answer ends, when, and whose does not.

Run: pytest tests/unit/test_gateway_unread.py
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from fakes_client_stream import BOUND_S, Reader, messages, stream_to
from outrider.errors import Cancelled
from outrider.gateway.interruption import Interruption
from outrider.gateway.unread import UnreadAnswers

UNREAD_S = 8.0


class Interrupted:
    """Stands where an interruption does."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def interrupt(self, error: Exception) -> None:
        self.errors.append(error)


async def test_only_a_message_that_was_under_way_all_the_while_counts() -> None:
    reader, interrupted, answers = Reader(()), Interrupted(), UnreadAnswers(UNREAD_S)
    stream = stream_to(reader)

    def look(now_s: float) -> list[Exception]:
        answers._look_at(stream, cast(Interruption, interrupted), now_s)
        return interrupted.errors

    await stream.write(*messages("a"))
    assert not look(0.0)
    assert not look(100.0), "nothing is under way: the verifier thinks"
    for begin_s in (200.0, 300.0):
        reader.takes.clear()
        writing = asyncio.ensure_future(stream.write(*messages("b", "c")))
        await asyncio.sleep(0)
        assert not look(begin_s)
        assert not look(begin_s + UNREAD_S - 0.1)
        reader.takes.set()
        await asyncio.wait_for(writing, BOUND_S)
    assert not look(400.0), "a slow reader that reads"
    reader.takes.clear()
    writing = asyncio.ensure_future(stream.write(*messages("large")))
    await asyncio.sleep(0)
    for _ in range(3):
        reader.num_read += 1
        assert not look(400.0 + UNREAD_S * reader.num_read), "it reads what came before, on a trunk"
    reader.takes.set()
    await asyncio.wait_for(writing, BOUND_S)
    reader.takes.clear()
    writing = asyncio.ensure_future(stream.write(*messages("d")))
    await asyncio.sleep(0)
    assert not look(500.0)
    [error] = look(500.0 + UNREAD_S)
    assert isinstance(error, Cancelled)
    assert "has taken nothing of its answer for 8 s" in str(error)
    reader.takes.set()
    await writing


async def test_the_block_ends_and_nothing_is_watched_any_more() -> None:
    reader, answers = Reader(()), UnreadAnswers(0.02)
    reader.takes.clear()
    stream = stream_to(reader)
    with pytest.raises(Cancelled, match="has taken nothing"):
        async with asyncio.timeout(BOUND_S), answers.watched(stream):
            await stream.write(*messages("a"))
    assert len(answers) == len(answers._seen) == 0
    reader.takes.set()
    await stream.settle()
    assert reader.kinds == [["delta"]], "what was under way is taken when the reader comes back"
    async with answers.watched(stream):
        await stream.write(*messages("b"))
    assert len(answers) == 0


async def test_a_message_that_went_late_and_was_taken_is_not_unread() -> None:
    reader, interrupted, answers = Reader(), Interrupted(), UnreadAnswers(UNREAD_S)
    stream = stream_to(reader)
    await stream.write(*messages("started"))
    stream._write_waiting()
    await asyncio.wait_for(reader.got.wait(), BOUND_S)
    for _ in range(3):
        await asyncio.sleep(0)
    for now_s in (0.0, 100.0):
        answers._look_at(stream, cast(Interruption, interrupted), now_s)
    assert not interrupted.errors
    assert stream.unread is None
    stream.close()
