"""When a step begins: what waiting is worth, drafts in turns, late drafters, and that no deadline is passed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes_pacing import NOW_US, session_view
from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionView, StepView
from outrider.session.pacing.together import Outlook, plan_together

STEP_US = 10_000.0
FLAT = CostCurve(((1, STEP_US),))
STEEP = CostCurve(((1, 1_000.0), (64, 64_000.0)))
FAR_US = NOW_US + 900_000


def waiting(session: int, guessed: int = 0) -> SessionView:
    return session_view(session, guessed, draft_deadline_us=FAR_US)


def outlook(wanted: int, next_in_us: float, draft_us: float, right: float = 0.9) -> Outlook:
    return Outlook(wanted, max(wanted, 8), right, right, NOW_US + next_in_us, draft_us)


def plan(outlooks: dict[int, Outlook], *sessions: SessionView, cost: CostCurve = FLAT, steps_worth: float = 1.0) -> PacingPlan:
    """steps_worth: tokens that all of them together are expected to get in the time of a step."""
    view = StepView(sessions, cost, 64, NOW_US)
    return plan_together(view, lambda session: outlooks[session.session], cost, steps_worth / cost.verify_us(1))


def test_guesses_are_waited_for_as_long_as_they_add_more_than_the_time_is_worth() -> None:
    """Four guesses at 0.9 add 3.1 tokens: worth three steps where a step yields a token, less than one where it yields four."""
    cheap = {1: outlook(4, 1_000.0, 1_000.0)}
    held = plan(cheap, waiting(1))
    assert (held.take, held.wake_us) == ((), NOW_US + 4_001)
    dear = {1: outlook(4, 10_000.0, 10_000.0)}
    assert plan(dear, waiting(1)).take
    assert not plan(cheap, waiting(1), steps_worth=6.0).take
    assert plan(cheap, waiting(1), steps_worth=9.0).take


def test_whoever_has_guesses_waits_for_the_others_only_while_that_pays() -> None:
    ready, late = waiting(1, guessed=4), waiting(2)
    soon = {1: outlook(4, 0.0, 0.0), 2: outlook(4, 500.0, 500.0)}
    assert not plan(soon, ready, late, steps_worth=5.0).take
    far = {1: outlook(4, 0.0, 0.0), 2: outlook(4, 20_000.0, 500.0)}
    assert [part.session for part in plan(far, ready, late, steps_worth=5.0).take] == [1, 2], "and the late one comes along without"


def test_where_every_row_costs_a_step_a_guess_is_not_waited_for() -> None:
    hopes = {1: outlook(4, 10.0, 10.0, right=0.5)}
    assert not plan(hopes, waiting(1)).take
    assert plan(hopes, waiting(1), cost=STEEP).take


def test_in_turns_a_step_does_not_begin_before_the_guesses_are_there_or_late() -> None:
    """Even where it would pay: a drafter that goes on meanwhile takes the step's cores."""
    hopes = {1: outlook(4, 30_000.0, 30_000.0)._replace(in_turns_until_us=NOW_US + 70_000.0)}
    held = plan(hopes, waiting(1, guessed=1))
    assert (held.take, held.wake_us) == ((), NOW_US + 70_001)
    assert plan(hopes, waiting(1, guessed=4)).take
    assert plan({1: hopes[1]._replace(in_turns_until_us=float(NOW_US))}, waiting(1, guessed=1)).take
    assert plan({**hopes, 2: outlook(0, 0.0, 0.0)}, waiting(1, guessed=1), waiting(2)).take, "not at the price of one that needs none"


