"""PEARL: drafting and verifying in parallel, in blocks of gamma tokens (Liu et al., ICLR 2025; ALGORITHMS A.1).

PRE (the drafter starts over): verify at once without guesses, while the drafter writes its first block; the target's pick tests the block's
first token. POST (that pick was guessed): wait for the block of gamma, verify what of it is left while the next block is being written;
the pick after the last guess tests the next block's first token, so that a wholly accepted round emits gamma tokens and stays in POST.
Per target time: (1 - pi) + pi * E_post, pi = alpha / (alpha + 1 - alpha^gamma), at gamma = T_target / T_draft.

A block has at least two tokens: of one, whose first token a pick tests, nothing is ever verified, and single tokens do not tell the start
of a draft from its tokens, so that gamma = 1 would confirm itself for ever (0 guesses verified in 256 tokens; bench/LOG.md).

Unlike the paper, a block that is late costs at most the round's deadline, and the drafter may go on into the next block before it hears
the verdict. Loses to serial when the drafter is much faster than the target and acceptance is low.
"""

from __future__ import annotations

from outrider.session.pacing.contract import PacingPlan, SessionView, StepView
from outrider.session.pacing.draft_length import DraftLength, pearl_tokens_per_us
from outrider.session.pacing.explaining import explain_plan
from outrider.session.pacing.explanation import PlanExplanation, Way
from outrider.session.pacing.waiting import plan_or_wait

LEAST_BLOCK = 2


class PearlPacing:
    """draft_len: gamma, the block; None finds it from measured times (about T_target / T_draft). At least LEAST_BLOCK."""

    name = "pearl"
    drafts = True
    looks_up = False
    hedges = False

    def __init__(self, draft_len: int | None = None) -> None:
        self._length = DraftLength(draft_len, pearl_tokens_per_us, overlaps=True, least=LEAST_BLOCK)

    @property
    def draft_len(self) -> int:
        """gamma at present."""
        return self._length.value

    def plan(self, view: StepView) -> PacingPlan:
        """PRE rounds at once, POST rounds when their block is there."""
        self._length.update(view)
        return plan_or_wait(view, self._is_ready)

    def _is_ready(self, session: SessionView) -> bool:
        """PRE: nothing can follow yet, so pre-verify. POST: the block less its first token, which the last pick has tested."""
        return not session.following or session.depth >= self._length.of(session) - 1

    def explain(self, view: StepView, plan: PacingPlan) -> PlanExplanation:
        """Its lengths were weighed against each other."""
        return explain_plan(self.name, view, plan, view.overlapped_cost, lambda session: self._length.choice(session, Way.AHEAD))

    def draft_ahead(self, session: SessionView) -> int:
        """What is left of the block being verified, and the whole next block."""
        return 2 * self._length.of(session) - 1 if session.max_draft_len else 0

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
        """A tail per block."""
        return self._length.of(session)
