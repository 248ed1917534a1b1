"""Whether the chains of several sessions are followed inside one engine step, or each gets one guess in a step of its own kind.

A step reads the model's weights once for all sessions, a followed chain once for each guess; a followed guess spares the step around it.
So chains pay for small models, whose step is mostly not the reading of weights. Both prices are measured in every step that follows; so
is that of a side branch's row, which stands in steps of its own kind: it has to be worth so many more than a guess of the chain. Knows
microseconds and counts alone. Must not know trees, requests or engines.
"""

from __future__ import annotations

from outrider.types.step import StepResult

# With so many sessions that ask, a step for all of them is about as cheap as chains even for the smallest models (bench/LOG.md).
MAX_FOLLOWING_SESSIONS = 4
# Steps without chains after which they are tried once more: what was measured may have been a disturbance.
STEPS_TO_RETRY = 64
# A followed guess for everybody may cost this share of a step for everybody: commits wait longer for chains than for a step.
WORTHWHILE_SHARE = 0.75
# Guesses that may follow a session's first in one step.
MAX_FOLLOWED = 15
# Guesses that may follow in one step, of all sessions together: a commit may have to wait for them. At most so many while nothing is known
# of what they cost, then as many as take so long.
MAX_FOLLOWED_UNMEASURED = 7
MAX_FOLLOW_US = 1_500.0
# A shorter measurement is believed at once, a longer one at this rate: whatever disturbs makes it longer.
_RATE = 1.0 / 16.0


class FollowCost:
    """What a followed guess and a step of so many sessions cost here."""

    def __init__(self) -> None:
        self._guess_us: float | None = None
        self._step_us: dict[int, float] = {}
        self._branch_row_us: float | None = None
        self._num_refused = 0

    def pays(self, num_sessions: int) -> bool:
        """Whether a guess more for each of the sessions is clearly cheaper followed than by a step for all. True until both are known."""
        if num_sessions == 1:
            return True
        if num_sessions > MAX_FOLLOWING_SESSIONS:
            return False
        step_us = self._step_us.get(num_sessions)
        if self._guess_us is None or step_us is None or num_sessions * self._guess_us <= WORTHWHILE_SHARE * step_us:
            return True
        self._num_refused += 1
        return self._num_refused % STEPS_TO_RETRY == 0

    def most(self, num_sessions: int) -> int:
        """Guesses that may follow each session's first in one step; at least one, for who follows nothing measures nothing more."""
        if self._guess_us is None:
            return min(MAX_FOLLOWED, MAX_FOLLOWED_UNMEASURED // num_sessions)
        return most_followed(num_sessions * self._guess_us)

    @property
    def branch_price(self) -> float:
        """What a row of a side branch costs, in followed guesses; at least one, and one while either is not known."""
        if self._branch_row_us is None or not self._guess_us:
            return 1.0
        return max(1.0, self._branch_row_us / self._guess_us)

    def note_branches(self, result: StepResult) -> None:
        """A step of side branches is over."""
        self._branch_row_us = _measured(self._branch_row_us, result.step_us / result.num_rows)

    def note(self, result: StepResult) -> None:
        """A step of chains is over."""
        num_sessions, follow_us, num_followed = len(result.results), 0, 0
        for outcome in result.results:
            if outcome.follow_us:
                follow_us += outcome.follow_us
                num_followed += len(outcome.picks) - 1
        if num_followed:
            self._guess_us = _measured(self._guess_us, follow_us / num_followed)
        if num_sessions <= MAX_FOLLOWING_SESSIONS and result.num_rows <= 2 * num_sessions:  # nobody reads a prompt
            self._step_us[num_sessions] = _measured(self._step_us.get(num_sessions), result.step_us - follow_us)


def most_followed(guesses_us: float) -> int:
    """Guesses that may follow each session's first in one step, where one more for everybody takes guesses_us: 1..MAX_FOLLOWED."""
    return min(MAX_FOLLOWED, max(1, int(MAX_FOLLOW_US / max(1.0, guesses_us))))


def _measured(known: float | None, measured: float) -> float:
    if known is None or measured < known:
        return measured
    return known + (measured - known) * _RATE
