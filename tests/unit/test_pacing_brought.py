"""What drafts in turns really brought, and whom it speaks for; paces while a drafter is opened.

Run: pytest tests/unit/test_pacing_brought.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes_adaptive import TARGET_US, Driver
from outrider.session.pacing.achieved_speed import AchievedSpeed
from outrider.session.pacing.first_lessons import FIRST_TESTS
from outrider.session.pacing.round_model import Pace


def test_what_drafts_in_turns_brought_speaks_for_nobody_who_goes_otherwise() -> None:
    """A drafter that runs ahead in vain costs each round little, and is told by its promise alone."""
    driver = Driver()
    for _ in range(2 * FIRST_TESTS):
        driver.round(acceptance=0.9, draft_us_per_token=2_000.0)
    own = driver.policy._sessions.of(driver.session)
    own.drafted.count(100, 20.0)
    for pace, speaks in ((Pace.PLAIN, False), (Pace.SERIAL, True), (Pace.AHEAD, False)):
        own.course = own.course._replace(pace=pace)
        assert (driver.policy._brought(own) > 0.0) is speaks


def test_guesses_from_the_text_must_promise_more_than_drafts_in_turns_brought() -> None:
    driver = Driver()
    for _ in range(2 * FIRST_TESTS):
        driver.round(acceptance=0.9, draft_us_per_token=2_000.0)
    policy, own = driver.policy, driver.policy._sessions.of(driver.session)
    plain = policy._by_lookup.plain_speed
    own.course = own.course._replace(pace=Pace.SERIAL, tokens_per_us=0.5 * plain)
    for at, (num_rounds, is_looked_up) in enumerate(((1_000.0, True), (10.0, False)), 1):
        own.drafted.count(1_000, num_rounds)
        session = replace(driver.session, committed_len=driver.session.committed_len + at, lookup_rights=(0.9,) * 4)
        assert (policy._num_looked_up(session) > 0) is is_looked_up


def test_while_a_drafter_is_opened_paces_are_those_of_before() -> None:
    """A resident drafter cannot run ahead, and is not promised to while nobody is told of it."""
    driver = Driver()
    for _ in range(2 * FIRST_TESTS):
        driver.round(acceptance=0.9, draft_us_per_token=2_000.0, takes_turns=True)
    for _ in range(4 * FIRST_TESTS):
        driver.round(has_drafter=False, takes_turns=False)
        assert driver.policy._sessions.of(driver.session).course.pace is not Pace.AHEAD


def test_plain_decoding_is_worth_what_it_brought_lately_and_no_more_than_is_expected() -> None:
    driver = Driver()
    for _ in range(2 * FIRST_TESTS):
        driver.round(acceptance=0.9, draft_us_per_token=2_000.0)
    policy, session = driver.policy, driver.session
    kind = policy._sessions.kind(session)
    for num_rounds, share in ((1_250.0, 0.8), (100_000.0, 0.01), (1.0, 1.0)):
        kind.plain = AchievedSpeed()
        kind.plain.count(1_000, num_rounds)
        assert policy._sessions.plain_share(session, 1.0) == pytest.approx(share)


def test_plain_steps_that_are_computed_ahead_may_bring_more_than_is_expected() -> None:
    """Rounds with guesses of a drafter elsewhere do not tell what passes beside those."""
    driver = Driver()
    for _ in range(2 * FIRST_TESTS):
        driver.round(acceptance=0.9, draft_us_per_token=2_000.0)
    sessions, session = driver.policy._sessions, driver.session
    plain = sessions.kind(session).plain = AchievedSpeed()
    assert sessions.plain_share(session, 1.3, hides=True) == 1.3, "before it was tried, all that passes beside a step"
    plain.count(1_000, 1_000 / 0.9)
    assert sessions.plain_share(session, 1.3, hides=True) == pytest.approx(1.17)
    assert sessions.plain_share(session, 1.3) == 1.0
    own_thread = replace(session, takes_turns=True)
    assert sessions.plain_share(own_thread, 1.3, hides=True) == 1.0, "there rounds are timed whole"


@pytest.mark.parametrize("plain_ahead", [True, False])
def test_whether_plain_steps_are_computed_ahead_is_what_the_view_says(plain_ahead: bool) -> None:
    """Drafts that bring more than is expected of plain decoding end for what it brings."""
    driver = Driver()
    for _ in range(2 * FIRST_TESTS):
        driver.round(acceptance=0.6, draft_us_per_token=12_000.0)
    policy, session = driver.policy, driver.session
    own = policy._sessions.of(session)
    own.drafted, own.course = AchievedSpeed(), own.course._replace(pace=Pace.SERIAL)
    plain = policy._sessions.kind(session).plain = AchievedSpeed()
    plain.count(1_000, 1_000 / 3.0)
    policy._look(replace(driver.view(session), plain_ahead=plain_ahead))
    assert (own.course.pace is Pace.PLAIN) is plain_ahead


def test_rounds_that_stalled_count_for_three_whether_drafted_or_plain() -> None:
    """A virtual machine stops for milliseconds now and then: held against one way only, it would decide."""
    brought = {}
    for pace in (Pace.PLAIN, Pace.SERIAL):
        driver = Driver()
        for _ in range(2 * FIRST_TESTS):
            driver.round(acceptance=0.9, draft_us_per_token=2_000.0)
        policy = driver.policy
        own, kind = policy._sessions.of(driver.session), policy._sessions.kind(driver.session)
        kind.drafted, kind.plain = AchievedSpeed(), AchievedSpeed()
        for _ in range(40):
            own.course = own.course._replace(pace=pace)
            policy._look_times.at_us = driver.now_us + 1_000_000_000
            policy._surprises.looked(driver.now_us)
            own.looked_at = driver.session.acceptance
            own.was_plain, own.comparable, own.expected_us = pace is Pace.PLAIN, pace is Pace.SERIAL, TARGET_US
            driver.now_us += int(99 * TARGET_US)
            driver.round()
        brought[pace] = (kind.plain if pace is Pace.PLAIN else kind.drafted).speed
    assert brought[Pace.PLAIN] == pytest.approx(1.0 / 3.0, rel=0.05)
    assert brought[Pace.SERIAL] == pytest.approx(2.0 / 3.0, rel=0.05), "two tokens a round, each as long as three are expected to take"
