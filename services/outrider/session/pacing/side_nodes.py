"""How many nodes of side branches a step verifies beside its chains, over all sessions: as many as are worth their rows.

A drafter's second choice lies beside its guess. Verified in the same step, it makes a mismatch that goes there a token more, and each
further node of its branch another, where otherwise the branch would be found when the round is over, and a step later. With acceptance a
and a share h of mismatches that find a branch, a node with d guesses before it is reached and right in a^d (1 - a) h of the rounds: behind
i guesses of the chain the guess is wrong, the branch right, and d - i more guesses along it. So shallow nodes come first, and how a node is
weighed does not depend on where its branch began. Rows of all sessions share one price, the measured curve's. Knows session views, a step's
plan and the cost of rows. Must not know courses, or which tokens are guessed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from outrider.session.pacing.contract import MAX_SIDE_NODES, CostCurve, PacingPlan, SessionPlan, SessionView, StepView

MAX_WEIGHED = 64  # of all sessions in one step, the best of them: weighing takes time
MIN_SIDE_GAIN = 0.01  # tokens: a node worth less is left out even where rows are free, since planning and merging it are not
# Where side nodes are worth about their price, an estimate that moves a little must not begin and end them at every other step: they begin
# where they are worth this much more than they cost, and end where they are worth so much less.
SWITCH_GAIN = 0.15


def side_gains(session: SessionView, part: SessionPlan) -> list[float]:
    """Expected tokens of each side node that this part of the step could verify too, best first."""
    levels = _levels_of(session, part)
    if not levels or not session.side_depths or part.from_lookup or session.num_uncached > 1:
        return []
    right = min(1.0, max(0.0, session.acceptance))
    deepest = min(levels, session.max_draft_len - 1, session.remaining - 2)
    depths = itertools.takewhile(lambda depth: depth <= deepest, session.side_depths)
    gains = [right**depth * (1.0 - right) * session.hedge_hit_share for depth in itertools.islice(depths, MAX_SIDE_NODES)]
    return [gain for gain in gains if gain >= MIN_SIDE_GAIN]


def _levels_of(session: SessionView, part: SessionPlan) -> int:
    """Levels of guesses that the part verifies."""
    if part.max_nodes >= session.num_nodes:
        return session.depth
    return session.depth * part.max_nodes // session.num_nodes


class SideNodes:
    """Remembers whether the newest step that could have verified side nodes did, and nothing else."""

    def __init__(self) -> None:
        self._is_on = False

    def beside(self, plan: PacingPlan, view: StepView, cost: CostCurve, tokens_per_us: float) -> PacingPlan:
        """The plan with side nodes in its parts. cost: of the step. tokens_per_us: what its time is worth, as in plan_together."""
        if not any(session.side_depths for session in view.sessions):
            return plan
        sessions = {session.session: session for session in view.sessions}
        found = [(gain, part.session) for part in plan.take for gain in side_gains(sessions[part.session], part)]
        num_rows = sum(part.num_rows for part in plan.take)
        best = sorted(found, key=lambda entry: (-entry[0], entry[1]))[: min(MAX_WEIGHED, view.max_rows - num_rows)]
        if not best:
            return plan
        num_taken = self._num_worth([gain for gain, _ in best], num_rows, cost, tokens_per_us)
        self._is_on = num_taken > 0
        if not num_taken:
            return plan
        counts = Counter(session for _, session in best[:num_taken])
        take = tuple(replace(part, side_nodes=counts[part.session]) for part in plan.take)
        return replace(plan, take=take, reason="tree")

    def _num_worth(self, gains: Sequence[float], num_rows: int, cost: CostCurve, tokens_per_us: float) -> int:
        """How many of the best are worth the most beyond what their rows cost; 0 = none is worth its row."""
        trust = 1.0 + SWITCH_GAIN if self._is_on else 1.0 / (1.0 + SWITCH_GAIN)
        before_us = cost.verify_us(num_rows)
        best, best_worth, tokens = 0, 0.0, 0.0
        for num, gain in enumerate(gains, 1):
            tokens += gain
            worth = trust * tokens - tokens_per_us * (cost.verify_us(num_rows + num) - before_us)
            if worth > best_worth:
                best, best_worth = num, worth
        return best
