"""What every registered pacing policy owes: it stays within the rows, makes progress, ends every wait, and drafts only where it may."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.session.pacing.contract import PLAIN_REPEATS, CostCurve, PacingPlan, SessionView, StepView
from outrider.session.pacing.explanation import Way
from outrider.session.pacing.prefill_bound import MIN_PREFILL_ROWS, PrefillBound
from outrider.session.pacing.registry import PACINGS, make_pacing

COST = CostCurve(((1, 10_000.0), (8, 11_000.0), (64, 30_000.0)))
NOW_US = 1_000_000
NUM_VIEWS = 80  # of each policy

# These may hold back a session that waits for nothing while others get their guesses: one step for all costs less than two.
GATHERING = {"adaptive"}

every_policy = pytest.mark.parametrize("name", sorted(PACINGS))


@st.composite
def session_views(draw: st.DrawFn, session: int) -> SessionView:
    """Any state the verifier's session may report."""
    depth = draw(st.integers(0, 12))
    committed_len = draw(st.integers(1, 5000))
    max_draft_len, remaining = draw(st.integers(0, 64)), draw(st.integers(1, 500))
    num_looked_up = min(max_draft_len, remaining - 1, draw(st.sampled_from((0, 0, 1, 8, 24))))
    return SessionView(
        session=session,
        committed_len=committed_len,
        num_uncached=draw(st.sampled_from((1, 1, 1, min(2, committed_len), committed_len))),
        num_nodes=draw(st.integers(depth, 3 * depth)),
        depth=depth,
        tail_ended=draw(st.booleans()),
        has_drafter=draw(st.booleans()),
        following=draw(st.booleans()),
        waiting_since_us=NOW_US - draw(st.integers(0, 50_000)),
        draft_deadline_us=NOW_US + draw(st.integers(-20_000, 20_000)),
        max_draft_len=max_draft_len,
        remaining=remaining,
        draft_us_per_token=draw(st.sampled_from((0.0, 300.0, 5_000.0))),
        acceptance=draw(st.floats(0.0, 1.0)),
        lookup_rights=(draw(st.floats(0.01, 1.0)),) * num_looked_up,
        hedge_hit_share=draw(st.sampled_from((0.0, 0.5, 1.0))),
        side_depths=tuple(sorted(draw(st.lists(st.integers(0, 12), max_size=12 if depth else 0)))),
    )


@st.composite
def step_views(draw: st.DrawFn) -> StepView:
    """Up to five sessions and few rows, so that they must share."""
    sessions = tuple(draw(session_views(session)) for session in range(draw(st.integers(0, 5))))
    num_decoding = sum(session.num_uncached == 1 for session in sessions)
    row_us, stretch = draw(st.sampled_from((None, 0.0, 100.0, 2_000.0, 1e6))), draw(st.floats(1.01, 8.0))
    prefill = PrefillBound(COST, stretch, num_decoding, row_us) if num_decoding and draw(st.booleans()) else None
    return StepView(sessions, COST, draw(st.integers(1, 64)), NOW_US, prefill=prefill)


def a_plan_holds_at_most_the_rows_and_only_what_there_is(_: str, view: StepView, plan: PacingPlan) -> None:
    sessions = {session.session: session for session in view.sessions}
    assert len({part.session for part in plan.take}) == len(plan.take)
    assert sum(part.num_rows for part in plan.take) <= view.max_rows
    for part in plan.take:
        session = sessions[part.session]
        assert 1 <= part.max_feed <= session.num_uncached
        assert 0 <= part.max_nodes <= (len(session.lookup_rights) if part.from_lookup else session.num_nodes)
        assert part.max_nodes == 0 or part.max_feed == session.num_uncached
        assert 0 <= part.side_nodes <= (len(session.side_depths) if part.max_nodes and not part.from_lookup else 0)


def prompts_keep_within_the_steps_bound_and_are_read_where_there_is_room(_: str, view: StepView, plan: PacingPlan) -> None:
    reading = {session.session for session in view.sessions if session.num_uncached > 1}
    num_read = sum(part.num_rows for part in plan.take if part.session in reading)
    num_own = sum(part.max_feed + part.max_nodes for part in plan.take if part.session not in reading)
    if view.prefill is not None:
        assert num_read <= view.prefill.num_rows(num_own, view.max_rows - num_own)
        num_unread = sum(session.num_uncached for session in view.sessions if session.session in reading)
        num_decoding = len(view.sessions) - len(reading)
        assert num_read >= min(MIN_PREFILL_ROWS, num_unread, view.max_rows - num_decoding)


def a_prefill_and_whoever_is_past_its_deadline_make_the_step_move(_: str, view: StepView, plan: PacingPlan) -> None:
    due = [session for session in view.sessions if session.num_uncached > 1 or session.draft_deadline_us <= view.now_us]
    if due:
        assert plan.take
    if len(view.sessions) <= view.max_rows:
        taken = {part.session for part in plan.take}
        assert {session.session for session in due if session.num_uncached == 1} <= taken


def whoever_can_hope_for_no_guesses_goes_at_once(name: str, view: StepView, plan: PacingPlan) -> None:
    if name not in GATHERING and len(view.sessions) <= view.max_rows:
        taken = {part.session for part in plan.take}
        decoding = [session for session in view.sessions if session.num_uncached == 1]
        assert {session.session for session in decoding if not session.has_drafter or session.tail_ended} <= taken


