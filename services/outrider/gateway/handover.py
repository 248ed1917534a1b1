"""When an answer leaves a verifier that drains: at a round's end, if enough of it is left, and not all answers at the same moment.

Knows numbers of tokens and times. Must not know streams, nor who takes the answer.
"""

from __future__ import annotations

import random

from outrider.gateway.limits import FailoverLimits


class Handover:
    """Of one sample. Times are in seconds, of one clock."""

    def __init__(self, limits: FailoverLimits) -> None:
        self._limits = limits
        self._backoffs_s = limits.backoffs_s()
        self._due_s: float | None = None

    def is_due(self, num_left: int, now_s: float) -> bool:
        """Ask at the end of every round at a draining verifier. num_left: tokens that the answer may still have."""
        if num_left < self._limits.handover_min_tokens:
            return False
        if self._due_s is None:
            self._due_s = now_s + random.uniform(0.0, self._limits.handover_spread_s)
        return now_s >= self._due_s

    def refused(self, now_s: float) -> None:
        """Nobody takes it as yet; the draining verifier decodes on, so it is asked again after a pause."""
        self._due_s = now_s + next(self._backoffs_s)

    def done(self) -> None:
        """It has left: the next verifier that drains is another matter."""
        self._backoffs_s = self._limits.backoffs_s()
        self._due_s = None
