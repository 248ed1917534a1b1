"""A gateway and its coordinators over real gRPC: one Place and one Finish a request, and answers all the same when nobody places.

Verifiers answer from a script and fleets place as they are told.

pytest tests/integration/test_gateway_coordinated.py
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import cast

import pytest

from coordinated_gateways import PATIENT, REQUEST, TOKENS, coordinated, placed_at
from fakes_coordinator import WAIT_S, CountedServicer, FakeFleet, coordinator_over, fake_replica
from fakes_verifier import FakeVerifier, GatewayUnderTest, Hold, fake_identity, gateway_over, serving
from outrider.errors import Cancelled, OutriderError, Overloaded, Unavailable
from outrider.gateway.limits import FailoverLimits
from outrider.gateway.placing import WORD_BYTES
from outrider.rpc.status import RemoteFailure
from outrider.telemetry import names
from outrider.types.fleet import PairMeasurement, Placement, PlacementWish
from outrider.types.generation import AnswerEvent, Delta, DraftWishes, GenerationRequest
from outrider.v1 import fleet_pb2


async def test_a_request_costs_one_place_and_one_finish_and_goes_where_it_was_placed() -> None:
    async with coordinated(FakeFleet(epoch=3)) as fleet:
        for number, which in enumerate((1, 1, 0), start=1):
            placed_at(fleet, which)
            assert await fleet.answer() == tuple(TOKENS)
            await fleet.until_finished(number)
        wishes, finished = fleet.fleet.wishes, fleet.fleet.finished
        assert (len(wishes), len(finished)) == (3, 3)
        assert (len(fleet.first.starts), len(fleet.second.starts)) == (1, 2)
        assert [(one.placement_id, one.num_tokens, one.failure) for one in finished] == [(1, 5, ""), (2, 5, ""), (3, 5, "")]
        assert all(one.token_us > 0.0 for one in finished)
        wish = wishes[0]
        assert (wish.prefix_len, wish.max_tokens, wish.num_samples, wish.wants_drafts) == (3, 5, 1, True)
        assert wish.fingerprint == fake_identity().fingerprint
        words = {one.request_id.partition("/")[0] for one in wishes}
        assert len(words) == 1, "the gateway's own"
        assert len(words.pop()) == 2 * WORD_BYTES


async def test_an_answer_that_has_come_whole_is_placed_like_any_other() -> None:
    """Its client missed the end alone. A wish for no tokens is one that a coordinator refuses, with a warning in the gateway's log."""
    async with coordinated(FakeFleet()) as fleet:
        placed_at(fleet, 0)
        assert await fleet.answer(replace(REQUEST, max_tokens=len(TOKENS), resume_token_ids=tuple(TOKENS))) == ()
        await fleet.until_finished()
        assert [wish.max_tokens for wish in fleet.fleet.wishes] == [1]


METHODS = sorted(method.name for method in fleet_pb2.DESCRIPTOR.services_by_name["FleetService"].methods)
MANY_TOKENS = 400  # a round each


@pytest.mark.parametrize("num_samples", [1, 3])
async def test_no_round_costs_a_call_of_any_kind(num_samples: int) -> None:
    """The fleet is told of a request once and of its end once; the topology is asked for by the clock, which stands still here."""
    seldom = replace(PATIENT, refresh_s=3600.0)
    counted: dict[int, dict[str, int]] = {}
    for num_tokens in (1, MANY_TOKENS):
        fleet = FakeFleet()
        async with coordinated(fleet, seldom) as one:
            one.first.script = one.second.script = [10] * MANY_TOKENS
            before = dict(fleet.num_calls)
            request = replace(REQUEST, max_tokens=num_tokens, num_samples=num_samples)
            answer = await one.under_test.client.generate_once(request, timeout_s=WAIT_S)
            assert [len(sample.token_ids) for sample in answer.samples] == [num_tokens] * num_samples
            await one.until_finished()
            num_rounds = one.first.num_commits + one.second.num_commits
            assert num_rounds == num_samples * num_tokens
            counted[num_tokens] = {method: fleet.num_calls[method] - before.get(method, 0) for method in METHODS}
    assert counted[1] == counted[MANY_TOKENS]
    assert counted[1] == dict.fromkeys(METHODS, 0) | {"Place": 1, "Finish": 1}


