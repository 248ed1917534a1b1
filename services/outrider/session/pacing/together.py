"""Who goes now and who is waited for: one step for many costs less than a step for each, but waiting costs too.

Ready sessions are held back only as long as the step that is saved takes: at most until the others' guesses are expected, never beyond
a deadline, and never a prefill. Knows session views and the cost curve. Must not know why a session wants a number of guesses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionView, StepView
from outrider.session.pacing.row_budget import Wanted, share_rows
from outrider.session.pacing.waiting import must_go


@dataclass(frozen=True, slots=True)
class Wish:
    """What a session wants: not to go with fewer guesses than wait_len, to verify at most take_len levels, and when they may be here."""

    wait_len: int
    take_len: int
    eta_us: float


def plan_together(view: StepView, wish_of: Callable[[SessionView], Wish]) -> PacingPlan:
    """Take those that have the guesses they want or can hope for none, unless it pays to wait for the others."""
    wishes = {session.session: wish_of(session) for session in view.sessions}
    going = [session for session in view.sessions if must_go(session, view.now_us) or session.depth >= wishes[session.session].wait_len]
    if not going:
        deadlines = [session.draft_deadline_us for session in view.sessions]
        return PacingPlan((), min(deadlines, default=None), "draft" if deadlines else "idle")
    hold_us = _hold_until(view, going, wishes)
    if hold_us is not None:
        return PacingPlan((), hold_us, "gather")
    wanted = [Wanted(session, _nodes_within(session, wishes[session.session].take_len)) for session in going]
    wake_us = None if len(going) == len(view.sessions) else _next_deadline(view, going)
    return PacingPlan(share_rows(wanted, view.max_rows), wake_us, "verify")


def _nodes_within(session: SessionView, length: int) -> int:
    if session.depth <= length:
        return session.num_nodes
    return session.num_nodes * length // session.depth


def _next_deadline(view: StepView, going: list[SessionView]) -> int:
    taken = {session.session for session in going}
    return min(session.draft_deadline_us for session in view.sessions if session.session not in taken)


def _hold_until(view: StepView, going: list[SessionView], wishes: dict[int, Wish]) -> int | None:
    """When to stop holding back `going`; None = go now."""
    if len(going) == len(view.sessions) or any(s.num_uncached > 1 or view.now_us >= s.draft_deadline_us for s in going):
        return None
    taken = {session.session for session in going}
    late = sorted((wish.eta_us, wish.take_len) for handle, wish in wishes.items() if handle not in taken)
    rows = sum(1 + min(session.num_nodes, wishes[session.session].take_len) for session in going)
    rows_late, best_gain, hold_us = 0, 0.0, None
    for eta_us, take_len in late:
        rows_late += 1 + take_len
        gain = _saved_us(view.cost, rows, rows_late) - max(0.0, eta_us - view.now_us)
        if eta_us > view.now_us and gain > best_gain:
            best_gain, hold_us = gain, eta_us
    if hold_us is None:
        return None
    return min(round(hold_us) + 1, *(session.draft_deadline_us for session in view.sessions))


def _saved_us(cost: CostCurve, rows: int, rows_late: int) -> float:
    return cost.verify_us(rows) + cost.verify_us(rows_late) - cost.verify_us(rows + rows_late)
