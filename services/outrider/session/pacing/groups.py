"""When the next step begins where sessions draft in groups: once as many have their whole draft as a group holds, and with those alone.

Nobody is told which group it belongs to: whoever has waited longest goes first, and whoever was in one step drafts while the next runs, so
that groups form by themselves and mend when a session comes or goes. Who does not draft is in every step. Knows session views and what each
hopes for. Must not know why, nor what a group is worth.
"""

from __future__ import annotations

from collections.abc import Callable

from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionView, StepView
from outrider.session.pacing.row_budget import Wanted, share_rows
from outrider.session.pacing.together import Outlook, nodes_within, num_lacking, paying_len


def plan_in_groups(
    view: StepView, outlook_of: Callable[[SessionView], Outlook], cost: CostCurve, tokens_per_us: float, num_groups: int
) -> PacingPlan:
    """Wait for a group, or take one. cost, tokens_per_us: as of plan_together."""
    taken: list[tuple[SessionView, Outlook]] = []
    ready: list[tuple[SessionView, Outlook]] = []
    until_us: list[float] = []
    hurries = False
    for session in view.sessions:
        outlook = outlook_of(session)
        hurries = hurries or session.num_uncached > 1 or view.now_us >= session.draft_deadline_us
        if outlook.in_turns_until_us is None or session.num_uncached > 1:
            taken.append((session, outlook))
        elif outlook.in_turns_until_us > view.now_us and num_lacking(session, outlook, view.now_us):
            until_us.append(min(outlook.in_turns_until_us, session.draft_deadline_us))
        else:
            ready.append((session, outlook))
    size = -(-(len(ready) + len(until_us)) // num_groups)
    if until_us and len(ready) < size and not hurries:
        return PacingPlan((), int(min(until_us)) + 1, "draft")
    ready.sort(key=lambda one: one[0].waiting_since_us)
    taken += ready[:size]
    most = paying_len([session for session, _ in taken], [outlook for _, outlook in taken], cost.shared_by(len(taken)), tokens_per_us)
    wanted = [Wanted(session, nodes_within(session, min(outlook.most, most))) for session, outlook in taken]
    return PacingPlan(share_rows(wanted, view.max_rows, view.prefill), None, "verify")
