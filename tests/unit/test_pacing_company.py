"""Drafts in turns of several sessions: one round for all of them, with lengths that pay for all.

Run: pytest tests/unit/test_pacing_company.py
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.session.pacing.company import KEEP_WITHIN, Present, Split, _own_lengths, company_courses
from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.round_model import Course, Pace, RoundRates, chains, measured_rates, plain_course, serial_courses, turn_us

STEP_US = 10_000.0
FREE_ROWS = CostCurve(((1, STEP_US), (256, STEP_US)))
DEAR_ROWS = CostCurve(((1, STEP_US), (256, 12 * STEP_US)))
GOOD, POOR = (0.9, 1.0), (0.2, 1.0)


def rates(num_sessions: int, cost: CostCurve = FREE_ROWS, draft_us: float = 1_000.0) -> RoundRates:
    return measured_rates(cost, num_sessions, draft_us, link_us=100.0, overhead_us=200.0, start_us=50.0)


def together(of_all: RoundRates, shares: list[tuple[float, float] | None], longest: int = 32, present_len: int = 0) -> list[Course]:
    return company_courses([Split(1, of_all)], shares, longest, Present(present_len))


def total(courses: list[Course]) -> float:
    return sum(course.tokens_per_us for course in courses)


@pytest.mark.parametrize("cost", [FREE_ROWS, DEAR_ROWS])
@pytest.mark.parametrize("share", [GOOD, POOR, (0.7, 0.8)])
def test_in_company_of_its_like_a_session_does_what_it_would_alone(share: tuple[float, float], cost: CostCurve) -> None:
    of_four = rates(4, cost)
    best = max(serial_courses(of_four, *share), key=lambda course: course.tokens_per_us)
    for course in together(of_four, [share] * 4, 32, 0):
        assert course.hit_len == best.hit_len
        assert course.tokens_per_us == pytest.approx(best.tokens_per_us)
        assert course.hit_us == pytest.approx(best.hit_us)


def test_all_have_the_same_round_as_long_as_the_longest_draft() -> None:
    courses = together(rates(3, DEAR_ROWS), [GOOD, POOR, GOOD], 32, 0)
    assert len({course.hit_us for course in courses}) == 1
    lengths = [course.hit_len for course in courses]
    assert min(lengths) < max(lengths)
    drafts_us = 50.0 + 2 * 100.0 + max(lengths) * 1_000.0
    assert courses[0].hit_us == pytest.approx(drafts_us + DEAR_ROWS.verify_us(3 + sum(lengths)) + 200.0)


def test_where_rows_cost_something_poor_guesses_are_fewer_and_where_they_do_not_as_many() -> None:
    good, poor = together(rates(2, DEAR_ROWS), [GOOD, POOR], 32, 0)
    assert 1 <= poor.hit_len < good.hit_len
    good, poor = together(rates(2), [GOOD, POOR], 32, 0)
    assert poor.hit_len == good.hit_len


def test_a_session_without_guesses_gets_a_token_in_the_round_of_the_others() -> None:
    good, bare = together(rates(2), [GOOD, None], 32, 0)
    assert (bare.pace, bare.hit_len, bare.ahead_len) == (Pace.PLAIN, 0, 0)
    assert bare.tokens_per_us == pytest.approx(1.0 / good.hit_us)
    assert good.pace is Pace.SERIAL


def test_one_that_may_draft_waits_less_for_guesses_the_more_wait_with_it() -> None:
    alone, crowd = (together(rates(1 + num), [GOOD, *[None] * num], 32, 0)[0] for num in (0, 7))
    assert crowd.hit_len < alone.hit_len


def test_a_length_is_kept_until_another_is_clearly_better_for_all() -> None:
    best = together(rates(2), [GOOD, GOOD], 32, 0)
    length = best[0].hit_len
    near = together(rates(2), [GOOD, GOOD], 32, length - 1)
    assert near[0].hit_len == length - 1
    assert total(near) * (1.0 + KEEP_WITHIN) >= total(best)
    assert together(rates(2), [GOOD, GOOD], 32, 1)[0].hit_len == length
    assert together(rates(2), [GOOD, GOOD], 3, 0)[0].hit_len == 3, "as long as is asked for at most"


def test_the_rates_in_use_decide() -> None:
    slow = replace(rates(2), draft_us=9_000.0)
    assert together(slow, [GOOD, GOOD], 32, 0)[0].hit_len < together(rates(2), [GOOD, GOOD], 32, 0)[0].hit_len


def test_a_round_with_guesses_takes_as_long_as_everybody_elses_are_handled() -> None:
    plainly, handled = rates(4), replace(rates(4), others_us=3_000.0)
    mean_rows = np.array([1.0, 2.0, 5.0])
    assert (handled.round_us(mean_rows) - plainly.round_us(mean_rows)).tolist() == [0.0, 3_000.0, 3_000.0]
    assert turn_us(handled, 3) == turn_us(plainly, 3) + 3_000.0
    assert turn_us(handled, 0) == turn_us(plainly, 0)
    assert plain_course(handled) == plain_course(plainly)
    before, after = (together(each, [GOOD] * 4, 32, 0)[0] for each in (plainly, handled))
    assert after.hit_us - before.hit_us >= 3_000.0
    assert after.tokens_per_us < before.tokens_per_us
    dear = together(replace(rates(4, DEAR_ROWS), others_us=3_000.0), [GOOD] * 4, 32, 0)
    assert dear[0].hit_len >= together(rates(4, DEAR_ROWS), [GOOD] * 4, 32, 0)[0].hit_len, "what a round costs anyway is no row's"


def test_what_a_round_costs_anyway_is_no_row_s_when_each_gets_its_own_length() -> None:
    chances = [GOOD, POOR, GOOD, (0.6, 1.0)]
    emitted, sent = (np.array(each) for each in zip(*(chains(*share, 16) for share in chances), strict=True))
    plainly, handled = rates(4, DEAR_ROWS), replace(rates(4, DEAR_ROWS), others_us=9_000.0)
    speed = 1.0 / STEP_US
    lengths = [_own_lengths(Split(1, each), emitted, sent, 12, speed).tolist() for each in (plainly, handled)]
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) > 1