def every_wait_has_an_end(_: str, view: StepView, plan: PacingPlan) -> None:
    taken = {part.session for part in plan.take}
    waiting = [session for session in view.sessions if session.session not in taken]
    if waiting and not plan.take:
        assert plan.wake_us is not None
        assert view.now_us < plan.wake_us <= min(session.draft_deadline_us for session in waiting)


def the_same_view_gives_the_same_plan(name: str, view: StepView) -> None:
    policy = make_pacing(name)
    policy.plan(view)
    assert policy.plan(view) == policy.plan(view)


def only_a_policy_that_says_so_takes_guesses_from_the_text_itself(name: str, view: StepView) -> None:
    policy = make_pacing(name)
    assert policy.looks_up or not any(part.from_lookup for part in policy.plan(view).take)


def credit_follows_the_requests_own_bound(name: str, view: StepView) -> None:
    policy = make_pacing(name)
    policy.plan(view)
    for session in view.sessions:
        ahead = policy.draft_ahead(session)
        assert ahead >= 0
        assert policy.flush_len(session) >= 0
        if session.max_draft_len == 0 or not policy.drafts:
            assert ahead == 0


@every_policy
def test_a_policy_carries_the_name_it_is_registered_under(name: str) -> None:
    assert make_pacing(name).name == name


@every_policy
def test_requests_without_drafts_are_planned_once_for_many_steps(name: str) -> None:
    """Asked before each step, `serial` made plain decoding a tenth slower than `plain` does."""
    view = StepView((session_of(1, max_draft_len=0), session_of(2, max_draft_len=0)), COST, 64, NOW_US)
    assert make_pacing(name).plan(view).repeats == PLAIN_REPEATS
    mixed = replace(view, sessions=(session_of(1, max_draft_len=0), session_of(2, max_draft_len=8)))
    assert (make_pacing(name).plan(mixed).repeats == 0) is make_pacing(name).drafts
    offered = replace(view, sessions=(replace(session_of(1, max_draft_len=8), has_drafter=False, lookup_rights=(0.9,) * 6),))
    assert (make_pacing(name).plan(offered).repeats == 0) is (make_pacing(name).drafts or make_pacing(name).looks_up)


def session_of(session: int, max_draft_len: int) -> SessionView:
    """One that decodes, with a drafter."""
    deadline_us = NOW_US + 50_000
    return SessionView(session, 20, 1, 0, 0, False, True, True, NOW_US - 100, deadline_us, max_draft_len, 100, 300.0, 0.8)


def every_plan_can_be_explained_and_asking_why_changes_nothing(name: str, view: StepView) -> None:
    quiet, curious = make_pacing(name), make_pacing(name)
    for _ in range(2):
        plan = curious.plan(view)
        told = curious.explain(view, plan)
        assert told == curious.explain(view, plan)
        assert plan == quiet.plan(view)
        for session in view.sessions:
            assert curious.draft_ahead(session) == quiet.draft_ahead(session)
    assert (told.policy, told.reason, told.at_us) == (name, plan.reason, view.now_us)
    parts = {part.session: part for part in plan.take}
    assert [one.session for one in told.sessions] == [session.session for session in view.sessions]
    for one in told.sessions:
        part = parts.get(one.session)
        assert (one.num_nodes, one.side_nodes) == ((0, 0) if part is None else (part.max_nodes, part.side_nodes))
        assert part is None or one.from_lookup is part.from_lookup
        if one.from_lookup:
            assert one.choice.chosen.way is Way.LOOKUP
        speeds = [promise.tokens_per_us or 0.0 for promise in one.choice.rejected]
        assert speeds == sorted(speeds, reverse=True)
        assert not one.choice.kept or max(speeds) > (one.choice.chosen.tokens_per_us or 0.0)


PLANS_OWE = (
    a_plan_holds_at_most_the_rows_and_only_what_there_is,
    prompts_keep_within_the_steps_bound_and_are_read_where_there_is_room,
    a_prefill_and_whoever_is_past_its_deadline_make_the_step_move,
    whoever_can_hope_for_no_guesses_goes_at_once,
    every_wait_has_an_end,
)
POLICIES_OWE = (
    the_same_view_gives_the_same_plan,
    only_a_policy_that_says_so_takes_guesses_from_the_text_itself,
    credit_follows_the_requests_own_bound,
    every_plan_can_be_explained_and_asking_why_changes_nothing,
)


@every_policy
@settings(max_examples=NUM_VIEWS)
@given(view=step_views())
def test_every_policy_owes_this_whatever_its_sessions_report(name: str, view: StepView) -> None:
    """One view for all that is owed: making it takes longer than looking at it from every side."""
    plan = make_pacing(name).plan(view)
    for plan_holds in PLANS_OWE:
        plan_holds(name, view, plan)
    for holds in POLICIES_OWE:
        holds(name, view)


@every_policy
@settings(max_examples=NUM_VIEWS // 2)
@given(views=st.lists(step_views(), min_size=2, max_size=4), gap_us=st.sampled_from((0, 300, 50_000)))
def test_what_a_policy_saw_before_releases_it_from_nothing(name: str, views: list[StepView], gap_us: int) -> None:
    """Sessions that come, go and change between plans: a policy keeps what it measured, and must not rely on who was there."""
    policy = make_pacing(name)
    for at, view in enumerate(views):
        later_us = at * gap_us
        moved = tuple(replace(one, draft_deadline_us=one.draft_deadline_us + later_us) for one in view.sessions)
        later = replace(view, sessions=moved, now_us=view.now_us + later_us)
        plan = policy.plan(later)
        for plan_holds in PLANS_OWE:
            plan_holds(name, later, plan)
