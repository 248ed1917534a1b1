"""What there is to plan for one session alone that drafts in turns and whose drafter has said all that it will: its whole draft is
verified, now.

Waiting brings nothing, nobody's time is to be weighed against it, and no part of the draft is left out: its course has bounded it already,
and of a drafter on the target's own thread the round after it may be computed meanwhile (engine/round_ahead.py), of whole drafts only, and
a rest of one makes the next another than was foreseen. To find so by weighing takes most of a plan's time, between a draft and its step.
Must not know courses, nor what is remembered of sessions.
"""

from __future__ import annotations

from outrider.session.pacing.contract import PacingPlan, SessionPlan, StepView


def whole_draft(view: StepView, most: int, *, in_turns: bool) -> PacingPlan | None:
    """The step over it; None where there is more to weigh. most: guesses that the session may verify. in_turns: it drafts so."""
    session = view.sessions[0]
    if len(view.sessions) > 1 or not in_turns or not session.tail_ended or session.num_uncached > 1:
        return None
    if not session.num_nodes or session.num_nodes > session.depth or session.side_depths:
        return None
    return PacingPlan((SessionPlan(session.session, 1, min(session.num_nodes, most, view.max_rows - 1)),), None, "verify")
