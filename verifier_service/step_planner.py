"""One step out of several pacing policies: each plans its own sessions, and the rows they leave go to the next.

Requests may name a policy of their own, and drafts may be of several shapes; the policies do not know of each other, and what the prompts
of one take of the step's bound on reading, those of the next cannot have. Knows the registry and row counts. Must not know sessions beyond
their views. The order of policies turns from step to step, so that none starves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from outrider.session.pacing.contract import CostCurve, Pacing, PacingPlan, SessionPlan, SessionView, StepView
from outrider.session.pacing.explanation import PlanExplanation
from outrider.session.pacing.prefill_bound import PrefillBound
from outrider.session.pacing.registry import make_pacing
from verifier_service.policy_key import PolicyKey


class StepPlanner:
    """Policies, made when first asked for: at most one for each name that is registered and shape of drafts. draft_len: None = measured.
    tell: is given the explanation of every plan of every policy; None, and none is made."""

    def __init__(self, draft_len: int | None, tell: Callable[[PlanExplanation], None] | None = None) -> None:
        self._draft_len = draft_len
        self._tell = tell
        self._policies: dict[PolicyKey, Pacing] = {}
        self._turn = 0

    def policy(self, key: PolicyKey) -> Pacing:
        """The policy shared by all sessions of this key; raises InvalidRequest for an unknown name."""
        if key not in self._policies:
            self._policies[key] = make_pacing(key.name, self._draft_len)
        return self._policies[key]

    def plan(
        self,
        views: Sequence[tuple[PolicyKey, SessionView]],
        cost: CostCurve,
        max_rows: int,
        now_us: int,
        cost_drafting: CostCurve | None = None,
        prefill: PrefillBound | None = None,
        cost_ahead: CostCurve | None = None,
        guess_us: float = 0.0,
        plain_ahead: bool = False,
    ) -> PacingPlan:
        """Plan all sessions, each given with its policy's key; wakes at the earliest time any policy asks for. prefill: of the whole
        step. cost_ahead: of one session's steps, so for one policy only. guess_us, plain_ahead: as in StepView."""
        self._turn += 1
        groups: dict[PolicyKey, list[SessionView]] = {}
        for key, view in views:
            groups.setdefault(key, []).append(view)
        if len(groups) == 1:
            ((key, own),) = groups.items()
            of_all = StepView(tuple(own), cost, max_rows, now_us, cost_drafting, prefill, cost_ahead, guess_us, plain_ahead)
            return self._planned(key, of_all)
        keys = sorted(groups)
        take: list[SessionPlan] = []
        wakes: list[int] = []
        reasons: list[str] = []
        for at in range(len(keys)):
            key = keys[(at + self._turn) % len(keys)]
            left = max_rows - sum(entry.num_rows for entry in take)
            if left <= 0:
                break
            plan = self._planned(key, StepView(tuple(groups[key]), cost, left, now_us, cost_drafting, prefill, guess_us=guess_us))
            take += plan.take
            prefill = _what_is_left(prefill, plan, groups[key])
            reasons.append(plan.reason)
            if plan.wake_us is not None:
                wakes.append(plan.wake_us)
        return PacingPlan(tuple(take), min(wakes, default=None), "+".join(reasons) or "idle")

    def _planned(self, key: PolicyKey, view: StepView) -> PacingPlan:
        policy = self._policies[key]
        plan = policy.plan(view)
        if self._tell is not None:
            self._tell(policy.explain(view, plan))
        return plan


def _what_is_left(prefill: PrefillBound | None, plan: PacingPlan, sessions: Sequence[SessionView]) -> PrefillBound | None:
    """Of a step's bound, after what a policy took for the prompts among its sessions."""
    if prefill is None:
        return None
    reading = {session.session for session in sessions if session.num_uncached > 1}
    return replace(prefill, num_taken=prefill.num_taken + sum(part.num_rows for part in plan.take if part.session in reading))
