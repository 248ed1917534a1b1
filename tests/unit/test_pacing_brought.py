"""What drafts in turns really brought, and whom it speaks for; paces while a drafter is opened.

Run: pytest tests/unit/test_pacing_brought.py
"""

from __future__ import annotations

from dataclasses import replace

from fakes_adaptive import Driver
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
