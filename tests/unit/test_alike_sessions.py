"""Sessions that are alike are believed in; those that differ, or stop guessing when their luck is bad, are told apart."""

from __future__ import annotations

import statistics
from dataclasses import replace
from random import Random

import pytest

from outrider.session import alike_sessions
from outrider.session.alike_sessions import DOUBT, FIRST_TESTS, LEAST_TESTS, MOST_TESTS, NO_SESSIONS, AlikeSessions
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


def test_how_much_is_believed_is_the_correlation_of_two_guesses_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equally long ones that nothing is forgotten of: the unbiased variance of their numbers, beyond that of luck, over all pairs."""
    monkeypatch.setattr(alike_sessions, "KEEP", 1.0)
    known, rights, num_tests = NO_SESSIONS, [40, 45, 50, 38, 57], 60
    for num_right in rights:
        known = known.after(num_tests, num_right)
    rate, num_all = statistics.mean(rights) / num_tests, num_tests * len(rights)
    beyond_luck = len(rights) * statistics.variance(rights) / (rate * (1.0 - rate)) - num_all
    correlation = (DOUBT / (1.0 + LEAST_TESTS) + beyond_luck) / (DOUBT + num_tests * num_all - num_all)
    assert LEAST_TESTS < known.prior_tests < MOST_TESTS
    assert known.prior_tests == pytest.approx(1.0 / correlation - 1.0)


def stopped_sessions(seed: int) -> list[tuple[int, int]]:
    """Guesses and right ones of sessions that are alike, 0.8, and give up guessing once more than half of theirs were wrong."""
    random, found = Random(seed), []
    for _ in range(24):
        num_right = num_tests = 0
        while num_tests < FIRST_TESTS and (num_tests < 2 or 2 * num_right >= num_tests):
            num_right += random.random() < 0.8
            num_tests += 1
        found.append((num_tests, num_right))
    return found


def by_shares(sessions: list[tuple[int, int]]) -> tuple[float, float]:
    """The broken twin, which takes each session's share of right guesses for one number as good as any: guesses that a prior counts for,
    and their rate."""
    shares = [right / tests for tests, right in sessions]
    rate = statistics.mean(shares)
    luck = statistics.mean(rate * (1.0 - rate) / tests for tests, _ in sessions)
    correlation = (statistics.variance(shares) - luck) / (rate * (1.0 - rate) - luck)
    return min(MOST_TESTS, max(LEAST_TESTS, 1.0 / max(correlation, 1e-3) - 1.0)), rate


def test_who_stops_at_bad_luck_is_no_other_kind_of_session() -> None:
    ours, twins = [], []
    for seed in range(100):
        known, sessions = NO_SESSIONS, stopped_sessions(seed)
        for num_tests, num_right in sessions:
            known = known.after(num_tests, num_right)
        ours.append((known.prior_tests, known.right / known.tests))
        twins.append(by_shares(sessions))
    (our_tests, our_rate), (twin_tests, twin_rate) = (map(statistics.mean, zip(*found, strict=True)) for found in (ours, twins))
    assert our_tests > 0.8 * MOST_TESTS
    assert our_rate == pytest.approx(0.8, abs=0.01)
    assert twin_tests < 0.6 * MOST_TESTS
    assert twin_rate < 0.76


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
