"""What came of placements: verifiers that are slower than they say, and places that nobody waited for.

pytest tests/unit/test_fleet_finishes.py
"""

from __future__ import annotations

import pytest

from fakes_fleet import table_of, verifier, wish
from outrider.coordinator.fleet import Fleet, FleetLimits
from outrider.coordinator.verifier_table import MAX_PACE
from outrider.errors import Overloaded
from outrider.types.fleet import PlacementWish, Replica

FLAT = ((1, 10_000.0),)  # load alone decides


def fleet_of(*replicas: Replica) -> Fleet:
    fleet = Fleet(7, FleetLimits(max_replicas=64))
    for replica in replicas:
        fleet.announce(replica, 0.0)
    return fleet


def placed_at(fleet: Fleet, asked: PlacementWish) -> str:
    return fleet.place(asked, 0.0)[1].verifier


def finish_all(fleet: Fleet, slow: str, factor: float, num_tokens: int = 100) -> None:
    """Sixty placements one after the other; those of one verifier take so many times of what was expected."""
    for at in range(60):
        placement_id, placement = fleet.place(wish(request_id=str(at)), 0.0)
        ratio = factor if placement.verifier == slow else 1.0
        fleet.finish(placement_id, num_tokens, ratio * placement.decode_us, "", 0.0)


def test_a_verifier_that_is_slower_than_it_says_gets_fewer_requests() -> None:
    fleet = fleet_of(verifier("v0", cost=FLAT), verifier("v1", cost=((1, 10_500.0),)))
    assert placed_at(fleet, wish(max_tokens=1_000)) == "v0:1"
    finish_all(fleet, "v0:1", 2.0)
    assert placed_at(fleet, wish(max_tokens=1_000)) == "v1:1"
    fleet.announce(verifier("v0", cost=FLAT, incarnation=2), 0.0)
    assert placed_at(fleet, wish(max_tokens=1_000)) == "v0:1", "another process is not to blame"


@pytest.mark.parametrize(("factor", "num_tokens"), [(2.0, 5), (0.0, 100), (5e-324, 1)])
def test_what_says_nothing_corrects_nothing(factor: float, num_tokens: int) -> None:
    fleet = fleet_of(verifier("v0", cost=FLAT), verifier("v1", cost=((1, 10_500.0),)))
    finish_all(fleet, "v0:1", factor, num_tokens)
    assert placed_at(fleet, wish(max_tokens=1_000)) == "v0:1"


def test_what_takes_all_of_them_longer_is_nobodys_fault_and_no_client_makes_a_verifier_useless() -> None:
    table = table_of([verifier("v0"), verifier("v1")]).verifiers
    for _ in range(2_000):
        table.observe_pace(0, 1.5)
        table.observe_pace(1, 1.5)
    assert table.observed_pace[:2] == pytest.approx([1.0, 1.0], abs=0.02)
    table.observe_pace(1, 1.8)
    assert table.observed_pace[1] > 1.0 == table.pace[1], "one slow answer is no slow verifier"
    for _ in range(200):
        table.observe_pace(0, 1.5)
        table.observe_pace(1, 1e9)
    assert table.pace[0] < 1.0 < table.pace[1] <= MAX_PACE
    assert table.pace[0] >= 1.0 / MAX_PACE
    table.observe_pace(0, 0.0)  # as near to it as numbers come


def test_who_did_not_wait_for_the_answer_gives_the_place_back() -> None:
    fleet = fleet_of(verifier("v0", max_sessions=1))
    first, _ = fleet.place(wish(request_id="late"), 0.0)
    with pytest.raises(Overloaded):
        fleet.place(wish(), 0.1)
    fleet.give_up("never placed", 0.1)
    fleet.give_up("late", 0.1)
    fleet.give_up("late", 0.1)
    second, _ = fleet.place(wish(request_id="late"), 0.1)
    fleet.finish(first, 0, 0.0, "", 0.1)  # of before: the newer one of the same request stays
    with pytest.raises(Overloaded):
        fleet.place(wish(), 0.2)
    fleet.finish(second, 0, 0.0, "", 0.2)
    fleet.place(wish(), 0.2)


def test_of_two_placements_of_one_request_the_newer_is_the_one_given_up() -> None:
    fleet = fleet_of(verifier("v0", max_sessions=2))
    first, _ = fleet.place(wish(request_id="again"), 0.0)
    fleet.place(wish(request_id="again"), 0.0)
    fleet.finish(first, 0, 0.0, "", 0.1)
    fleet.give_up("again", 0.1)
    for name in ("a", "b"):
        fleet.place(wish(request_id=name, tenant=name), 0.1)
