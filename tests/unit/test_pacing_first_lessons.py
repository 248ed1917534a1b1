"""What `adaptive` does before it knows anything, and when it has seen enough to ask the model of rounds.

Run: pytest tests/unit/test_pacing_first_lessons.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fakes_adaptive import Driver
from outrider.session.pacing.first_lessons import FIRST_ROUNDS, FIRST_TESTS, FLAWLESS_TESTS
from outrider.session.pacing.outlooks import FIRST_LEN, PROMISING_LEN


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
