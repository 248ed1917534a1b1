"""What a verifier tells of itself, and the drafters it keeps streams to when requests name more than there is room for.

pytest tests/unit/test_verifier_fleet_entry.py
"""

from __future__ import annotations

import asyncio

import pytest

from fakes_verifier import fake_identity
from outrider.errors import InvalidRequest
from outrider.session.statistics import TESTS_TO_REMEMBER, SessionStatistics
from verifier_service.drafter_record import MAX_DRAFTERS, MIN_ROUNDS, DrafterRecord
from verifier_service.inbox import Inbox, PairDown
from verifier_service.pairs import MAX_PAIRS, Pairs
from verifier_service.settings import MAX_CONFIGURED


def judged(num_right: int, num_wrong: int) -> SessionStatistics:
    statistics = SessionStatistics()
    statistics.count_overtaken([True] * num_right + [False] * num_wrong)
    return statistics


def test_a_drafters_record_follows_sessions_that_were_its_own() -> None:
    record = DrafterRecord()
    record.count(["a", "b"], judged(40, 0))
    record.count(["c"], judged(TESTS_TO_REMEMBER - 1, 0))
    assert record.rates() == {}
    record.count(["a"], judged(40, 0))
    high = record.rates()["a"]
    assert high > 0.9
    record.count(["a"], judged(0, 40))
    low = record.rates()["a"]
    assert 0.5 < low < high, "one session does not overturn those before it"


def rounds(num_rounds: int, num_late: int) -> SessionStatistics:
    statistics = SessionStatistics()
    statistics.num_rounds, statistics.num_missed_deadlines = num_rounds, num_late
    return statistics


def test_lateness_is_told_of_rounds_whether_or_not_any_guess_was_judged() -> None:
    record = DrafterRecord()
    record.count(["a"], rounds(MIN_ROUNDS - 1, 20))
    record.count(["a", "b"], rounds(1_000, 1_000))  # whose fault?
    assert record.late_shares() == {}
    record.count(["a"], rounds(9, 0))
    assert record.late_shares() == {"a": pytest.approx(20 / (MIN_ROUNDS + 8), rel=0.02)}
    for _ in range(100):
        record.count(["a"], rounds(100, 0))
    assert record.late_shares()["a"] < 0.01, "what was is forgotten"
    for number in range(MAX_DRAFTERS):
        record.count([f"d{number}"], rounds(MIN_ROUNDS, MIN_ROUNDS))
    assert record.late_shares() == {f"d{number}": 1.0 for number in range(MAX_DRAFTERS)}


def test_a_record_is_bounded_and_forgets_whom_it_heard_of_longest_ago() -> None:
    record = DrafterRecord()
    for number in range(MAX_DRAFTERS):
        record.count([f"d{number}"], judged(40, 0))
    record.count(["d0"], judged(40, 0))
    record.count(["new"], judged(40, 0))
    assert len(record.rates()) == MAX_DRAFTERS
    assert "d0" in record.rates()
    assert "d1" not in record.rates()


async def test_a_drafter_named_longest_ago_gives_way_and_configured_ones_never() -> None:
    inbox = Inbox(lambda: None)
    pairs = Pairs(["h:1"], fake_identity(), "v", inbox)
    pairs.start()
    try:
        pairs.connect([f"h:{port}" for port in range(2, MAX_PAIRS + 2)])
        pairs.connect(["h:2"])
        assert len(pairs.all()) == 1 + MAX_PAIRS
        third = next(pair for pair in pairs.all() if pair.endpoint == "h:3")
        third._up, third._connection = True, 7
        third.clock.sample(0, 0, 7_500)
        pairs.connect(["h:99"])
        names = {pair.endpoint for pair in pairs.all()}
        assert len(names) == 1 + MAX_PAIRS
        assert {"h:1", "h:2", "h:99"} <= names
        assert "h:3" not in names
        assert pairs.past_round_trips_us == {"h:3": 7}, "how far it is stays known"
        lost = [item for item in inbox.take(0.0) if isinstance(item, PairDown)]
        assert [(down.drafter, down.connection) for down in lost] == [("h:3", 7)], "sessions hear of it"
        pairs.push({("h:3", 7): []})
        pairs.lose_lanes(lost)
        with pytest.raises(InvalidRequest, match="at most"):
            pairs.connect([f"h:{port}" for port in range(100, 101 + MAX_PAIRS)])
    finally:
        async with asyncio.timeout(30.0):
            await pairs.stop()


async def test_a_verifier_with_as_many_drafters_as_it_may_have_takes_those_that_a_coordinator_names() -> None:
    """Else every request that is placed with them is refused, whose client has named none."""
    configured = [f"own:{port}" for port in range(1, MAX_CONFIGURED + 1)]
    pairs = Pairs(configured, fake_identity(), "v", Inbox(lambda: None))
    pairs.start()
    try:
        pairs.connect([])
        for number in range(1, 2 * MAX_PAIRS):
            pairs.connect([f"fleet:{number}", f"fleet:{number + 1}", configured[0]])
        names = {pair.endpoint for pair in pairs.all()}
        assert len(names) == MAX_CONFIGURED + MAX_PAIRS
        assert {*configured, f"fleet:{2 * MAX_PAIRS}", f"fleet:{2 * MAX_PAIRS - 1}"} <= names
    finally:
        async with asyncio.timeout(30.0):
            await pairs.stop()
