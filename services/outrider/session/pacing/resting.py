"""How far a drafter close by may guess so that it is at rest when the next commit comes, where that is worth more than guessing on.

A drafter that is told to start over first ends the token that it is at. Of a slow one that is half a token's time on average, a sixth of a
step where it makes three guesses a step, lost at every mismatch; one that has just ended its guesses then begins at once. If the commit
confirms them it has lost what was left of the step: little where a step takes hardly more than a whole number of guesses, as with PEARL's
block (ALGORITHMS A.1). Knows a session's view, its course and times that are handed in. Must not know whether running ahead pays.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.round_model import Course

NEAR_STEPS = 0.1  # there and back: across more, who is at rest hears late
LEAD_WORTH = 2.0  # drafting time lost where guesses are confirmed, in such time lost where they are not: the lead that it gains lasts
SLACK = 0.02  # of a guess: times are measured


@dataclass(slots=True)
class Reach:
    """Where a drafter is thought to be: the length of text and guesses at a commit, when that was (us), and how far it had leave then.
    What it has sent since is not looked at yet when the next leave goes out."""

    tip_len: int = 0
    at_us: int = 0
    until_len: int = 0

    def leave(self, session: SessionView, course: Course, most: int, step_us: float, draft_us: float) -> int:
        """Tokens beyond the newest commit, at most `most`, for a session that runs ahead. step_us: with what a round takes beside it;
        draft_us: of a guess beside it."""
        held = self._held(session, draft_us)
        leave = self._rested(session, course, held, step_us, draft_us)
        self.until_len = session.committed_len + (most if leave is None else min(leave, most))
        return self.until_len - session.committed_len

    def _held(self, session: SessionView, draft_us: float) -> int:
        """Guesses beyond the newest commit, if all were right."""
        num_since = int((session.waiting_since_us - self.at_us) / draft_us + SLACK)
        tip_len = min(self.until_len, self.tip_len + num_since) if session.following else 0
        self.tip_len, self.at_us = max(session.committed_len, tip_len), session.waiting_since_us
        return self.tip_len - session.committed_len

    def _rested(self, session: SessionView, course: Course, held: int, step_us: float, draft_us: float) -> int | None:
        """None: it should go on. A session whose guesses were never judged is not known to start over where it seems to."""
        num_fitting = int(step_us / draft_us + SLACK)
        if not session.num_tested or course.hit_len >= num_fitting:
            return None  # each round wants as many guesses as its step has time for, or more
        idle = max(0.0, step_us / draft_us - num_fitting)
        follows = (session.acceptance * session.continue_prob) ** (1 + min(course.hit_len, held))
        if (1.0 - follows) * (1.0 - idle) <= LEAD_WORTH * follows * idle:
            return None
        return max(held, course.hit_len if session.following else course.miss_len) + num_fitting
