"""A change of how often guesses are right is noticed after a few of them, and luck is hardly ever taken for one."""

from __future__ import annotations

from random import Random

import pytest

from outrider.session.acceptance_shift import AcceptanceShift
from outrider.session.alike_sessions import LEAST_TESTS
from outrider.session.statistics import SETTLED_TESTS, SessionStatistics


def guesses_until_noticed(expected: float, *, right: bool) -> int:
    shift = AcceptanceShift()
    return next(num for num in range(1, 100) if shift.rate_after(expected, right=right) is not None)


@pytest.mark.parametrize(("expected", "num_wrong"), [(0.95, 4), (0.9, 5), (0.7, 9)])
def test_the_surer_guesses_were_the_fewer_wrong_ones_in_a_row_are_a_change(expected: float, num_wrong: int) -> None:
    assert guesses_until_noticed(expected, right=False) == num_wrong
    assert guesses_until_noticed(1.0 - expected, right=True) == num_wrong, "and the other way round"


def test_what_came_before_the_change_counts_for_no_more_than_two_guesses() -> None:
    shift = AcceptanceShift()
    for _ in range(50):
        assert shift.rate_after(0.9, right=True) is None, "as expected, if a little luckier"
    found = [shift.rate_after(0.9, right=False) for _ in range(5)]
    assert found[:4] == [None] * 4
    assert found[4] is not None
    assert found[4] == pytest.approx((2 * 0.9 / 7, 5))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.7, 0.9])
def test_luck_is_hardly_ever_taken_for_a_change(rate: float) -> None:
    shift, random, num = AcceptanceShift(), Random(7), 40_000
    false = sum(shift.rate_after(rate, right=random.random() < rate) is not None for _ in range(num))
    assert false < num / 2_000


def test_a_sessions_acceptance_follows_a_text_that_changes() -> None:
    """Which a mean over thirty guesses does not: it believes in more than half for twenty guesses yet."""
    stats, random = SessionStatistics(), Random(3)
    stats.count_overtaken([random.random() < 0.95 for _ in range(200)])
    assert stats.acceptance > 0.85
    stats.count_overtaken([False] * 7)
    assert stats.acceptance < 0.45
    stats.count_overtaken([random.random() < 0.1 for _ in range(40)])
    assert stats.acceptance < 0.25
    stats.count_overtaken([True] * 12)
    assert stats.acceptance > 0.6
    assert stats.num_tested == 259


def test_the_first_guesses_of_a_session_are_no_change() -> None:
    """What was expected of them is no more than a guess itself, and the mean is quick there."""
    stats = SessionStatistics(acceptance=0.95)
    num_first = SETTLED_TESTS - int(LEAST_TESTS)
    stats.count_overtaken([False] * num_first)
    assert stats.acceptance == pytest.approx(0.95 * LEAST_TESTS / SETTLED_TESTS)


def test_a_change_that_a_mean_follows_soon_is_left_to_it() -> None:
    shift = AcceptanceShift()
    assert [shift.rate_after(0.6, right=True) for _ in range(40)] == [None] * 40
