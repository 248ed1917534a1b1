"""Plain pacing: everybody in every step, one row each, and no drafts."""

from __future__ import annotations

from fakes_pacing import session_view, step_view
from outrider.session.pacing.contract import SessionPlan
from outrider.session.pacing.plain import PlainPacing


def test_everybody_takes_part_without_guesses() -> None:
    plan = PlainPacing().plan(step_view(session_view(1, guessed=4), session_view(2)))
    assert plan.take == (SessionPlan(1, 1, 0), SessionPlan(2, 1, 0))
    assert plan.wake_us is None


def test_a_prompt_takes_the_rows_that_decoding_leaves() -> None:
    plan = PlainPacing().plan(step_view(session_view(1, num_uncached=40), session_view(2), max_rows=16))
    assert set(plan.take) == {SessionPlan(2, 1, 0), SessionPlan(1, 15, 0)}


def test_with_more_sessions_than_rows_the_longest_wait_goes_first() -> None:
    sessions = [session_view(session, waiting_since_us=1000 - session) for session in range(4)]
    plan = PlainPacing().plan(step_view(*sessions, max_rows=2))
    assert [part.session for part in plan.take] == [3, 2]


def test_nothing_is_drafted() -> None:
    policy = PlainPacing()
    assert not policy.drafts
    assert policy.draft_ahead(session_view(1)) == 0
    assert policy.plan(step_view()).take == ()
