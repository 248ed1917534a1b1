"""Admission, unique ids, abort and drain of live requests, without a gateway around them.

pytest tests/unit/test_gateway_live_requests.py
"""

from __future__ import annotations

import asyncio

import pytest

from outrider.errors import AlreadyExists, Cancelled, Overloaded, Unavailable, UnknownSession
from outrider.gateway import live_requests
from outrider.gateway.interruption import Interruption
from outrider.gateway.limits import GatewayLimits
from outrider.gateway.live_requests import LiveRequests


async def hold(live: LiveRequests, request_id: str, num_samples: int = 1, admitted: asyncio.Event | None = None) -> None:
    async with live.admit(request_id, num_samples):
        if admitted is not None:
            admitted.set()
        await asyncio.Event().wait()


async def test_ids_are_unique_while_live_and_free_afterwards() -> None:
    live = LiveRequests(GatewayLimits())
    async with live.admit("a", 1):
        with pytest.raises(AlreadyExists):
            async with live.admit("a", 1):
                raise AssertionError("never entered")
    async with live.admit("a", 1) as again, live.admit("", 1) as minted, live.admit("", 1) as other:
        assert again == "a"
        assert len({again, minted, other}) == 3
    assert (len(live), live.num_samples) == (0, 0)


async def test_requests_and_samples_are_bounded() -> None:
    live = LiveRequests(GatewayLimits(max_live_requests=2, max_live_samples=5))
    async with live.admit("a", 4):
        with pytest.raises(Overloaded, match="samples"):
            async with live.admit("b", 2):
                raise AssertionError("never entered")
        async with live.admit("b", 1):
            with pytest.raises(Overloaded, match="requests"):
                async with live.admit("c", 1):
                    raise AssertionError("never entered")
    assert (len(live), live.num_samples) == (0, 0)


async def test_an_aborted_request_ends_with_cancelled_and_leaves_its_task_alive() -> None:
    live, admitted, after = LiveRequests(GatewayLimits()), asyncio.Event(), asyncio.Event()

    async def work() -> str:
        with pytest.raises(Cancelled, match="'a' was aborted"):
            await hold(live, "a", admitted=admitted)
        await after.wait()
        return "went on"

    task = asyncio.ensure_future(work())
    await admitted.wait()
    live.abort("a")
    live.abort("a")
    await live.wait_empty()
    after.set()
    assert await task == "went on"
    with pytest.raises(UnknownSession):
        live.abort("a")


async def test_a_request_that_takes_over_begins_when_the_one_before_it_holds_nothing() -> None:
    live, admitted, freed = LiveRequests(GatewayLimits(max_live_requests=1, max_live_samples=1)), asyncio.Event(), asyncio.Event()

    async def former() -> None:
        async with live.admit("a", 1):
            admitted.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # what it held is freed in steps
                freed.set()

    task = asyncio.ensure_future(former())
    await admitted.wait()
    with pytest.raises(AlreadyExists, match="take it over"):
        async with live.admit("a", 1):
            raise AssertionError("never entered")
    async with live.admit("a", 1, takes_over=True):
        assert freed.is_set()
        assert (len(live), live.num_samples) == (1, 1)
        with pytest.raises(Cancelled, match="'a' was taken over"):
            await task
    assert (len(live), live.num_samples) == (0, 0)


async def test_of_several_that_take_over_at_once_one_is_left() -> None:
    live, num_inside = LiveRequests(GatewayLimits()), 0

    async def hold_alone() -> None:
        nonlocal num_inside
        async with live.admit("a", 1, takes_over=True):
            num_inside += 1
            try:
                assert num_inside == 1
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                num_inside -= 1

    tasks = [asyncio.ensure_future(hold_alone()) for _ in range(8)]
    await asyncio.wait(tasks[:-1])
    assert all(isinstance(task.exception(), Cancelled) for task in tasks[:-1])
    assert (len(live), num_inside) == (1, 1)
    live.abort("a")
    with pytest.raises(Cancelled, match="aborted"):
        await tasks[-1]


async def test_who_does_not_let_go_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_requests, "TAKE_OVER_TIMEOUT_S", 0.05)
    live, admitted, release = LiveRequests(GatewayLimits()), asyncio.Event(), asyncio.Event()

    async def stuck() -> None:
        async with live.admit("a", 1):
            admitted.set()
            try:
                await asyncio.Event().wait()
            finally:
                await release.wait()

    task = asyncio.ensure_future(stuck())
    await admitted.wait()
    with pytest.raises(AlreadyExists, match="has not let go"):
        async with live.admit("a", 1, takes_over=True):
            raise AssertionError("never entered")
    release.set()
    with pytest.raises(Cancelled):
        await task


async def test_a_new_id_takes_over_nobody() -> None:
    live = LiveRequests(GatewayLimits())
    async with live.admit("a", 1), live.admit("", 1, takes_over=True), live.admit("b", 1, takes_over=True):
        assert len(live) == 3


async def test_a_cancellation_from_elsewhere_stays_a_cancellation() -> None:
    live, admitted = LiveRequests(GatewayLimits()), asyncio.Event()
    task = asyncio.ensure_future(hold(live, "a", admitted=admitted))
    await admitted.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(live) == 0


async def test_when_both_happen_at_once_the_cancellation_wins() -> None:
    live, admitted = LiveRequests(GatewayLimits()), asyncio.Event()
    task = asyncio.ensure_future(hold(live, "a", admitted=admitted))
    await admitted.wait()
    live.abort("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(live) == 0


async def test_a_drain_ends_everything_that_is_left() -> None:
    live = LiveRequests(GatewayLimits())
    events = [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.ensure_future(hold(live, f"r{index}", admitted=event)) for index, event in enumerate(events)]
    await asyncio.gather(*(event.wait() for event in events))
    live.end_all(Unavailable("shutting down"))
    assert all(isinstance(outcome, Unavailable) for outcome in await asyncio.gather(*tasks, return_exceptions=True))
    await live.wait_empty()


async def test_an_interruption_after_the_block_changes_nothing() -> None:
    async with Interruption() as interruption:
        pass
    interruption.interrupt(Cancelled("late"))
    await asyncio.sleep(0)


async def test_an_error_raised_while_cleaning_up_is_not_hidden() -> None:
    async def work() -> None:
        async with Interruption() as interruption:
            interruption.interrupt(Cancelled("now"))
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("clean-up failed")

    with pytest.raises(ValueError, match="clean-up failed"):
        await work()
