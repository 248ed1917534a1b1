"""The fleet's state over time: leases, zombies, what is counted between heartbeats, warm prefixes, tenants' shares, bounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fakes_fleet import drafter, identity, verifier, wish
from outrider.coordinator.fleet import Fleet, FleetLimits
from outrider.coordinator.interned import NOBODY, Interned
from outrider.coordinator.load_columns import LoadColumns
from outrider.coordinator.prefix_affinity import MAX_HOLDERS, PrefixAffinity
from outrider.errors import Overloaded, Superseded, Unavailable, UnknownSession
from outrider.types.fleet import PairMeasurement, PlacementWish, Replica, Role

FLAT = ((1, 10_000.0),)  # load alone decides


def fleet_of(*replicas: Replica, limits: FleetLimits | None = None) -> Fleet:
    fleet = Fleet(7, limits or FleetLimits(max_replicas=64))
    for replica in replicas:
        assert fleet.announce(replica, 0.0) is False
    return fleet


def placed_at(fleet: Fleet, asked: PlacementWish, now_s: float = 0.0) -> str:
    return fleet.place(asked, now_s)[1].verifier


# --- leases, zombies, drains ------------------------------------------------------------------------------------------------


def test_silence_takes_a_replica_out_and_a_heartbeat_brings_it_back() -> None:
    fleet = fleet_of(verifier("v0"), drafter("d0"))
    fleet.announce(verifier("v0"), 1.5)
    assert [one.replica_id for one in fleet.replicas(2.0)] == ["d0", "v0"]
    assert [one.replica_id for one in fleet.replicas(2.1)] == ["v0"]
    assert fleet.place(wish(), 3.5)[1].drafters == ()
    with pytest.raises(Unavailable):
        fleet.place(wish(), 3.6)
    fleet.announce(verifier("v0"), 4.0)
    assert placed_at(fleet, wish(), 4.0) == "v0:1"


def test_an_older_incarnation_is_told_to_end_even_after_the_newer_one_fell_silent() -> None:
    fleet = fleet_of(verifier("v0", incarnation=5))
    assert fleet.announce(verifier("v0", incarnation=5), 0.1) is False
    with pytest.raises(Superseded, match="incarnation 5"):
        fleet.announce(verifier("v0", incarnation=4), 0.2)
    assert fleet.replicas(9.0) == []
    with pytest.raises(Superseded):
        fleet.announce(verifier("v0", incarnation=4), 9.0)
    assert fleet.announce(verifier("v0", incarnation=6, endpoint="elsewhere:1"), 9.0) is False
    assert placed_at(fleet, wish(), 9.0) == "elsewhere:1"


def test_one_endpoint_belongs_to_who_started_last() -> None:
    fleet = fleet_of(verifier("old", endpoint="shared:1", incarnation=1))
    fleet.announce(verifier("new", endpoint="shared:1", incarnation=2), 0.1)
    assert [one.replica_id for one in fleet.replicas(0.1)] == ["new"]
    with pytest.raises(Superseded, match="'new'"):
        fleet.announce(verifier("old", endpoint="shared:1", incarnation=1), 0.2)


def test_a_drain_is_told_with_every_heartbeat_and_ends_with_the_incarnation() -> None:
    fleet = fleet_of(verifier("v0"))
    fleet.drain("v0")
    with pytest.raises(Unavailable):
        fleet.place(wish(), 0.1)
    assert [one.draining for one in fleet.replicas(0.1)] == [True]
    assert fleet.announce(verifier("v0"), 0.5) is True
    assert fleet.announce(verifier("v0"), 1.0) is True
    with pytest.raises(Unavailable):
        fleet.place(wish(), 1.0)
    assert fleet.replicas(9.0) == []
    assert fleet.announce(verifier("v0"), 9.0) is True  # silence is not obedience
    assert fleet.announce(verifier("v0", incarnation=2), 9.5) is False
    assert placed_at(fleet, wish(), 9.5) == "v0:1"
    with pytest.raises(UnknownSession, match="nobody"):
        fleet.drain("nobody")


def test_a_verifier_that_failed_a_request_is_left_alone_until_its_next_heartbeat() -> None:
    fleet = fleet_of(verifier("v0"), verifier("v1", num_sessions=9, cost=((1, 90_000.0),)))
    placement_id, placement = fleet.place(wish(), 0.1)
    assert placement.verifier == "v0:1"
    fleet.finish(placement_id, 3, 9.0, "the stream broke", 0.2)
    assert placed_at(fleet, wish(), 0.2) == "v1:1"
    fleet.announce(verifier("v0"), 0.5)
    assert placed_at(fleet, wish(), 0.5) == "v0:1"


def test_a_failure_of_an_earlier_incarnation_is_not_held_against_the_next() -> None:
    fleet = fleet_of(verifier("v0"))
    placement_id, _ = fleet.place(wish(), 0.1)
    fleet.announce(verifier("v0", incarnation=2), 0.2)
    fleet.finish(placement_id, 0, 0.0, "it was killed", 0.3)
    assert placed_at(fleet, wish(), 0.3) == "v0:1"


# --- load between heartbeats ------------------------------------------------------------------------------------------------


def test_a_burst_spreads_before_any_heartbeat_tells() -> None:
    fleet = fleet_of(*(verifier(f"v{at}", cost=FLAT) for at in range(4)))
    assert Counter(placed_at(fleet, wish()) for _ in range(40)) == {f"v{at}:1": 10 for at in range(4)}


def test_a_burst_spreads_over_drafters() -> None:
    fleet = fleet_of(verifier("v0", max_sessions=64), *(drafter(f"d{at}") for at in range(4)))
    used = Counter(name for _ in range(12) for name in fleet.place(wish(prefix_len=1), 0.0)[1].drafters)
    assert used == {f"d{at}:1": 6 for at in range(4)}


def test_what_is_placed_fills_a_verifier_and_what_is_finished_frees_it() -> None:
    fleet = fleet_of(verifier("v0", max_sessions=3))
    ids = [fleet.place(wish(tenant=str(at)), 0.0)[0] for at in range(3)]
    with pytest.raises(Overloaded):
        fleet.place(wish(tenant="3"), 0.1)
    fleet.finish(ids[1], 5, 9.0, "", 0.2)
    fleet.finish(ids[1], 5, 9.0, "", 0.2)  # twice is no error, and frees nothing
    fleet.finish(12345, 5, 9.0, "", 0.2)
    fleet.place(wish(tenant="4"), 0.2)
    with pytest.raises(Overloaded):
        fleet.place(wish(tenant="5"), 0.2)


def test_blocks_count_at_once_with_every_sample() -> None:
    fleet = fleet_of(verifier("v0", kv_blocks_total=100, block_len=10))
    fleet.place(wish(prefix_len=95, max_tokens=100, num_samples=4), 0.0)  # 4 times 20 blocks
    with pytest.raises(Overloaded):
        fleet.place(wish(prefix_len=105, max_tokens=100), 0.0)  # 21 blocks
    fleet.place(wish(prefix_len=100, max_tokens=100), 0.0)


def test_of_a_long_answer_the_first_blocks_count_and_the_rest_as_it_reports_them() -> None:
    fleet = fleet_of(verifier("v0", kv_blocks_total=140, block_len=10))
    fleet.place(wish(prefix_len=100, max_tokens=1_200, num_samples=2), 0.0)  # 130 blocks at most, 62 at first
    with pytest.raises(Overloaded):
        fleet.place(wish(prefix_len=100, max_tokens=100), 0.0)
    with pytest.raises(Unavailable):
        fleet.place(wish(prefix_len=100, max_tokens=1_301), 0.0)


def test_a_heartbeat_that_was_written_before_a_burst_does_not_hide_it() -> None:
    loads = LoadColumns((True,), 1)
    for _ in range(2):
        loads.report(0, (5.0,))  # another gateway's
    for _ in range(3):
        loads.add(0, (1.0,))
    assert loads.load[0, 0] == 8
    loads.report(0, (5.0,))  # written before the burst arrived
    assert loads.load[0, 0] == 8
    loads.report(0, (8.0,))
    assert loads.load[0, 0] == 8


def test_a_heartbeat_that_has_seen_a_burst_does_not_count_it_twice() -> None:
    loads = LoadColumns((True,), 1)
    entries = [loads.add(0, (1.0,)) for _ in range(3)]
    loads.report(0, (3.0,))
    assert loads.load[0, 0] == 3
    loads.remove(entries[0])
    assert loads.load[0, 0] == 2
    loads.report(0, (2.0,))
    assert loads.load[0, 0] == 2


def test_ends_that_nobody_reports_stop_counting_after_two_heartbeats() -> None:
    loads = LoadColumns((True,), 1)
    for _ in range(5):
        loads.add(0, (1.0,))
    loads.report(0, (5.0,))
    loads.report(0, (0.0,))  # they ended; their gateway died
    loads.report(0, (0.0,))
    assert loads.load[0, 0] == 0


def test_a_queue_that_passed_is_not_taken_off_what_is_reported() -> None:
    loads = LoadColumns((False,), 1)
    entry = loads.add(0, (100.0,))
    loads.report(0, (40.0,))
    loads.report(0, (40.0,))
    loads.remove(entry)
    assert loads.load[0, 0] == 40


def test_a_row_that_changed_hands_forgets() -> None:
    loads = LoadColumns((True,), 1)
    entry = loads.add(0, (1.0,))
    loads.clear(0)
    loads.report(0, (4.0,))
    loads.remove(entry)
    assert loads.load[0, 0] == 4


# --- warm prefixes --------------------------------------------------------------------------------------------------------

TURNS = tuple(f"turn {at}".encode() for at in range(4))
SHARES = wish(prefix_digests=TURNS).digest_shares


def test_a_further_turn_goes_where_its_prefix_is_warm() -> None:
    fleet = fleet_of(*(verifier(f"v{at}") for at in range(8)))
    first = placed_at(fleet, wish(prefix_len=2_000, prefix_digests=TURNS[:2]))
    others = {placed_at(fleet, wish(prefix_len=2_000)) for _ in range(7)}
    assert first not in others
    assert placed_at(fleet, wish(prefix_len=2_500, prefix_digests=TURNS[:3])) == first
    assert placed_at(fleet, wish(prefix_len=2_500, prefix_digests=(b"x", b"y"))) != first or len(others) < 7


def test_a_short_beginning_that_many_share_is_worth_what_it_is() -> None:
    """64 to 128 tokens of 2,048, at 312 us each: 30 ms, and not two sevenths of the whole for two digests of seven."""
    lens = tuple(32 << at for at in range(7))
    asked = wish(prefix_len=2_048, prefix_digests=tuple(b"%d" % length for length in lens), prefix_digest_lens=lens)
    other = replace(asked, prefix_digests=(*asked.prefix_digests[:2], *TURNS, b"last"))
    for queue_us, expected in ((60_000.0, "v1:1"), (10_000.0, "v0:1")):
        fleet = fleet_of(verifier("v0"))
        assert placed_at(fleet, asked) == "v0:1"
        for now_s in (0.5, 1.0):
            fleet.announce(verifier("v0", queue_us=queue_us), now_s)
            fleet.announce(verifier("v1"), now_s)
        assert placed_at(fleet, other, 1.0) == expected


def test_what_is_warm_is_taken_to_end_half_way_to_the_first_beginning_that_is_not() -> None:
    assert wish(prefix_len=200, prefix_digests=TURNS[:3], prefix_digest_lens=(32, 64, 128)).digest_shares == (0.24, 0.48, 0.82)
    assert wish(prefix_len=128, prefix_digests=TURNS[:1], prefix_digest_lens=(128,)).digest_shares == (1.0,)
    assert (SHARES, wish().digest_shares) == ((0.25, 0.5, 0.75, 1.0), ())


def test_a_further_turn_has_the_drafter_that_read_it_and_others_have_others() -> None:
    """Of drafters that are all alike the one with fewest sessions is taken, but for who would have to read everything again."""
    drafters = [drafter(f"d{at}", read_us=400.0, max_sessions=64) for at in range(6)]
    fleet = fleet_of(verifier("v0", cost=FLAT, max_sessions=64), *drafters)
    asked = wish(prefix_len=2_000, prefix_digests=TURNS[:2])
    first = fleet.place(asked, 0.0)[1].drafters
    other = fleet.place(wish(prefix_len=2_000), 0.0)[1].drafters
    assert first
    assert not set(first) & set(other)
    further = replace(asked, prefix_digests=TURNS[:3])
    assert set(fleet.place(further, 0.0)[1].drafters) <= set(first)
    assert not set(fleet.place(replace(further, prefix_digests=(b"x", b"y")), 0.0)[1].drafters) & set(first)
    for one in drafters:
        if one.endpoint in first:  # started again, it has read nothing
            fleet.announce(replace(one, incarnation=2, num_sessions=30), 0.1)
    assert not set(fleet.place(further, 0.1)[1].drafters) & set(first)


def test_a_prefix_is_cold_after_a_while_and_after_a_restart() -> None:
    affinity = PrefixAffinity(8, 10.0)
    affinity.remember(TURNS[:2], 1, 0.0)
    assert affinity.warm(TURNS, SHARES, 5.0) == {1: 0.5}
    assert affinity.warm(TURNS, SHARES, 11.0) == {}
    fleet = fleet_of(verifier("v0"), verifier("v1", num_sessions=1))
    assert placed_at(fleet, wish(prefix_len=5_000, prefix_digests=TURNS)) == "v0:1"
    for now_s in (0.5, 1.0):  # it has read the prefix
        fleet.announce(verifier("v0", num_sessions=1), now_s)
    assert placed_at(fleet, wish(prefix_len=5_000, prefix_digests=TURNS), 1.0) == "v0:1"
    fleet.announce(verifier("v0", incarnation=2, num_sessions=4), 1.1)
    assert placed_at(fleet, wish(prefix_len=5_000, prefix_digests=TURNS), 1.1) == "v1:1"


def test_the_map_of_prefixes_is_bounded() -> None:
    affinity = PrefixAffinity(3, 10.0)
    for at in range(10):
        affinity.remember([b"%d" % at], at, 0.0)
        affinity.remember([b"shared"], at, 0.0)
    assert len(affinity) == 3
    assert set(affinity.warm([b"shared"], [1.0], 0.0)) == set(range(10 - MAX_HOLDERS, 10))
    assert affinity.warm([b"0"], [1.0], 0.0) == {}


# --- tenants --------------------------------------------------------------------------------------------------------------


def test_a_tenant_with_more_than_its_share_waits_while_the_fleet_is_nearly_full() -> None:
    fleet = fleet_of(verifier("v0", max_sessions=40, kv_blocks_total=0))
    for _ in range(36):
        fleet.place(wish(tenant="many"), 0.0)
    fleet.place(wish(tenant="few"), 0.0)
    with pytest.raises(Overloaded, match="more than its share"):
        fleet.place(wish(tenant="many"), 0.0)
    fleet.place(wish(tenant="few"), 0.0)
    fleet.place(wish(tenant="new"), 0.0)
    fleet.place(wish(tenant="few"), 0.0)
    with pytest.raises(Overloaded, match="full"):
        fleet.place(wish(tenant="new"), 0.0)


def test_shares_are_judged_by_blocks_too_and_equal_tenants_both_get_on() -> None:
    fleet = fleet_of(verifier("v0", max_sessions=1_000, kv_blocks_total=100, block_len=100))
    for _ in range(45):
        fleet.place(wish(tenant="a", max_tokens=1, prefix_len=99), 0.0)
        fleet.place(wish(tenant="b", max_tokens=1, prefix_len=99), 0.0)
    fleet.place(wish(tenant="a", max_tokens=1, prefix_len=99), 0.0)
    with pytest.raises(Overloaded, match="'a'"):
        fleet.place(wish(tenant="a", max_tokens=1, prefix_len=99), 0.0)
    fleet.place(wish(tenant="b", max_tokens=1, prefix_len=99), 0.0)


def test_a_tenant_alone_may_fill_everything() -> None:
    fleet = fleet_of(verifier("v0", max_sessions=10))
    for _ in range(10):
        fleet.place(wish(tenant="only"), 0.0)


# --- bounds ---------------------------------------------------------------------------------------------------------------


def test_everything_is_bounded() -> None:
    limits = FleetLimits(max_replicas=2, max_placements=3, max_affinity_entries=2, max_incarnations=2)
    fleet = fleet_of(verifier("v0"), drafter("d0"), limits=limits)
    with pytest.raises(Overloaded, match="2 replicas"):
        fleet.announce(verifier("v1"), 0.0)
    ids = [fleet.place(wish(), 0.0)[0] for _ in range(3)]
    with pytest.raises(Overloaded, match="3 requests"):
        fleet.place(wish(), 0.0)
    fleet.finish(ids[0], 1, 1.0, "", 0.0)
    fleet.place(wish(), 0.0)


def test_a_placement_that_nobody_finishes_is_forgotten_after_its_lease() -> None:
    fleet = fleet_of(verifier("v0"), limits=FleetLimits(max_replicas=4, max_placements=1, placement_lease_s=10.0))
    fleet.place(wish(tenant="lost"), 0.0)
    fleet.announce(verifier("v0"), 10.1)
    fleet.place(wish(), 10.1)


def test_rows_are_used_again_and_nothing_of_the_former_holder_is_left() -> None:
    fleet = fleet_of(limits=FleetLimits(max_replicas=2))
    near = {"d0:1": PairMeasurement(10, 0.99)}
    for at in range(5):
        now_s = 10.0 * at
        fleet.announce(drafter(f"d{at}", draft_us=5_000.0), now_s)
        fleet.announce(verifier(f"v{at}", identity=identity(fingerprint=str(at)), pairs=near), now_s)
        _, placement = fleet.place(wish(fingerprint=str(at)), now_s)
        assert placement.verifier == f"v{at}:1"
        assert placement.drafters == (("d0:1",) if at == 0 else ())  # slow: pays at 0.99 only
        with pytest.raises(Unavailable):
            fleet.place(wish(fingerprint=str(at - 1)), now_s)


def test_a_new_drafter_is_not_taken_for_the_one_whose_row_it_got() -> None:
    fleet = fleet_of(drafter("d0", draft_us=5_000.0), verifier("v0"))
    fleet.announce(verifier("v0", pairs={"d0:1": PairMeasurement(10, 0.99)}), 1.9)
    assert fleet.place(wish(), 1.9)[1].drafters == ("d0:1",)
    fleet.announce(drafter("d1", draft_us=5_000.0), 2.1)  # the other has been silent for too long
    assert fleet.place(wish(), 2.1)[1].drafters == ()


def test_numbers_of_keys_are_used_again() -> None:
    keys = Interned()
    first, again, second = keys.hold("a"), keys.hold("a"), keys.hold("b")
    assert first == again != second
    keys.release(first)
    assert keys.number_of("a") == first
    keys.release(first)
    assert (keys.number_of("a"), keys.hold("c"), len(keys)) == (NOBODY, first, 2)


# --- any course of events -------------------------------------------------------------------------------------------------


class AnyCourse(RuleBasedStateMachine):
    """Replicas come, go, are restarted and drained; requests are placed and finished. The plain bookkeeping here must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(1, FleetLimits(max_replicas=6, max_placements=20))
        self.now_s = 0.0
        self.heard: dict[str, tuple[float, Replica]] = {}
        self.drained: set[str] = set()
        self.newest: Counter[str] = Counter()
        self.live: dict[int, str] = {}

    @rule(seconds=st.sampled_from((0.1, 0.7, 1.9, 2.5)))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(at=st.integers(0, 2), is_drafter=st.booleans(), incarnation=st.integers(1, 3), num_sessions=st.integers(0, 4))
    def announces(self, at: int, is_drafter: bool, incarnation: int, num_sessions: int) -> None:
        make = drafter if is_drafter else verifier
        replica = make(f"{'d' if is_drafter else 'v'}{at}", incarnation=incarnation, num_sessions=num_sessions, max_sessions=4)
        name = replica.replica_id
        if incarnation < self.newest[name]:
            with pytest.raises(Superseded):
                self.fleet.announce(replica, self.now_s)
            return
        if incarnation > self.newest[name]:
            self.drained.discard(name)
        self.newest[name] = incarnation
        assert self.fleet.announce(replica, self.now_s) == (name in self.drained)
        self.heard[name] = (self.now_s, replica)

    @rule(at=st.integers(0, 2))
    def is_drained(self, at: int) -> None:
        if f"v{at}" in {one.replica_id for one in self.fleet.replicas(self.now_s)}:
            self.fleet.drain(f"v{at}")
            self.drained.add(f"v{at}")

    @rule(tenant=st.sampled_from("ab"))
    def is_placed(self, tenant: str) -> None:
        able = {f"{name}:1" for name, one in self.in_lease().items() if one.role is Role.VERIFIER and name not in self.drained}
        try:
            placement_id, placement = self.fleet.place(wish(tenant=tenant), self.now_s)
        except Unavailable:
            return  # drained, silent, or failed: checked by who is chosen
        except Overloaded:
            assert able
            return
        assert {placement.verifier, *placement.alternatives} <= able
        assert set(placement.drafters) <= {one.endpoint for one in self.in_lease().values() if one.role is Role.DRAFTER}
        self.live[placement_id] = tenant

    @rule(data=st.data(), failure=st.sampled_from(("", "it broke")))
    def is_finished(self, data: st.DataObject, failure: str) -> None:
        placement_id = data.draw(st.sampled_from([*self.live, 999]))
        self.live.pop(placement_id, None)
        self.fleet.finish(placement_id, 1, 1.0, failure, self.now_s)

    @invariant()
    def who_is_in_lease_agrees(self) -> None:
        assert {one.replica_id for one in self.fleet.replicas(self.now_s)} == set(self.in_lease())

    @invariant()
    def nothing_is_left_of_what_ended(self) -> None:
        assert len(self.fleet._placements) == len(self.live)
        assert sum(self.fleet._tenants.live(tenant) for tenant in "ab") == len(self.live)
        assert len(self.fleet._tenants) == len(set(self.live.values()))
        assert (self.fleet._table.verifiers.load.load >= 0.0).all()

    def in_lease(self) -> dict[str, Replica]:
        return {name: one for name, (heard_s, one) in self.heard.items() if self.now_s - heard_s <= self.fleet.limits.lease_s}


AnyCourse.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestAnyCourse = AnyCourse.TestCase


def test_an_epoch_and_a_copy_of_what_was_announced() -> None:
    fleet = fleet_of(verifier("v0"))
    fleet.announce(replace(verifier("v0"), num_sessions=3), 0.3)
    assert fleet.epoch == 7
    assert fleet.replicas(0.3) == [replace(verifier("v0"), num_sessions=3)]
