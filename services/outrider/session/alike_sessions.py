"""How much alike sessions of one kind are: how many guesses of its own it takes for a session to be believed rather than those before it.

Of sessions whose guesses are all right at one rate, the first wrong ones of the next are luck; of sessions that differ, they are news. Were
every session's rate drawn from a beta distribution, it would count for (1 - c) / c guesses of the session's own, c the correlation of two
guesses of one session. That is how much further than luck alone the numbers of right guesses lie from what their mean rate says: summed
squared distances, not means of shares, for a session that has bad luck stops guessing, and of distances from where it stopped the sum
alone is what it would be had it gone on (Wald's second identity). Source: our own; the beta-binomial's correlation by moments is Ridout,
Demetrio and Firth 1999, "Estimating intraclass correlation for binary data". Must not know sessions, drafters or what a rate is used for.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_TESTS, MOST_TESTS = 4.0, 28.0  # guesses that a prior counts for; beyond the most, a running mean of a rate of 1/32 is as quick
FIRST_TESTS = 64  # of a session: what its prior has a say in
KEEP = 0.9  # of what is known, with each session that shows as much as one can
LEAST_SESSIONS = 3.0  # that are known of, for anything to follow
DOUBT = 1_000.0  # pairs of guesses that the least counts for: four sessions of some sixteen guesses
_LEAST_SPREAD = 0.02  # of a guess, p (1 - p): where nearly all are right, one wrong guess is no evidence that sessions differ


@dataclass(frozen=True, slots=True)
class AlikeSessions:
    """Fading sums over sessions, of their first judged guesses: tests, right ones, their squares, and their product."""

    tests: float = 0.0
    right: float = 0.0
    tests_tests: float = 0.0
    right_right: float = 0.0
    tests_right: float = 0.0

    def after(self, num_tests: int, num_right: int) -> AlikeSessions:
        """With one more session, of whose first num_tests guesses, at most FIRST_TESTS, so many were right."""
        if not num_tests:
            return self
        kept = KEEP ** (num_tests / FIRST_TESTS)
        return AlikeSessions(
            kept * self.tests + num_tests,
            kept * self.right + num_right,
            kept * self.tests_tests + num_tests * num_tests,
            kept * self.right_right + num_right * num_right,
            kept * self.tests_right + num_tests * num_right,
        )

    @property
    def prior_tests(self) -> float:
        """Guesses of the next session's own that their rate counts for, LEAST_TESTS to MOST_TESTS."""
        if not self.tests or self.tests**2 < LEAST_SESSIONS * self.tests_tests:
            return LEAST_TESTS
        rate = self.right / self.tests
        known = 1.0 - self.tests_tests / self.tests**2  # of the distances: their mean is of the same sessions
        squares = (self.right_right - 2.0 * rate * self.tests_right + rate * rate * self.tests_tests) / known
        beyond_luck = squares / max(_LEAST_SPREAD, rate * (1.0 - rate)) - self.tests
        pairs = self.tests_tests - self.tests
        correlation = (DOUBT / (1.0 + LEAST_TESTS) + beyond_luck) / (DOUBT + pairs)
        return min(MOST_TESTS, max(LEAST_TESTS, 1.0 / max(correlation, 1e-3) - 1.0))

    def rate_after(self, known: float) -> float:
        """What the next session's guesses are expected to be right at, where `known` is what the newest few sessions say: the more alike
        they are, the more all of them."""
        share = (self.prior_tests - LEAST_TESTS) / (MOST_TESTS - LEAST_TESTS)
        return known + share * (self.right / self.tests - known) if share else known


NO_SESSIONS = AlikeSessions()
