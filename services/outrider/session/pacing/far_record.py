"""What running ahead of rounds that wait for no guesses has brought, against plain decoding in the same time.

Far away a promise is a long chain of estimates (so many guesses in a row right, until the drafter is heard of, beside a drafter at work),
and a small error of one of them is a large one of the whole. What came of it is measured without any of them. Must not know sessions, nor
what was promised when.
"""

from __future__ import annotations

TRUST_TOKENS = 64.0  # plain tokens that a promise counts for
KEEP = 0.995  # of what is remembered, with each plain token's time of running ahead
KEEP_PLAIN = 0.998  # and with each token decoded without guesses: one given up is tried again some day


class FarRecord:
    """Fading sums: tokens, and how many plain decoding would have made in their time."""

    def __init__(self) -> None:
        self._num_tokens = self._num_plain = 0.0

    def count(self, num_tokens: int, took_us: float, plain_us: float) -> None:
        """A round of running ahead. plain_us: of one without guesses, on cores that no drafter uses."""
        num_plain = took_us / plain_us
        kept = KEEP**num_plain
        self._num_tokens, self._num_plain = kept * self._num_tokens + num_tokens, kept * self._num_plain + num_plain

    def count_plain(self, num_tokens: int) -> None:
        """So many tokens without guesses."""
        kept = KEEP_PLAIN**num_tokens
        self._num_tokens, self._num_plain = kept * self._num_tokens, kept * self._num_plain

    def factor(self, promised: float) -> float:
        """What to multiply a promise by, at most 1. promised: in times plain decoding."""
        if promised <= 0.0:
            return 1.0
        return min(1.0, (TRUST_TOKENS * promised + self._num_tokens) / (TRUST_TOKENS + self._num_plain) / promised)