def test_guesses_of_all_together_that_make_the_step_too_long_are_left_for_the_next() -> None:
    """Rows are free up to a knee: one session's guesses are under it, sixteen sessions' are far beyond it."""
    knee = CostCurve(((1, 1_000.0), (64, 1_000.0), (512, 8_000.0)))
    alone = plan({1: outlook(0, 0.0, 0.0)}, waiting(1, guessed=8), cost=knee, steps_worth=1.5)
    assert [part.max_nodes for part in alone.take] == [8]
    many = {index: outlook(0, 0.0, 0.0, right=0.6) for index in range(16)}
    view = StepView(tuple(waiting(index, guessed=8) for index in many), knee, 512, NOW_US)
    together = plan_together(view, lambda session: many[session.session], knee, 32.0 / knee.verify_us(1))
    assert [part.max_nodes for part in together.take] == [2] * 16, "48 rows lie under the knee, 80 beyond it"


def test_a_step_that_is_over_before_the_next_guess_comes_is_not_put_off() -> None:
    """Its token would have been verified with the guesses anyway, and it finds out sooner whether the drafter follows."""
    for next_in_us, waits in ((STEP_US / 4, True), (1.5 * STEP_US, False)):
        hopes = {1: outlook(8, next_in_us, 100.0)._replace(goes_on=True)}
        assert bool(plan(hopes, waiting(1), steps_worth=1.1).take) is not waits
    resting = {1: outlook(8, 1.5 * STEP_US, 100.0)}
    assert not plan(resting, waiting(1), steps_worth=1.1).take, "a drafter that rests meanwhile sends nothing meanwhile"


def test_guesses_that_come_during_a_step_serve_the_next_one() -> None:
    """So late in a step, a guess at 0.6 is not worth the time until it comes: most of what it brings comes anyway."""
    hopes = {1: outlook(1, 0.6 * STEP_US, 100.0, right=0.6)}
    assert not plan(hopes, waiting(1), steps_worth=0.9).take
    assert plan({1: hopes[1]._replace(goes_on=True)}, waiting(1), steps_worth=0.9).take


def test_what_is_had_cheaply_after_the_step_is_not_worth_beginning_early_for() -> None:
    """Guesses that come while a step runs are worth no more than what it costs to wait for a drafter that starts over: nearby, little."""
    for anew_us, waits in ((0.3 * STEP_US, True), (2.0 * STEP_US, False)):
        hopes = {1: outlook(8, 0.5 * STEP_US, 100.0, right=0.7)._replace(goes_on=True, burst=8, anew_us=anew_us)}
        assert bool(plan(hopes, waiting(1), steps_worth=2.4).take) is not waits, anew_us


def test_a_tail_that_comes_just_behind_the_step_is_waited_for_and_one_that_comes_late_is_not() -> None:
    """Its drafter started over one token ago. A step now would be over long after it has come, and could not use it."""
    for next_in_us, waits in ((0.1 * STEP_US, True), (0.25 * STEP_US, True), (0.6 * STEP_US, False), (0.9 * STEP_US, False)):
        hopes = {1: outlook(8, next_in_us, 100.0, right=0.7)._replace(goes_on=True, burst=4, num_behind=1)}
        assert bool(plan(hopes, waiting(1), steps_worth=1.5).take) is not waits, next_in_us


def test_what_comes_may_be_in_vain_and_is_then_not_worth_waiting_for() -> None:
    for num_behind, waits in ((0, True), (6, False)):
        hopes = {1: outlook(8, 0.4 * STEP_US, 100.0, right=0.6)._replace(goes_on=True, burst=8, num_behind=num_behind)}
        assert bool(plan(hopes, waiting(1), steps_worth=1.5).take) is not waits


def test_half_of_a_wait_in_vain_is_not_lost() -> None:
    """Two tokens must have been foreseen, which is in vain in three cases of four; meanwhile the drafter hears of it and guesses anew."""
    for next_in_us, waits in ((0.09 * STEP_US, True), (0.2 * STEP_US, False)):
        hopes = {1: outlook(8, next_in_us, 100.0, right=0.5)._replace(goes_on=True, burst=4, num_behind=2)}
        assert bool(plan(hopes, waiting(1), steps_worth=1.5).take) is not waits, next_in_us


