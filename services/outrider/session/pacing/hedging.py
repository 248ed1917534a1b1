"""Whether a session's drafter should guess beside its chain, and how much: the budget of side branches.

A side branch pays when a mismatch finds it: the next round has guesses at once, where it would have waited for a commit to reach the
drafter and its guesses to come back, or would have gone without. So it pays with the distance of the drafter, and not where drafting slows
the target's own steps. Close by it pays by what it adds to the step itself, where rows are cheap (hedge_worth.py). Knows a session's
measured numbers. Must not know rounds, or which branches are likely: that is the drafter's.
"""

from __future__ import annotations

from outrider.session.pacing.contract import MAX_HEDGE_NODES, SessionView

MIN_AWAY_STEPS = 0.2  # there and back, in steps of the target: nearer, a mismatch costs little by itself
MAX_CONTENTION = 1.1  # a target's step beside a drafter at work, over one alone
MIN_HIT_SHARE = 0.1  # of mismatches: fewer are not worth the drafter's time
MIN_HEDGE_TESTS = 32  # mismatches before the share is believed


def hedge_budget(session: SessionView, link_us: float, step_us: float, contention: float, *, pays_near: bool = False) -> int:
    """Live nodes of side branches. link_us: one way; step_us: of the target; contention: how much longer it takes beside a drafter.
    pays_near: they do even if the drafter is close by."""
    if step_us <= 0.0 or (is_near(link_us, step_us) and not pays_near) or contention > MAX_CONTENTION:
        return 0
    if session.num_hedge_tests >= MIN_HEDGE_TESTS and session.hedge_hit_share < MIN_HIT_SHARE:
        return 0
    return MAX_HEDGE_NODES


def is_near(link_us: float, step_us: float) -> bool:
    """Whether a mismatch costs little by itself."""
    return 2.0 * link_us < MIN_AWAY_STEPS * step_us
