"""The part every drafting policy shares: take those who need not wait, and say when to look again for the others.

Knows session views and a policy's own test of readiness. Must not know which policy asks. Progress is guaranteed here: nobody waits past
its deadline, for a drafter that paused, or without one.
"""

from __future__ import annotations

from collections.abc import Callable

from outrider.session.pacing.contract import PLAIN_REPEATS, PacingPlan, SessionView, StepView
from outrider.session.pacing.row_budget import Wanted, share_rows


def must_go(session: SessionView, now_us: int) -> bool:
    """No policy may hold this session back: prefill, no drafts to hope for, or past its deadline."""
    if session.num_uncached > 1 or session.max_draft_len == 0 or session.remaining <= 1:
        return True
    return not session.has_drafter or session.tail_ended or now_us >= session.draft_deadline_us


def plan_or_wait(view: StepView, is_ready: Callable[[SessionView], bool]) -> PacingPlan:
    """Take sessions that must go or are ready by the policy's own test; wake at the earliest deadline of the rest."""
    going = [session for session in view.sessions if must_go(session, view.now_us) or is_ready(session)]
    taken = {session.session for session in going}
    take = share_rows([Wanted(session, session.num_nodes) for session in going], view.max_rows, view.prefill)
    deadlines = [session.draft_deadline_us for session in view.sessions if session.session not in taken]
    reason = "verify" if take else "draft" if deadlines else "idle"
    return PacingPlan(take, min(deadlines, default=None), reason, repeats(view))


def repeats(view: StepView) -> int:
    """Steps that need not be asked for: where no request wants drafts, the next ones are like this one."""
    return 0 if any(session.max_draft_len for session in view.sessions) else PLAIN_REPEATS