def test_guesses_of_a_tail_come_together() -> None:
    hopes = outlook(8, 1_000.0, 100.0)._replace(burst=4, num_behind=1)
    assert [hopes.num_come(NOW_US + at) for at in (0, 999, 1_000, 1_399, 1_400, 1_800)] == [0, 0, 3, 3, 7, 11]
    assert [hopes.eta_us(num) - NOW_US for num in (1, 3, 4, 7, 8)] == [1_000, 1_000, 1_400, 1_400, 1_800]
    every = hopes._replace(num_behind=4)
    assert [every.num_come(NOW_US + at) for at in (999, 1_000, 1_400)] == [0, 4, 8], "a tail of nothing new is none"


@pytest.mark.parametrize("change", [{"tail_ended": True}, {"has_drafter": False}, {"num_uncached": 30}, {"draft_deadline_us": NOW_US}])
def test_nobody_waits_for_what_will_not_come(change: dict[str, object]) -> None:
    hopes = {1: outlook(4, 1_000.0, 1_000.0)._replace(in_turns_until_us=NOW_US + 70_000.0)}
    assert plan(hopes, replace(waiting(1, guessed=1), **change)).take  # type: ignore[arg-type]


def test_no_more_guesses_are_verified_than_hoped_for() -> None:
    (part,) = plan({1: Outlook(2, 3, 0.9, 0.9, NOW_US, 0.0)}, waiting(1, guessed=9)).take
    assert part.max_nodes == 3


@given(
    depths=st.lists(st.integers(0, 8), min_size=1, max_size=9),
    wanted=st.lists(st.integers(0, 8), min_size=9, max_size=9),
    etas=st.lists(st.integers(-20_000, 80_000), min_size=9, max_size=9),
    deadlines=st.lists(st.integers(-5_000, 50_000), min_size=9, max_size=9),
    in_turns=st.booleans(),
    rate=st.floats(0.0, 0.01),
    right=st.floats(0.0, 1.0),
    max_rows=st.integers(1, 32),
)
def test_every_wait_ends_at_the_first_deadline_at_the_latest(
    depths: list[int], wanted: list[int], etas: list[int], deadlines: list[int], in_turns: bool, rate: float, right: float, max_rows: int
) -> None:
    sessions = tuple(session_view(at, depth, draft_deadline_us=NOW_US + deadlines[at]) for at, depth in enumerate(depths))

    def hope(session: SessionView) -> Outlook:
        until_us = NOW_US + 1e9 if in_turns else None
        return Outlook(wanted[session.session], wanted[session.session], right, right, NOW_US + etas[session.session], 700.0, until_us)

    plan = plan_together(StepView(sessions, FLAT, max_rows, NOW_US), hope, FLAT, rate)
    first = min(session.draft_deadline_us for session in sessions)
    if first <= NOW_US:
        assert plan.take
    if not plan.take:
        assert plan.wake_us is not None
        assert NOW_US < plan.wake_us <= first
    assert sum(part.max_feed + part.max_nodes for part in plan.take) <= max_rows


def test_a_step_beside_a_drafter_that_would_soon_rest_is_priced_as_one_that_it_slows() -> None:
    """Guesses that come in a third of a step are not worth waiting for where the step takes as long either way; on shared cores, where it
    takes twice as long beside the drafter, they are. A drafter that runs ahead is at work during any step."""
    hopes = outlook(2, 0.35 * STEP_US, 0.0, right=0.4)
    for slowed_us, goes_on, waits in ((STEP_US, False, False), (2 * STEP_US, False, True), (2 * STEP_US, True, False)):
        view = StepView((waiting(1), waiting(2)), FLAT, 64, NOW_US, CostCurve(((1, slowed_us),)))
        each = {1: hopes._replace(goes_on=goes_on), 2: outlook(0, 0.0, 0.0)}
        planned = plan_together(view, lambda session, each=each: each[session.session], FLAT, 2.0 / STEP_US)  # type: ignore[misc]
        assert bool(planned.take) is not waits, (slowed_us, goes_on)