def test_every_call_of_the_fleet_is_counted() -> None:
    assert {name for name in vars(CountedServicer) if not name.startswith("_")} == set(METHODS)


async def test_samples_of_a_request_share_one_placement() -> None:
    async with coordinated(FakeFleet()) as fleet:
        placed_at(fleet, 1)
        await fleet.under_test.client.generate_once(replace(REQUEST, num_samples=3), timeout_s=WAIT_S)
        await fleet.until_finished()
        assert (len(fleet.fleet.wishes), fleet.fleet.wishes[0].num_samples) == (1, 3)
        assert (len(fleet.first.starts), len(fleet.second.starts)) == (0, 3)
        assert fleet.fleet.finished[0].num_tokens == 3 * len(TOKENS)


async def test_chosen_drafters_are_handed_on_and_none_is_asked_where_none_would_pay() -> None:
    async with coordinated(FakeFleet()) as fleet:
        placed_at(fleet, 0, drafters=("h:1", "h:2"))
        await fleet.answer()
        placed_at(fleet, 0, drafts_off=True)
        await fleet.answer()
        placed_at(fleet, 0)
        await fleet.answer()
        first, second, third = fleet.first.starts
        assert (list(first.drafters), first.no_drafters) == (["h:1", "h:2"], False)
        assert (list(second.drafters), second.no_drafters) == ([], True)
        assert not second.draft.off, "texts may be guessed from all the same"
        assert (list(third.drafters), third.no_drafters) == ([], False), "none is known: the verifier may have means of its own"


async def test_the_wishes_about_drafts_stay_where_no_drafter_is_asked() -> None:
    async with coordinated(FakeFleet()) as fleet:
        placed_at(fleet, 0, drafts_off=True)
        await fleet.answer(replace(REQUEST, draft=DraftWishes(pacing="never registered", max_len=3)))
        (start,) = fleet.first.starts
        told = start.no_drafters, start.draft.pacing, start.draft.max_len
        assert told == (True, "never registered", 3), "else whether a wish is refused depends on where it is placed"


async def test_a_verifier_with_a_drafter_that_no_coordinator_knows_keeps_its_drafts() -> None:
    fleet = FakeFleet()
    async with coordinated(fleet) as one:
        pair = {"resident": PairMeasurement(connected=True)}
        fleet.announce(replace(fake_replica("verifier-0", one.addresses[0]), pairs=pair), 0.0)
        num_before = fleet.num_topologies
        await fleet.until(lambda: fleet.num_topologies >= num_before + 3)
        placed_at(one, 0, drafts_off=True)
        await one.answer()
        assert not one.first.starts[0].no_drafters


async def test_a_wish_names_beginnings_of_the_prefix_and_how_long_they_are() -> None:
    async with coordinated(FakeFleet()) as fleet:
        placed_at(fleet, 0)
        await fleet.answer(replace(REQUEST, token_ids=(5,) * 70))
        (wish,) = fleet.fleet.wishes
        assert (wish.prefix_len, len(wish.prefix_digests), wish.prefix_digest_lens) == (70, 2, (32, 64))


async def test_an_alternative_takes_what_the_placed_verifier_refuses() -> None:
    async with coordinated(FakeFleet()) as fleet:
        placed_at(fleet, 0)
        fleet.first.refuse = Overloaded("full")
        assert await fleet.answer() == tuple(TOKENS)
        await fleet.until_finished()
        assert (len(fleet.fleet.wishes), len(fleet.second.starts)) == (1, 1)
        assert fleet.fleet.finished[0].failure == ""


async def test_a_verifier_that_fails_its_request_is_reported() -> None:
    async with coordinated(FakeFleet()) as fleet:
        placed_at(fleet, 0)
        fleet.first.refuse = Unavailable("gone")
        assert await fleet.answer() == tuple(TOKENS)
        await fleet.until_finished()
        assert "failed" in fleet.fleet.finished[0].failure


async def test_a_cancelled_request_is_finished_too() -> None:
    async with coordinated(FakeFleet()) as fleet:
        placed_at(fleet, 0)
        fleet.first.hold = Hold.AFTER_FIRST_COMMIT
        answer = cast(AsyncGenerator[AnswerEvent, None], fleet.under_test.client.generate(REQUEST, timeout_s=WAIT_S))
        async with contextlib.aclosing(answer) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
        await fleet.until_finished()
        assert (fleet.fleet.finished[0].num_tokens, fleet.fleet.finished[0].failure) == (1, "")


