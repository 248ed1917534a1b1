"""The model of rounds is asked once enough tokens, enough judged guesses or enough rounds with such were seen; and what is drafted before.

Run: pytest tests/unit/test_pacing_first_lessons.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fakes_adaptive import Driver
from fakes_pacing import READY
from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.first_lessons import FIRST_ROUNDS, FIRST_TESTS, FLAWLESS_TESTS, MAX_FIRST_TOKENS, FirstLessons
from outrider.session.pacing.outlooks import FIRST_LEN, PROMISING_LEN

BEGIN = 10


def seen(num_tokens: int, num_tested: int, session: int = 1) -> SessionView:
    return replace(READY, session=session, committed_len=BEGIN + num_tokens, num_tested=num_tested)


def are_over(lessons: FirstLessons, *sessions: SessionView) -> bool:
    return lessons.are_over(sessions, lambda session: BEGIN)


def test_enough_tokens_of_all_sessions_together() -> None:
    half = MAX_FIRST_TOKENS // 2
    assert not are_over(FirstLessons(), seen(half, 0), seen(half - 1, 0, session=2))
    assert are_over(FirstLessons(), seen(half, 0), seen(half, 0, session=2))


def test_enough_judged_guesses_of_all_sessions_together() -> None:
    half = FIRST_TESTS // 2
    assert not are_over(FirstLessons(), seen(0, half), seen(0, half - 1, session=2))
    assert are_over(FirstLessons(), seen(0, half), seen(0, half, session=2))


def test_fewer_judged_guesses_where_no_session_had_a_wrong_one() -> None:
    right = [replace(seen(0, FLAWLESS_TESTS // 2, session=session), is_flawless=True) for session in (1, 2)]
    assert are_over(FirstLessons(), *right)
    assert not are_over(FirstLessons(), right[0], replace(right[1], is_flawless=False))


def test_enough_rounds_in_which_guesses_were_judged() -> None:
    lessons = FirstLessons()
    for number in range(1, FIRST_ROUNDS):
        assert not are_over(lessons, seen(number, number))
        assert not are_over(lessons, seen(number, number)), "the same round"
    assert are_over(lessons, seen(FIRST_ROUNDS, FIRST_ROUNDS))


# --- the policy ---------------------------------------------------------------------------------------------------------------


def test_before_anything_is_known_it_drafts_in_turns_and_little() -> None:
    driver = Driver()
    assert driver.wait_len() == FIRST_LEN
    assert driver.policy.draft_ahead(driver.session) == FIRST_LEN + 1, "one is for the token that the prompt's own step brings"


@pytest.mark.parametrize(
    ("changes", "leave"),
    [
        ({}, PROMISING_LEN),
        ({"is_flawless": False}, FIRST_LEN),
        ({"num_tested": FIRST_LEN - 1}, FIRST_LEN),
        ({"takes_turns": True}, FIRST_LEN),  # its thread is the target's
    ],
)
def test_a_drafter_that_was_not_wrong_yet_goes_on_before_any_course_is_chosen(changes: dict[str, Any], leave: int) -> None:
    """What is chosen then has use for it, and would find it at rest."""
    driver = Driver()
    driver.policy.draft_ahead(driver.session)
    begun = replace(driver.session, committed_len=driver.session.committed_len + 5, num_tested=FIRST_LEN, is_flawless=True)
    assert driver.policy.draft_ahead(replace(begun, **changes)) == leave


def test_not_where_a_course_was_chosen() -> None:
    driver = Driver()
    driver.policy.draft_ahead(driver.session)
    own = driver.policy._sessions.of(driver.session)
    own.course = own.course._replace(tokens_per_us=1e-3)
    begun = replace(driver.session, committed_len=driver.session.committed_len + 5, num_tested=FIRST_LEN, is_flawless=True)
    assert driver.policy.draft_ahead(begun) == own.course.ahead_len == FIRST_LEN


@pytest.mark.parametrize(
    ("num_tested", "is_flawless", "is_asked"),
    [(FLAWLESS_TESTS - 1, True, False), (FLAWLESS_TESTS, True, True), (FIRST_TESTS - 1, False, False), (FIRST_TESTS, False, True)],
)
def test_fewer_guesses_are_enough_to_ask_the_model_where_none_was_wrong(num_tested: int, is_flawless: bool, is_asked: bool) -> None:
    driver = Driver()
    driver.round(num_tested=num_tested, is_flawless=is_flawless)
    assert (driver.policy._seen_rates is not None) is is_asked


def test_four_rounds_in_which_the_first_guess_was_wrong_are_enough_to_ask_the_model() -> None:
    """Far away each of them costs three steps."""
    driver = Driver()
    for at in range(FIRST_ROUNDS):
        assert driver.policy._seen_rates is None, at
        driver.round(num_tested=at + 1, acceptance=0.3)
    assert FIRST_ROUNDS < FIRST_TESTS
    assert driver.policy._seen_rates is not None
