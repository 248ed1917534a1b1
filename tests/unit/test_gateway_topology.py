"""What a gateway knows of the fleet while no coordinator answers: whose drafters are whose.

pytest tests/unit/test_gateway_topology.py
"""

from __future__ import annotations

from dataclasses import replace

from fakes_coordinator import fake_replica
from outrider.gateway.route import Route
from outrider.gateway.topology import MAX_DRAFTERS, Topology
from outrider.types.fleet import PairMeasurement, Replica, Role

CONNECTED = PairMeasurement(connected=True)


def drafter(endpoint: str, *, draining: bool = False) -> Replica:
    return replace(fake_replica(f"drafter {endpoint}", endpoint, Role.DRAFTER), draining=draining)


def paired(drafters: tuple[Replica, ...], **pairs: PairMeasurement) -> tuple[str, ...]:
    """Those of a verifier with these pairs."""
    verifier = replace(fake_replica(endpoint="h:9"), pairs=pairs)
    return Topology(1, (verifier, *drafters)).paired_drafters().get("h:9", ())


def test_drafters_that_a_verifier_is_connected_to_and_that_do_not_drain_are_its_own() -> None:
    known = (drafter("a"), drafter("b"), drafter("c", draining=True))
    assert paired(known, a=CONNECTED, b=PairMeasurement(), c=CONNECTED) == ("a",)
    assert paired(known, b=PairMeasurement(acceptance_rate=0.9)) == ()
    assert paired(known) == ()


def test_a_verifier_with_a_drafter_that_nobody_else_knows_is_left_to_it() -> None:
    assert paired((drafter("a"),), a=CONNECTED, resident=CONNECTED) == ()


def test_who_is_in_time_comes_first_then_who_is_right_then_who_is_near() -> None:
    known = tuple(map(drafter, "abcd"))
    late, right = replace(CONNECTED, late_share=0.5, acceptance_rate=0.9), replace(CONNECTED, acceptance_rate=0.8)
    near, far = (replace(CONNECTED, acceptance_rate=0.5, round_trip_us=us) for us in (100, 900))
    assert paired(known, a=late, b=far, c=near) == ("c", "b")
    assert paired(known, a=far, b=near, c=right) == ("c", "b")
    assert len(paired(known, a=near, b=near, c=near, d=near)) == MAX_DRAFTERS
    assert paired(known, a=CONNECTED, b=far) == ("b", "a"), "what was never measured is not preferred"


def test_a_route_names_what_was_placed_or_else_each_verifiers_own() -> None:
    own = {"h:1": ("a",), "h:2": ("b",)}
    assert [Route(paired=own).drafters_at(address) for address in ("h:1", "h:2", "h:3")] == [("a",), ("b",), ()]
    assert Route(("h:1",), (), paired=own).drafters_at("h:1") == (), "none that fits and has room: the verifier's own means"
    assert Route(("h:1",), ("z",)).drafters_at("h:2") == ("z",)