async def test_who_takes_a_request_over_that_is_still_being_placed_keeps_a_place_of_its_own() -> None:
    """What gives the old call's place up may arrive after the new one has its own: it must not be taken for that."""
    request = replace(REQUEST, request_id="mine", takes_over=True)
    async with coordinated(FakeFleet(is_slow=True)) as fleet:
        placed_at(fleet, 0)
        old = asyncio.ensure_future(fleet.answer(request))
        async with asyncio.timeout(WAIT_S):
            while fleet.fleet.num_asked < 1:
                await asyncio.sleep(0)
        new = asyncio.ensure_future(fleet.answer(request))
        await fleet.fleet.until(lambda: len(fleet.fleet.given_up) == 1)
        with pytest.raises(Cancelled, match="taken over"):
            await old
        fleet.fleet.release.set()
        assert await new == tuple(TOKENS)
        await fleet.until_finished()
        (given_up,) = fleet.fleet.given_up
        assert given_up not in {wish.request_id for wish in fleet.fleet.wishes}
        assert given_up.endswith("/mine")


@dataclass(frozen=True)
class Drafts:
    """What a placement says of them."""

    drafters: tuple[str, ...] = ()
    off: bool = False


NO_DRAFTER = Drafts()


@contextlib.asynccontextmanager
async def of_three(
    fleet: FakeFleet, elsewhere: Callable[[PlacementWish], Placement], first: FakeVerifier, drafts: Drafts = NO_DRAFTER
) -> AsyncIterator[OfThree]:
    """A fleet that places every request at `first`, drafted as told there, and what leaves it as it is told."""
    second, third = FakeVerifier(TOKENS), FakeVerifier(TOKENS)
    async with contextlib.AsyncExitStack() as stack:
        a, b, c = [await stack.enter_async_context(serving(verifier)) for verifier in (first, second, third)]
        for number, address in enumerate((a, b, c)):
            fleet.announce(fake_replica(f"verifier-{number}", address), 0.0)
        fleet.choose = lambda wish: elsewhere(wish) if wish.exclude else Placement(a, drafts.drafters, (b,), 1.0, "", drafts.off)
        coordinator = await stack.enter_async_context(coordinator_over(fleet))
        at_once = FailoverLimits(handover_min_tokens=1, handover_spread_s=0.0)
        under_test = await stack.enter_async_context(
            gateway_over(coordinators=(coordinator,), coordination=PATIENT, verifiers=(), failover=at_once)
        )
        yield OfThree(under_test, second, third, (a, b, c))


