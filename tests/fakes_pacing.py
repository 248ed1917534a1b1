"""Session views for tests of pacing policies: a ready session with sensible numbers, changed where a test says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.session.pacing.contract import CostCurve, SessionView, StepView

NOW_US = 1_000_000
FLAT_COST = CostCurve(((1, 10_000.0),))
READY = SessionView(
    session=0,
    committed_len=100,
    num_uncached=1,
    num_nodes=0,
    depth=0,
    tail_ended=False,
    has_drafter=True,
    following=True,
    waiting_since_us=NOW_US,
    draft_deadline_us=NOW_US + 5_000,
    max_draft_len=64,
    remaining=50,
    draft_us_per_token=0.0,
    acceptance=0.0,
)


def session_view(session: int, guessed: int = 0, **changes: Any) -> SessionView:
    """A session with a chain of so many guesses."""
    return replace(READY, session=session, num_nodes=guessed, depth=guessed, **changes)


def step_view(*sessions: SessionView, max_rows: int = 64, cost: CostCurve = FLAT_COST) -> StepView:
    """These sessions, now."""
    return StepView(sessions, cost, max_rows, NOW_US)
