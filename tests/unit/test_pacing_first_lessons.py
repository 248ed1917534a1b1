"""The model of rounds is asked once enough tokens, enough judged guesses or enough rounds with such were seen."""

from __future__ import annotations

from dataclasses import replace

from fakes_pacing import READY
from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.first_lessons import FIRST_ROUNDS, FIRST_TESTS, MAX_FIRST_TOKENS, FirstLessons

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


def test_enough_rounds_in_which_guesses_were_judged() -> None:
    lessons = FirstLessons()
    for number in range(1, FIRST_ROUNDS):
        assert not are_over(lessons, seen(number, number))
        assert not are_over(lessons, seen(number, number)), "the same round"
    assert are_over(lessons, seen(FIRST_ROUNDS, FIRST_ROUNDS))