@dataclass
class OfThree:
    under_test: GatewayUnderTest
    second: FakeVerifier
    third: FakeVerifier
    addresses: tuple[str, str, str]

    async def answer(self, request: GenerationRequest = REQUEST) -> tuple[int, ...]:
        answer = await self.under_test.client.generate_once(request, timeout_s=WAIT_S)
        return tuple(answer.samples[0].token_ids)


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "draining"])
async def test_what_leaves_its_verifier_is_placed_anew_and_goes_there(is_lost: bool) -> None:
    fleet, num_answers = FakeFleet(), 4
    first = FakeVerifier(TOKENS, fail=RemoteFailure("a fault of its own") if is_lost else None, draining=not is_lost)
    first.hold = None if is_lost else Hold.BEFORE_FINISHED
    places: list[Placement] = []
    async with of_three(fleet, lambda wish: places[0], first) as three:
        a, b, c = three.addresses
        for number in range(num_answers):
            places[:] = [Placement((b, c)[number % 2], ("h:9",), ((c, b)[number % 2],), 1.0, "")]
            assert await three.answer() == tuple(TOKENS)
            await fleet.until(lambda number=number: len(fleet.finished) == 2 * (number + 1))  # type: ignore[misc]
            assert len((three.second, three.third)[number % 2].starts) == number // 2 + 1
        assert (len(first.starts), len(three.second.starts), len(three.third.starts)) == (num_answers, 2, 2)
        assert list(three.third.starts[0].drafters) == ["h:9"]
    whole, rest = fleet.wishes[:2]
    assert (whole.exclude, rest.exclude) == (frozenset(), frozenset({a}))
    assert (rest.prefix_len, rest.max_tokens, rest.num_samples) == (whole.prefix_len + 1, whole.max_tokens - 1, 1)
    assert rest.fingerprint == whole.fingerprint
    assert sorted(one.placement_id for one in fleet.finished) == list(range(1, 2 * num_answers + 1)), "each is finished once"


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "draining"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Drafts(off=True), Drafts(("h:9",))),
        (Drafts(off=True), NO_DRAFTER),
        (Drafts(("h:1",)), Drafts(off=True)),
        (Drafts(("h:1",)), NO_DRAFTER),
    ],
    ids=["pays now", "none known now", "pays no more", "full now"],
)
async def test_what_goes_on_elsewhere_is_drafted_for_as_it_is_placed_there(before: Drafts, after: Drafts, is_lost: bool) -> None:
    fleet = FakeFleet()
    first = FakeVerifier(TOKENS, fail=RemoteFailure("a fault of its own") if is_lost else None, draining=not is_lost)
    first.hold = None if is_lost else Hold.BEFORE_FINISHED
    places: list[Placement] = []
    async with of_three(fleet, lambda wish: places[0], first, before) as three:
        places.append(Placement(three.addresses[2], after.drafters, (), 1.0, "", after.off))
        assert await three.answer(replace(REQUEST, draft=DraftWishes(max_len=5))) == tuple(TOKENS)
        start, further = first.starts[0], three.third.starts[0]
    assert (start.no_drafters, tuple(start.drafters)) == (before.off, before.drafters)
    assert (further.no_drafters, tuple(further.drafters)) == (after.off, after.drafters)
    assert (start.draft.max_len, further.draft.max_len) == (5, 5), "wishes of the client stay, whether drafters are asked or not"


async def test_what_goes_on_where_nobody_placed_it_is_drafted_for_as_before() -> None:
    def refuse(wish: PlacementWish) -> Placement:
        raise Overloaded("all are full")

    fleet, first = FakeFleet(), FakeVerifier(TOKENS, fail=RemoteFailure("a fault of its own"))
    async with of_three(fleet, refuse, first, Drafts(("h:1",))) as three:
        assert await three.answer() == tuple(TOKENS)
        starts = [*three.second.starts, *three.third.starts]
    assert [(list(start.drafters), start.no_drafters) for start in starts] == [(["h:1"], False)]


@pytest.mark.parametrize("refusal", [Unavailable("no other verifier fits"), Overloaded("all are full")])
async def test_what_leaves_its_verifier_goes_on_though_nobody_places_it(refusal: OutriderError) -> None:
    def refuse(wish: PlacementWish) -> Placement:
        raise refusal

    fleet, first = FakeFleet(), FakeVerifier(TOKENS, fail=RemoteFailure("a fault of its own"))
    async with of_three(fleet, refuse, first) as three:
        assert await three.answer() == tuple(TOKENS)
        await fleet.until(lambda: len(fleet.finished) == 1)
    assert len(fleet.wishes) == 2


async def test_a_full_fleet_refuses_the_request() -> None:
    async with coordinated(FakeFleet(refuse=Overloaded("tenant a has its share"))) as fleet:
        with pytest.raises(Overloaded, match="has its share"):
            await fleet.answer()
        assert fleet.first.starts == []


async def test_a_coordinator_that_knows_nobody_costs_no_request() -> None:
    """As one that was started a moment ago."""
    async with coordinated(FakeFleet(refuse=Unavailable("no verifier fits"))) as fleet:
        assert await fleet.answer() == tuple(TOKENS)
        assert fleet.fleet.finished == []


async def test_placements_are_counted_by_what_came_of_them() -> None:
    async with coordinated(FakeFleet()) as fleet:
        placed_at(fleet, 1)
        await fleet.answer()
        fleet.fleet.refuse = Overloaded("all are full")
        with pytest.raises(Overloaded):
            await fleet.answer()
        fleet.fleet.refuse = Unavailable("nobody is known")
        await fleet.answer()
        series = [one for one in fleet.under_test.gateway.servicer.metrics.snapshot() if one.metric is names.NUM_PLACEMENTS]
        assert {one.label_values: one.value for one in series} == {
            ("gateway", "placed"): 1,
            ("gateway", "full"): 1,
            ("gateway", "no_answer"): 1,
        }
        await fleet.until_finished(1)
