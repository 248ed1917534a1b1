"""Sessions that are alike are believed in; those that differ, or stop guessing when their luck is bad, are told apart."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from outrider.session.alike_sessions import FIRST_TESTS, LEAST_TESTS, MOST_TESTS, NO_SESSIONS, AlikeSessions
from outrider.session.statistics import ACCEPTANCE_RATE, FIRST_PRIORS, DraftPriors, SessionStatistics


def known_of(rates: list[float], num_tests: int, seed: int = 1) -> AlikeSessions:
    """After sessions of these rates."""
    random, known = Random(seed), NO_SESSIONS
    for rate in rates:
        known = known.after(num_tests, sum(random.random() < rate for _ in range(num_tests)))
    return known


@pytest.mark.parametrize("rate", [0.3, 0.8, 0.97])
def test_a_prior_of_alike_sessions_counts_for_many_guesses(rate: float) -> None:
    found = [known_of([rate] * 12, 60, seed).prior_tests for seed in range(50)]
    assert sum(found) / len(found) > 0.9 * MOST_TESTS


def test_a_prior_of_sessions_that_differ_counts_for_few() -> None:
    found = [known_of([0.95, 0.3] * 6, 60, seed).prior_tests for seed in range(50)]
    assert max(found) == LEAST_TESTS


def test_how_much_sessions_differ_is_told_by_numbers_too() -> None:
    """Rates of a beta distribution of 15 guesses: half of what is believed is its own after 15."""
    found = []
    for seed in range(200):
        random = Random(seed)
        found.append(known_of([random.betavariate(12.0, 3.0) for _ in range(12)], 60, seed).prior_tests)
    assert 11.0 < sorted(found)[100] < 19.0


def test_who_stops_at_bad_luck_is_no_other_kind_of_session() -> None:
    """A session gives up guessing once its estimate is low: shares of right guesses then differ far more than luck, sums do not."""
    found = []
    for seed in range(100):
        random, known = Random(seed), NO_SESSIONS
        for _ in range(24):
            num_right = num_tests = 0
            while num_tests < FIRST_TESTS and (num_tests < 4 or num_right >= 0.7 * num_tests):
                num_right += random.random() < 0.8
                num_tests += 1
            known = known.after(num_tests, num_right)
        found.append(known.prior_tests)
    assert sum(found) / len(found) > 0.6 * MOST_TESTS


def test_few_sessions_and_few_guesses_say_little() -> None:
    assert known_of([0.8] * 2, 60).prior_tests == LEAST_TESTS
    assert known_of([0.8] * 12, 4).prior_tests < 2 * LEAST_TESTS
    assert known_of([0.8] * 12, 1).prior_tests == pytest.approx(LEAST_TESTS, abs=0.5)
    assert NO_SESSIONS.after(0, 0) is NO_SESSIONS


def session_of(known: DraftPriors, outcomes: list[bool]) -> SessionStatistics:
    stats = SessionStatistics(acceptance=known.acceptance, prior_tests=known.alike.prior_tests)
    stats.count_overtaken(outcomes)
    return stats


def test_two_wrong_guesses_of_six_are_luck_where_sessions_are_alike() -> None:
    """They were a verdict on the whole answer: 0.85 became 0.66, and plain decoding paid more."""
    random, alike = Random(5), FIRST_PRIORS
    for _ in range(20):
        alike = session_of(alike, [random.random() < 0.85 for _ in range(60)]).remembered(alike)
    outcomes = [True, False, True, True, False, True]
    mixed = replace(alike, alike=known_of([0.98, 0.5] * 6, 60))
    assert session_of(alike, outcomes).acceptance > alike.acceptance - 0.05
    assert session_of(mixed, outcomes).acceptance < mixed.acceptance - 0.1


def test_what_is_believed_in_firmly_is_what_all_of_them_showed() -> None:
    """A running mean over four sessions lags behind what they begin with: the next would have begun at 0.9 where all were right."""
    known = FIRST_PRIORS
    for _ in range(5):
        known = session_of(known, [True] * 60).remembered(known)
    assert known.alike.prior_tests == MOST_TESTS
    assert known.acceptance == 1.0
    few = FIRST_PRIORS
    for _ in range(2):
        few = session_of(few, [True] * 60).remembered(few)
    assert 0.7 < few.acceptance < 0.9, "before that as before"


def test_a_session_unlike_all_others_is_found_out() -> None:
    """What was believed in so firmly does not slow its being given up."""
    alike = replace(FIRST_PRIORS, acceptance=0.95, alike=known_of([0.95] * 12, 60))
    assert alike.alike.prior_tests > 0.8 * MOST_TESTS
    stats = session_of(alike, [False] * 6)
    assert stats.acceptance < 0.5
    assert stats.prior_tests == LEAST_TESTS


def test_the_most_that_a_prior_counts_for_is_as_slow_as_the_running_mean() -> None:
    assert 1.0 / (MOST_TESTS + LEAST_TESTS) == ACCEPTANCE_RATE


def test_only_a_sessions_first_guesses_say_how_alike_it_is() -> None:
    stats = session_of(FIRST_PRIORS, [True] * 50 + [False] * 14)
    before = stats.remembered(FIRST_PRIORS).alike
    stats.count_overtaken([False] * 100)
    assert stats.remembered(FIRST_PRIORS).alike == before == NO_SESSIONS.after(FIRST_TESTS, 50)
