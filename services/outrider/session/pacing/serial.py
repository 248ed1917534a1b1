"""Classical speculative decoding: draft gamma tokens, then verify them, in turns.

Leviathan et al. 2023, Chen et al. 2023 (ALGORITHMS section 0): a round emits (1 - alpha^(gamma+1)) / (1 - alpha) tokens in the time of
gamma draft steps and one target step. The drafter may stop earlier by confidence (its tail then says that it ended). Loses to pearl when
drafting takes a good part of the round and acceptance is high; wins when the drafter is very fast or shares the target's cores.
"""

from __future__ import annotations

from outrider.session.pacing.contract import PacingPlan, SessionView, StepView
from outrider.session.pacing.draft_length import DraftLength, serial_tokens_per_us
from outrider.session.pacing.explaining import explain_plan
from outrider.session.pacing.explanation import PlanExplanation, Way
from outrider.session.pacing.waiting import plan_or_wait


class SerialPacing:
    """draft_len: gamma; None finds the length of best expected throughput from measured times and acceptance."""

    name = "serial"
    drafts = True
    looks_up = False
    hedges = False

    def __init__(self, draft_len: int | None = None) -> None:
        self._length = DraftLength(draft_len, serial_tokens_per_us)

    @property
    def draft_len(self) -> int:
        """gamma at present."""
        return self._length.value

    def plan(self, view: StepView) -> PacingPlan:
        """Verify those whose whole draft is there."""
        self._length.update(view)
        return plan_or_wait(view, lambda session: session.depth >= self._length.of(session))

    def explain(self, view: StepView, plan: PacingPlan) -> PlanExplanation:
        """Its lengths were weighed against each other."""
        return explain_plan(self.name, view, plan, view.turn_cost, lambda session: self._length.choice(session, Way.IN_TURNS))

    def draft_ahead(self, session: SessionView) -> int:
        """One draft and no more: the drafter rests while its guesses are verified."""
        return self._length.of(session) if session.max_draft_len else 0

    def lets_rest(self, session: int, committed_len: int) -> bool:
        """Every session drafts, unless its view says otherwise."""
        return False

    def takes_up_text(self, kind: int, shorter_kind: int) -> bool:
        """Guesses are drafted."""
        return False

    def hedge_nodes(self, session: SessionView) -> int:
        """No side branches."""
        return 0

    def flush_len(self, session: SessionView) -> int:
        """The whole draft in one tail."""
        return 0
