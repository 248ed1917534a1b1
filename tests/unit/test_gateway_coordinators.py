"""A gateway's coordinators by themselves: who is asked, who is not asked again, and what is bounded.

pytest tests/unit/test_gateway_coordinators.py
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

import pytest

from drafter_service.settings import parse_settings
from fakes_coordinator import WAIT_S, FakeFleet, coordinator_over, fake_replica
from outrider.errors import InvalidRequest, Overloaded, Unavailable
from outrider.gateway.coordinators import MAX_NAMED, CoordinatorLimits, Coordinators
from outrider.gateway.placing import FIRST_DIGEST_TOKENS, digest_lens, prefix_digests
from outrider.gateway.topology import Topology, merged
from outrider.types.fleet import MAX_PREFIX_DIGESTS, Placement, PlacementWish

PATIENT = CoordinatorLimits(place_timeout_s=WAIT_S, retry_s=0.01)
WISH = PlacementWish("r")


def placing_fleet() -> FakeFleet:
    return FakeFleet(choose=lambda wish: Placement("h:1", (), (), 0.0, ""))


async def test_who_did_not_place_in_time_is_not_asked_again_before_it_has_answered() -> None:
    fleet = placing_fleet()
    fleet.is_slow = True
    async with coordinator_over(fleet) as address, contextlib.AsyncExitStack() as stack:
        coordinators = Coordinators([address], replace(PATIENT, place_timeout_s=0.05))
        stack.push_async_callback(coordinators.close)
        assert await coordinators.place(WISH) is None, "nobody knows yet whether it answers"
        await coordinators.refresh()
        assert await coordinators.place(WISH) is None, "it took too long"
        coordinators._limits, fleet.is_slow, num_asked = PATIENT, False, fleet.num_asked
        assert await coordinators.place(WISH) is None
        assert fleet.num_asked == num_asked, "it was not asked"
        await coordinators.refresh()
        assert await coordinators.place(WISH) is not None


async def test_what_places_nothing_is_told_of_once_however_many_ask(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(wish: PlacementWish) -> Placement:
        raise Unavailable(f"no verifier fits {wish.request_id}")

    fleet = FakeFleet(choose=refuse)
    async with coordinator_over(fleet) as address, contextlib.AsyncExitStack() as stack:
        coordinators = Coordinators([address], PATIENT)
        stack.push_async_callback(coordinators.close)
        with caplog.at_level(logging.INFO, logger="outrider.gateway.coordinators"):
            for number in range(4):
                await coordinators.refresh()
                assert await coordinators.place(PlacementWish(str(number))) is None
            fleet.choose = placing_fleet().choose
            await coordinators.refresh()
            assert await coordinators.place(WISH) is not None
            fleet.choose = refuse
            assert await coordinators.place(WISH) is None
    told = [record.getMessage().removeprefix(f"coordinator {address} ") for record in caplog.records]
    assert told == [
        f"answers, with epoch {fleet.epoch} and 0 replicas",
        "placed nothing: no verifier fits 0",
        "placed nothing: no verifier fits r",
    ]


async def test_a_place_that_nobody_waits_for_any_more_is_given_back() -> None:
    fleet = placing_fleet()
    fleet.is_slow = True
    async with coordinator_over(fleet) as address, contextlib.AsyncExitStack() as stack:
        coordinators = Coordinators([address], replace(PATIENT, place_timeout_s=0.05))
        stack.push_async_callback(coordinators.close)
        await coordinators.refresh()
        assert await coordinators.place(PlacementWish("too late")) is None
        await fleet.until(lambda: fleet.given_up == ["too late"])
        await coordinators.refresh()
        coordinators._limits, num_asked = PATIENT, fleet.num_asked
        waiting = asyncio.ensure_future(coordinators.place(PlacementWish("cancelled")))
        async with asyncio.timeout(WAIT_S):
            while fleet.num_asked == num_asked:
                await asyncio.sleep(0)
        waiting.cancel()
        await fleet.until(lambda: fleet.given_up == ["too late", "cancelled"])


async def test_what_was_refused_needs_no_end() -> None:
    fleet = FakeFleet(refuse=Unavailable("no verifier fits"))
    async with coordinator_over(fleet) as address:
        coordinators = Coordinators([address], PATIENT)
        await coordinators.refresh()
        assert await coordinators.place(WISH) is None
        await coordinators.refresh()
        fleet.refuse = Overloaded("full")
        with pytest.raises(Overloaded):
            await coordinators.place(WISH)
        await coordinators.close()
    assert (len(fleet.wishes), fleet.given_up, fleet.finished) == (2, [], [])


async def test_reports_under_way_are_bounded_and_go_out_before_the_end() -> None:
    fleet = placing_fleet()
    async with coordinator_over(fleet) as address:
        coordinators = Coordinators([address], replace(PATIENT, max_finishes=2, finish_timeout_s=WAIT_S))
        await coordinators.refresh()
        placed = await coordinators.place(WISH)
        assert placed is not None
        for _ in range(3):
            coordinators.finish(placed, 1, 2.0, "")
        await coordinators.close()
    assert (len(fleet.finished), coordinators.num_dropped) == (2, 1)


class Told:
    """What coordinators tell; nobody is known while nothing was."""

    def __init__(self) -> None:
        self.topologies: list[Topology] = []

    async def tell(self, topology: Topology) -> None:
        self.topologies.append(topology)

    def nobody(self) -> bool:
        return not any(topology.verifiers for topology in self.topologies)


async def test_the_fleet_is_asked_for_often_while_no_verifier_is_known_and_seldom_then() -> None:
    fleet, told = FakeFleet(), Told()
    async with coordinator_over(fleet) as address, contextlib.AsyncExitStack() as stack:
        coordinators = Coordinators([address], replace(PATIENT, refresh_s=3600.0))
        stack.push_async_callback(coordinators.close)
        coordinators.watch(told.tell, told.nobody)
        await asyncio.wait_for(coordinators.told(), WAIT_S)
        await fleet.until(lambda: fleet.num_topologies >= 3)
        fleet.announce(fake_replica(), 0.0)
        async with asyncio.timeout(WAIT_S):
            while told.nobody():
                await asyncio.sleep(0)
        num_told = len(told.topologies)
        await coordinators.refresh()
        assert (len(told.topologies), told.topologies[-1].verifiers) == (num_told, (fake_replica(),))


async def test_why_nobody_is_known_says_who_was_asked_and_what_the_fleet_has() -> None:
    fleet, told = FakeFleet(), Told()
    async with contextlib.AsyncExitStack() as stack, coordinator_over(fleet) as address:
        coordinators = Coordinators([address], PATIENT)
        stack.push_async_callback(coordinators.close)
        assert coordinators.why_nobody(0.5) == f"no coordinator answered ({address}) within 0.5 s"
        coordinators.watch(told.tell, told.nobody)
        await asyncio.wait_for(coordinators.told(), WAIT_S)
        assert coordinators.why_nobody(0.5) == f"no verifier announced itself to a coordinator ({address}) within 0.5 s"
        for number in range(MAX_NAMED + 2):
            fleet.announce(replace(fake_replica(f"v-{number}", f"h:{number}"), draining=True), 0.0)
        async with asyncio.timeout(WAIT_S):
            while told.nobody():
                await asyncio.sleep(0)
        named = ", ".join(f"v-{number} at h:{number}" for number in range(MAX_NAMED))
        expected = f"the fleet has no verifier that is not draining ({named} and 2 more; told by {address}) within 0.5 s"
        assert coordinators.why_nobody(0.5) == expected


async def test_nobody_waits_for_who_tells_no_more() -> None:
    async def fail(topology: Topology) -> None:
        raise AssertionError("a fault of the gateway's own")

    async with coordinator_over(FakeFleet()) as address, contextlib.AsyncExitStack() as stack:
        coordinators = Coordinators([address], PATIENT)
        stack.push_async_callback(coordinators.close)
        coordinators.watch(fail, lambda: True)
        await asyncio.wait_for(coordinators.told(), WAIT_S)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_a_replica_that_two_coordinators_know_the_later_ones_word_counts(order: tuple[int, int]) -> None:
    older = Topology(1, (fake_replica("a", "h:1"), fake_replica("b", "h:2")))
    newer = Topology(2, (fake_replica("a", "h:3"),))
    both = merged([(older, newer)[place] for place in order])
    assert both is not None
    assert (both.epoch, {replica.replica_id: replica.endpoint for replica in both.replicas}) == (2, {"a": "h:3", "b": "h:2"})
    assert merged([]) is None


def test_equal_beginnings_have_equal_digests_within_one_salt() -> None:
    long = list(range(10 * FIRST_DIGEST_TOKENS))
    digests = prefix_digests(long, "a")
    assert len(digests) == 4, "of 1, 2, 4 and 8 times as many tokens as the first"
    other = [*long[: 3 * FIRST_DIGEST_TOKENS], 0, *long[3 * FIRST_DIGEST_TOKENS + 1 :]]
    assert [one == two for one, two in zip(digests, prefix_digests(other, "a"), strict=True)] == [True, True, False, False]
    assert not set(digests) & set(prefix_digests(long, "b"))
    assert prefix_digests(long[: FIRST_DIGEST_TOKENS - 1], "a") == ()
    for num, length in enumerate(digest_lens(len(digests)), start=1):
        assert prefix_digests(long[:length], "a") == digests[:num] != prefix_digests(long[: length - 1], "a")
    assert len(prefix_digests([1] * (FIRST_DIGEST_TOKENS << MAX_PREFIX_DIGESTS), "a")) == MAX_PREFIX_DIGESTS


def test_a_drafter_inside_a_verifiers_process_is_no_member_of_its_own() -> None:
    with pytest.raises(InvalidRequest, match="announced by the verifier") as caught:
        parse_settings(["--model", "m", "--coordinator", "h:1", "--replica-id", "d"], serves=False)
    assert caught.value.field == "--coordinator"
