"""Plain decoding: every session in every step, no guesses. The yardstick of all other policies, and their fallback.

Loses whenever a drafter is at all useful and rows are cheap.
"""

from __future__ import annotations

from outrider.session.pacing.contract import PLAIN_REPEATS, PacingPlan, SessionView, StepView
from outrider.session.pacing.explaining import explain_plan, no_choice, plain_promise
from outrider.session.pacing.explanation import PlanExplanation
from outrider.session.pacing.row_budget import Wanted, share_rows


class PlainPacing:
    """Take whatever is ready, one row each."""

    name = "plain"
    drafts = False
    looks_up = False
    hedges = False

    def plan(self, view: StepView) -> PacingPlan:
        """Everybody, at once."""
        take = share_rows([Wanted(session, 0) for session in view.sessions], view.max_rows, view.prefill)
        return PacingPlan(take, None, "plain" if take else "idle", PLAIN_REPEATS)

    def explain(self, view: StepView, plan: PacingPlan) -> PlanExplanation:
        """Nothing was weighed."""
        choice = no_choice(plain_promise(view))
        return explain_plan(self.name, view, plan, view.cost, lambda session: choice)

    def draft_ahead(self, session: SessionView) -> int:
        """Nothing is drafted."""
        return 0

    def lets_rest(self, session: int, committed_len: int) -> bool:
        """Nothing is drafted."""
        return True

    def takes_up_text(self, kind: int, shorter_kind: int) -> bool:
        """Guesses nothing."""
        return False

    def hedge_nodes(self, session: SessionView) -> int:
        """No side branches."""
        return 0

    def flush_len(self, session: SessionView) -> int:
        """Nothing is drafted."""
        return 0
