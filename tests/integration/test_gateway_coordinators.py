"""Coordinators that are lost, slow, two, or tell of others than before: no request fails for it, and drafters stay known.

pytest tests/integration/test_gateway_coordinators.py
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from coordinated_gateways import PATIENT, REQUEST, TOKENS, Fleet, coordinated
from fakes_coordinator import WAIT_S, FakeFleet, coordinator_over, fake_replica
from fakes_verifier import FakeVerifier, Hold, gateway_over, serving
from outrider.errors import OutriderError, Unavailable
from outrider.gateway.topology import Topology
from outrider.gateway.verifiers import MAX_MISSED_TOPOLOGIES, VerifierPool
from outrider.rpc.status import RemoteFailure
from outrider.types.fleet import PairMeasurement, Role
from outrider.types.generation import DraftWishes


async def test_a_lost_coordinator_costs_no_request_and_is_used_again_when_it_is_back() -> None:
    fleet = FakeFleet()
    async with contextlib.AsyncExitStack() as stack:
        verifier = FakeVerifier(TOKENS)
        address = await stack.enter_async_context(serving(verifier))
        fleet.announce(fake_replica("verifier-0", address), 0.0)
        async with coordinator_over(fleet) as coordinator:
            under_test = await stack.enter_async_context(gateway_over(coordinators=(coordinator,), coordination=PATIENT, verifiers=()))
            await under_test.client.generate_once(REQUEST, timeout_s=WAIT_S)
            await fleet.until(lambda: len(fleet.finished) == 1)
        for _ in range(3):
            await under_test.client.generate_once(REQUEST, timeout_s=WAIT_S)
        assert (len(fleet.wishes), len(verifier.starts)) == (1, 4)
        num_before = fleet.num_topologies
        async with coordinator_over(fleet, coordinator):
            await fleet.until(lambda: fleet.num_topologies >= num_before + 2)
            await under_test.client.generate_once(REQUEST, timeout_s=WAIT_S)
            await fleet.until(lambda: len(fleet.finished) == 2)
    assert len(fleet.wishes) == 2


async def paired_and_alone(fleet: Fleet) -> None:
    """The gateway has heard that its verifiers are connected to a drafter each, and then hears of no coordinator any more."""
    for number, address in enumerate(fleet.addresses):
        pairs = {f"h:{number}": PairMeasurement(connected=True), "h:7": PairMeasurement()}
        fleet.fleet.announce(replace(fake_replica(f"verifier-{number}", address), pairs=pairs), 0.0)
        fleet.fleet.announce(fake_replica(f"drafter-{number}", f"h:{number}", Role.DRAFTER), 0.0)
    num_before = fleet.fleet.num_topologies
    await fleet.fleet.until(lambda: fleet.fleet.num_topologies >= num_before + 3)
    fleet.fleet.refuse = Unavailable("it is going")


async def test_without_a_coordinator_each_verifier_is_named_the_drafters_it_was_last_told_to_have() -> None:
    async with coordinated(FakeFleet()) as fleet:
        await paired_and_alone(fleet)
        for _ in range(4):
            assert await fleet.answer() == tuple(TOKENS)
        starts = [[list(start.drafters) for start in verifier.starts] for verifier in (fleet.first, fleet.second)]
    assert [len(starts[0]), len(starts[1])] == [2, 2], "they take turns"
    assert starts == [[["h:0"]] * 2, [["h:1"]] * 2]


async def test_without_a_coordinator_what_leaves_its_verifier_is_drafted_for_by_the_next_ones_own() -> None:
    async with coordinated(FakeFleet()) as fleet:
        await paired_and_alone(fleet)
        for verifier in (fleet.first, fleet.second):
            verifier.fail = RemoteFailure("a fault of its own")
        with pytest.raises(OutriderError):
            await fleet.answer()
        starts = [[list(start.drafters) for start in verifier.starts] for verifier in (fleet.first, fleet.second)]
    assert starts == [[["h:0"]], [["h:1"]]]


@pytest.mark.parametrize("wishes", [DraftWishes(off=True), DraftWishes(pacing="plain")], ids=["off", "plain"])
async def test_without_a_coordinator_who_wants_no_drafts_is_named_none(wishes: DraftWishes) -> None:
    async with coordinated(FakeFleet()) as fleet:
        await paired_and_alone(fleet)
        await fleet.answer(replace(REQUEST, draft=wishes))
        starts = [*fleet.first.starts, *fleet.second.starts]
    assert [list(start.drafters) for start in starts] == [[]]


async def test_a_placement_that_takes_too_long_is_not_waited_for() -> None:
    async with coordinated(FakeFleet(is_slow=True), replace(PATIENT, place_timeout_s=0.05), configured=True) as fleet:
        assert await fleet.answer() == tuple(TOKENS)
        assert fleet.fleet.num_asked <= 1
        assert not fleet.fleet.release.is_set()


async def test_of_two_coordinators_the_later_one_is_asked_and_each_hears_of_its_own() -> None:
    older, newer = FakeFleet(epoch=1), FakeFleet(epoch=2)
    async with coordinator_over(newer) as second, coordinated(older, PATIENT, second) as fleet:
        for which in (0, 1):
            newer.announce(fake_replica(f"verifier-{which}", fleet.addresses[which]), 0.0)
        fleet.first.hold = Hold.AFTER_FIRST_COMMIT
        answer = asyncio.ensure_future(fleet.answer())
        async with asyncio.timeout(WAIT_S):
            await fleet.first.reached.wait()
        assert (len(newer.wishes), len(older.wishes)) == (1, 0)
        older.epoch = 3  # it was started anew meanwhile
        num_before = older.num_topologies
        await older.until(lambda: older.num_topologies >= num_before + 2)
        fleet.first.hold = None
        assert await fleet.answer() == tuple(TOKENS)
        fleet.first.release.set()
        assert await answer == tuple(TOKENS)
        await newer.until(lambda: len(newer.finished) == 1)
        await older.until(lambda: len(older.finished) == 1)
    assert (len(newer.wishes), len(older.wishes)) == (1, 1)


async def test_a_verifier_that_was_left_out_is_asked_again_once_a_coordinator_names_it() -> None:
    """Long before the pool asks everybody again: it may have been started anew at its address."""
    async with contextlib.AsyncExitStack() as stack:
        a, b = [await stack.enter_async_context(serving(FakeVerifier(TOKENS))) for _ in range(2)]
        pool = VerifierPool((a, b))
        stack.push_async_callback(pool.close)
        await pool.connect(WAIT_S)
        lost = (await pool.candidates((a,)))[0]
        pool.report_failure(lost, Unavailable("gone"))
        assert [verifier.address for verifier in await pool.candidates()] == [b]
        async with asyncio.timeout(WAIT_S):
            while (await pool.candidates((a,)))[0] is not lost:
                await asyncio.sleep(0)
        assert pool.num_failures(a) == 1


async def test_verifiers_come_and_go_with_the_topology() -> None:
    one, other = FakeVerifier(TOKENS), FakeVerifier(TOKENS)
    async with contextlib.AsyncExitStack() as stack:
        a = await stack.enter_async_context(serving(one))
        pool = VerifierPool(())
        stack.push_async_callback(pool.close)
        await pool.follow(Topology(1, (fake_replica("v-0", a),)))
        await pool.connect(WAIT_S)
        async with serving(other) as b:
            both = (fake_replica("v-0", a), fake_replica("v-1", b), fake_replica("d-0", "h:1", Role.DRAFTER))
            await pool.follow(Topology(1, both))
            assert {verifier.address for verifier in await pool.candidates()} == {a, b}
            assert [verifier.address for verifier in await pool.candidates((b, "h:1"))][:1] == [b]
            await pool.follow(Topology(1, (replace(both[0], draining=True), both[1])))
            assert [verifier.address for verifier in await pool.candidates()] == [b, a], "draining last"
        gone = next(verifier for verifier in await pool.candidates() if verifier.address == b)
        for _ in range(2 * MAX_MISSED_TOPOLOGIES):
            await pool.follow(Topology(1, both[:1]))
        assert b in {verifier.address for verifier in await pool.candidates()}, "nobody knows yet that it does not answer"
        pool.report_failure(gone, Unavailable("gone"))
        await pool.follow(Topology(1, both[:1]))
        assert pool.num_failures(b) == 0, "it is forgotten"
        assert [verifier.address for verifier in await pool.candidates()] == [a]
