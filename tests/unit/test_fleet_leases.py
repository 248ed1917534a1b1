"""Leases: longer in a larger fleet, whose replicas are asked for heartbeats less often, and standing still while the coordinator does.

pytest tests/unit/test_fleet_leases.py
"""

from __future__ import annotations

import pytest

from fakes_fleet import drafter
from outrider.coordinator.fleet import Fleet, FleetLimits
from outrider.coordinator.leases import Leases
from outrider.coordinator.waking_clock import MAX_GAP_S, TICK_S, WakingClock
from outrider.errors import Superseded

LIMITS = FleetLimits(max_replicas=64, max_heartbeats_per_s=10.0)


def test_a_large_fleet_announces_itself_less_often_and_keeps_its_seats_longer() -> None:
    fleet = Fleet(7, LIMITS)
    replicas = [drafter(f"d{at}") for at in range(40)]
    for replica in replicas:
        fleet.announce(replica, 0.0)
    assert fleet.announce_every_s == 4.0, "forty of them, ten heartbeats a second"
    assert len(fleet.replicas(2.1)) == 40 - 5, "those that were told half a second are due"
    for replica in replicas:
        fleet.announce(replica, 2.2)
    assert len(fleet.replicas(2.2 + 13.9)) == 40
    assert fleet.replicas(2.2 + 16.1) == []
    assert fleet.announce_every_s == 0.5


def test_who_was_told_to_wait_long_is_not_given_up_when_the_fleet_shrinks() -> None:
    fleet = Fleet(7, LIMITS)
    for _ in range(2):
        for at in range(40):
            fleet.announce(drafter(f"d{at}"), 0.0)
    for at in range(1, 40):
        fleet.announce(drafter(f"d{at}", incarnation=at + 1, endpoint="one:1"), 0.0)  # one address, one process: the others are gone
    assert fleet.announce_every_s == 0.5
    assert [one.replica_id for one in fleet.replicas(15.9)] == ["d0"], "it was told to come in four seconds"
    fleet.announce(drafter("d0"), 15.9)
    assert fleet.replicas(18.0) == [], "and now in half a second"


def test_a_replica_whose_clock_went_back_is_taken_again_after_a_while() -> None:
    """Incarnations are start times: what was started on a clock that was ahead is not newer for ever than what its machine starts now."""
    fleet = Fleet(7, LIMITS)
    for name, left_s in (("d0", 0.0), ("d1", 100.0)):
        fleet.announce(drafter(name, incarnation=2_000), left_s)
    fleet.drain("d1")
    gone_s = LIMITS.lease_s + 100.0 + TICK_S
    assert fleet.replicas(gone_s) == []
    with pytest.raises(Superseded, match="incarnation 2000"):
        fleet.announce(drafter("d1", incarnation=1_000), gone_s + LIMITS.gone_memory_s)
    assert fleet.announce(drafter("d0", incarnation=1_000), gone_s + LIMITS.gone_memory_s) is False, "it left long before"
    assert fleet.announce(drafter("d1", incarnation=1_000), gone_s + LIMITS.gone_memory_s + 1.0) is False, "and the order was the other's"


def test_leases_end_when_they_are_said_to_however_they_were_renewed() -> None:
    leases = Leases()
    for number, until_s in ((1, 5.0), (2, 6.0), (3, 7.0)):
        leases.renew(number, until_s)
    leases.renew(1, 9.0)
    leases.renew(3, 4.0)
    assert list(leases.expired(4.0)) == []
    for now_s, due in ((4.5, 3), (6.5, 2)):
        assert list(leases.expired(now_s)) == [due]
        leases.end(due)
    leases.renew(2, 8.0)  # a new stay
    leases.renew(1, 7.5)
    leases.renew(1, 20.0)
    assert list(leases.expired(8.5)) == [2]
    leases.end(2)
    leases.end(1)
    assert list(leases.expired(99.0)) == []
    assert len(leases) == 0


def test_the_clock_of_a_process_that_was_stopped_stands_still() -> None:
    now = [100.0]
    clock = WakingClock(lambda: now[0])
    begin_s = clock()
    for _ in range(40):
        now[0] += MAX_GAP_S / 2
        clock()
    assert clock() - begin_s == pytest.approx(20 * MAX_GAP_S)
    now[0] += 3_600.0
    assert clock() - begin_s == pytest.approx(20 * MAX_GAP_S + TICK_S)
    now[0] += 0.2
    assert clock() - begin_s == pytest.approx(20 * MAX_GAP_S + TICK_S + 0.2)
