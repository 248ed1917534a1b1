"""Idle time is waited for, has to last, and ends at once.

pytest tests/unit/test_gateway_idleness.py
"""

from __future__ import annotations

import asyncio

import pytest

from outrider.gateway.idleness import Idleness, NoLongerIdle

TIMEOUT_S = 30.0


async def test_a_request_that_came_and_went_begins_the_wait_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    idleness, slept = Idleness(0), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            idleness.observe(1)
            idleness.observe(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await idleness.wait(7.0)
    assert slept == [7.0, 7.0]


async def test_a_gateway_with_a_request_is_waited_for() -> None:
    idleness = Idleness(0)
    idleness.observe(1)
    waiting = asyncio.ensure_future(idleness.wait(0.0))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    with pytest.raises(NoLongerIdle):
        async with idleness.used():
            raise AssertionError("never entered")
    idleness.observe(0)
    await asyncio.wait_for(waiting, TIMEOUT_S)


async def test_as_many_requests_as_may_be_live_do_not_disturb() -> None:
    idleness, ended = Idleness(2), asyncio.Event()

    async def work() -> None:
        try:
            async with idleness.used():
                entered.set()
                await asyncio.Event().wait()
        finally:
            ended.set()

    entered = asyncio.Event()
    task = asyncio.ensure_future(work())
    await asyncio.wait_for(entered.wait(), TIMEOUT_S)
    for num_live in (1, 2, 1, 2):
        idleness.observe(num_live)
    await idleness.wait(0.0)
    assert not ended.is_set()
    idleness.observe(3)
    with pytest.raises(NoLongerIdle):
        await asyncio.wait_for(task, TIMEOUT_S)


async def test_a_cancelled_user_of_idle_time_stays_cancelled() -> None:
    """A gateway that ends and a request that comes at the same moment: the end counts."""
    idleness, entered = Idleness(0), asyncio.Event()

    async def work() -> None:
        async with idleness.used():
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await asyncio.wait_for(entered.wait(), TIMEOUT_S)
    task.cancel()
    idleness.observe(1)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, TIMEOUT_S)
