"""Explanations from a view, the plan that a policy made of it, and the policy's word on each session.

The part that is the same for every policy. Must not know policies, nor change anything: whoever asks why must not alter what comes next.
"""

from __future__ import annotations

from collections.abc import Callable

from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionPlan, SessionView, StepView
from outrider.session.pacing.explanation import Choice, Estimates, PlanExplanation, Promise, SessionExplanation, Way, Why

ChoiceOf = Callable[[SessionView], Choice]
EstimatesOf = Callable[[SessionView], Estimates]


def estimates_of(session: SessionView) -> Estimates:
    """As the session itself measured them."""
    return Estimates(session.acceptance, session.continue_prob, 2.0 * session.link_us or None, session.draft_us_per_token or None)


def explain_plan(
    policy: str, view: StepView, plan: PacingPlan, cost: CostCurve, choice_of: ChoiceOf, estimated: EstimatesOf = estimates_of
) -> PlanExplanation:
    """plan: what the policy made of this view. cost: of its step, as the policy expects it."""
    parts = {part.session: part for part in plan.take}
    num_rows = sum(part.num_rows for part in plan.take) or sum(1 + session.num_nodes for session in view.sessions)
    wait_us = None if plan.wake_us is None else max(0, plan.wake_us - view.now_us)

    def explained(session: SessionView) -> SessionExplanation:
        part = parts.get(session.session)
        to_wait_us = 0 if part is not None else (wait_us or 0)
        return _session(session, part, choice_of(session), estimated(session), view.now_us, to_wait_us)

    sessions = tuple(explained(session) for session in view.sessions)
    left_us = 0 if plan.take else wait_us
    return PlanExplanation(policy, view.now_us, plan.reason, num_rows, cost.verify_us(num_rows), left_us, plan.repeats, sessions)


def _session(
    session: SessionView, part: SessionPlan | None, choice: Choice, estimates: Estimates, now_us: int, wait_us: int
) -> SessionExplanation:
    return SessionExplanation(
        session=session.session,
        committed_len=session.committed_len,
        choice=choice,
        estimates=estimates,
        num_nodes=0 if part is None else part.max_nodes,
        side_nodes=0 if part is None else part.side_nodes,
        from_lookup=part is not None and part.from_lookup,
        waited_us=max(0, now_us - session.waiting_since_us),
        wait_us=wait_us,
    )


def plain_promise(view: StepView, overhead_us: float = 0.0) -> Promise:
    """A token a session and step. overhead_us: of a round, beside the step."""
    return Promise(Way.PLAIN, 0, 0, 1.0 / (view.cost.verify_us(max(1, len(view.sessions))) + overhead_us))


def no_choice(promise: Promise) -> Choice:
    """There is nothing else that it could do."""
    return Choice(promise, (), Why.ONLY)
