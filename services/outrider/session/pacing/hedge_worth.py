"""Whether side branches pay for a drafter close by: there a mismatch costs little, and what they bring is tokens of the step itself.

Asking for them can have a toll: side branches of one session hold up the chain of another, and a drafter that follows no chains, or that
has other reasons to go guess by guess, pays for second choices. It is measured as how much longer a guess takes while they are asked for
than while they are not, and what the model of rounds promises with them, at that toll, is compared with what it promises without. So they
begin only when it is known what guesses take without them, and leave off for a moment when that was long ago. Knows sessions' measured
numbers and the model of rounds. Must not know courses that were chosen, nor how far away a drafter is.
"""

from __future__ import annotations

from dataclasses import replace

from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.round_model import RoundRates, best_ahead_course

# Promised with side branches over without, to begin with them and to keep them: they are begun before their toll is known, and what they
# bring is a promise.
BEGIN_GAIN, KEEP_GAIN = 0.06, 0.03
SETTLED_COMMITS = 12  # in a row with side branches, or without: a session's running mean of drafting times lags behind
TOLL_RATE = 1 / 4
FORGET_AFTER = 256  # measurements with side branches, after which what guesses take without is measured anew
MAX_TOLL = 16.0
# The share of mismatches that is taken to find a branch until some were tested: trying costs something, and close by there is less to win.
DOUBT_SHARE, DOUBT_TESTS = 0.25, 8


class HedgeWorth:
    """Running means of the time that a guess takes, with side branches and without (us); 0 = not measured."""

    def __init__(self) -> None:
        self._with_us = self._without_us = 0.0
        self._num_with = 0

    @property
    def is_comparable(self) -> bool:
        """Whether it is known what guesses take without side branches: before that, nobody close by is asked for any."""
        return self._without_us > 0.0

    @property
    def toll(self) -> float:
        """How many times longer a guess takes while side branches are asked for; 1 while that is not known."""
        if not self._with_us or not self._without_us:
            return 1.0
        return min(MAX_TOLL, max(1.0, self._with_us / self._without_us))

    def observe(self, num_commits: int, draft_us: float) -> None:
        """A session's drafting time of a token. num_commits: in a row with side branches; negative: without."""
        if num_commits >= SETTLED_COMMITS:
            self._with_us = _followed(self._with_us, draft_us)
            self._num_with += 1
            if self._num_with >= FORGET_AFTER:
                self._without_us = 0.0
        elif num_commits <= -SETTLED_COMMITS:
            self._without_us = _followed(self._without_us, draft_us)
            self._num_with = 0

    def pays(self, rates: RoundRates, session: SessionView, *, is_on: bool) -> bool:
        """rates: of running ahead, as measured now. is_on: side branches are asked for now."""
        right, hit_share = (session.acceptance, session.continue_prob), _doubted(session)
        with_us, without_us = (rates.draft_us, rates.draft_us / self.toll) if is_on else (rates.draft_us * self.toll, rates.draft_us)
        hedged = best_ahead_course(replace(rates, draft_us=with_us), *right, hit_share, sides_count=True)
        bare = best_ahead_course(replace(rates, draft_us=without_us), *right)
        return hedged.tokens_per_us > (1.0 + (KEEP_GAIN if is_on else BEGIN_GAIN)) * bare.tokens_per_us


def _doubted(session: SessionView) -> float:
    trust = session.num_hedge_tests / (DOUBT_TESTS + session.num_hedge_tests)
    return min(session.hedge_hit_share, DOUBT_SHARE + trust * (session.hedge_hit_share - DOUBT_SHARE))


def _followed(known: float, measured: float) -> float:
    return known + TOLL_RATE * (measured - known) if known else measured
