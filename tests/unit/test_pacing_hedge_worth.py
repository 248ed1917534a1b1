"""Side branches of a drafter close by: only where they promise clearly more, never before their toll can be told, and with hysteresis."""

from __future__ import annotations

from typing import Any

import pytest

from fakes_pacing import session_view
from outrider.session.pacing.contract import CostCurve, SessionView
from outrider.session.pacing.hedge_worth import FORGET_AFTER, MAX_TOLL, SETTLED_COMMITS, HedgeWorth
from outrider.session.pacing.round_model import RoundRates, best_ahead_course, measured_rates

TARGET_US, DRAFT_US = 10_000.0, 1_000.0
FLAT = CostCurve(((1, TARGET_US),))
STEEP = CostCurve(((1, TARGET_US), (33, 9.0 * TARGET_US)))


def rates(cost: CostCurve = FLAT, draft_us: float = DRAFT_US) -> RoundRates:
    return measured_rates(cost, 1, draft_us, link_us=200.0, overhead_us=200.0)


def session(acceptance: float = 0.5, **changes: Any) -> SessionView:
    return session_view(1, acceptance=acceptance, **{"num_hedge_tests": 100, "hedge_hit_share": 0.4} | changes)


def measured(with_us: float | None, without_us: float | None = DRAFT_US) -> HedgeWorth:
    worth = HedgeWorth()
    for _ in range(20):
        if without_us is not None:
            worth.observe(-SETTLED_COMMITS, without_us)
        if with_us is not None:
            worth.observe(SETTLED_COMMITS, with_us)
    return worth


@pytest.mark.parametrize(
    ("acceptance", "cost", "changes", "pays"),
    [
        (0.5, FLAT, {}, True),
        (0.7, FLAT, {}, True),
        (0.98, FLAT, {}, False),  # mismatches are few
        (0.5, STEEP, {}, False),  # rows cost too much
        (0.5, FLAT, {"hedge_hit_share": 0.05}, False),  # hardly any branch is right
        (0.94, FLAT, {"num_hedge_tests": 0, "hedge_hit_share": 0.5}, False),  # nothing is known yet: doubted
        (0.94, FLAT, {"hedge_hit_share": 0.5}, True),
    ],
)
def test_they_pay_where_mismatches_are_many_and_rows_are_cheap(
    acceptance: float, cost: CostCurve, changes: dict[str, object], pays: bool
) -> None:
    assert HedgeWorth().pays(rates(cost), session(acceptance, **changes), is_on=False) is pays


def test_the_toll_is_what_a_guess_takes_longer_and_ends_what_it_makes_too_dear() -> None:
    assert measured(None).toll == 1.0
    assert measured(2.0 * DRAFT_US).toll == pytest.approx(2.0)
    assert measured(0.5 * DRAFT_US).toll == 1.0, "nothing makes a chain faster"
    assert measured(1e9).toll == MAX_TOLL
    for toll, pays in ((1.0, True), (3.0, False)):
        worth = measured(toll * DRAFT_US)
        assert worth.pays(rates(draft_us=toll * DRAFT_US), session(0.6), is_on=True) is pays
        assert worth.pays(rates(), session(0.6), is_on=False) is pays


def test_an_unsettled_time_is_no_measurement() -> None:
    worth = HedgeWorth()
    worth.observe(1 - SETTLED_COMMITS, DRAFT_US)
    worth.observe(SETTLED_COMMITS - 1, 9.0 * DRAFT_US)
    assert (worth.is_comparable, worth.toll) == (False, 1.0)
    worth.observe(-SETTLED_COMMITS, DRAFT_US)
    assert worth.is_comparable


def test_what_guesses_take_without_is_measured_anew_after_a_while() -> None:
    worth = measured(None)
    for _ in range(FORGET_AFTER - 1):
        worth.observe(SETTLED_COMMITS, 1.2 * DRAFT_US)
    assert worth.is_comparable
    worth.observe(SETTLED_COMMITS, 1.2 * DRAFT_US)
    assert not worth.is_comparable
    worth.observe(-SETTLED_COMMITS, DRAFT_US)
    assert worth.is_comparable


def test_in_between_they_stay_as_they_are() -> None:
    """Between beginning and ending lie acceptances at which the present state decides."""
    worth = HedgeWorth()
    decisions = [tuple(worth.pays(rates(), session(at / 100), is_on=is_on) for is_on in (False, True)) for at in range(40, 100)]
    assert (True, True) in decisions
    assert (False, True) in decisions
    assert (False, False) in decisions
    assert (True, False) not in decisions


def test_a_course_with_branches_in_the_step_promises_more_where_rows_are_cheap_and_nothing_where_they_are_dear() -> None:
    for cost, is_more in ((FLAT, True), (STEEP, False)):
        with_sides, without = (best_ahead_course(rates(cost), 0.5, 1.0, 0.4, sides_count=counted) for counted in (True, False))
        assert (with_sides.tokens_per_us > 1.05 * without.tokens_per_us) is is_more
        assert with_sides.tokens_per_us >= without.tokens_per_us
