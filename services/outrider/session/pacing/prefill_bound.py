"""How many rows of a step prompts may take while other sessions decode, so that a long prompt does not hold everybody's tokens up.

A step that reads takes at most `max_stretch` times as long as without what it reads. A share of 1 / max_stretch of such steps is the
decoding sessions' own, so a prompt takes max_stretch / (max_stretch - 1) times as long as it could: 2 halves its speed for steps of twice
the length, 4 costs it a third more time, 8 a seventh. Knows row counts and what they cost. Must not know sessions or policies.
Related: Sarathi-Serve's chunked prefills (Agrawal et al. 2024), which bound tokens where this bounds time: what a row costs is measured
here anyway, and differs a hundredfold between machines.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from outrider.session.pacing.contract import CostCurve

DEFAULT_PREFILL_STRETCH = 4.0
MAX_PREFILL_STRETCH = 1000.0
# Every step reads so much of what there is to read, whatever it costs, so that no crowd holds a prompt up: few enough for a step to stay
# one of the small ones, enough to share what a step costs beside its rows.
MIN_PREFILL_ROWS = 16


@dataclass(frozen=True, slots=True)
class PrefillBound:
    """Of one step. cost: by rows. max_stretch: above 1. num_decoding: sessions that decode, whichever policy plans them. row_us: what a
    row of a prompt was measured to add to a step; None: nothing was read yet, and the curve has to say. num_taken: rows that other
    policies' prompts have of this step already."""

    cost: CostCurve
    max_stretch: float
    num_decoding: int
    row_us: float | None = None
    num_taken: int = 0

    def num_rows(self, num_own: int, max_rows: int) -> int:
        """Rows for prompts beside num_own rows of sessions that decode, at most max_rows."""
        most = self._most_beside(max(num_own, self.num_decoding), max_rows + self.num_taken)
        return max(0, min(max_rows, max(MIN_PREFILL_ROWS, most) - self.num_taken))

    def added_us(self, num_read: int, num_own: int) -> float:
        """What so many rows of prompts are expected to add to a step of num_own rows of sessions that decode."""
        if self.row_us is None:
            return self.cost.verify_us(num_own + num_read) - self.cost.verify_us(max(1, num_own))
        return self.row_us * num_read

    def _most_beside(self, num_own: int, limit: int) -> int:
        own_us = self.cost.verify_us(num_own)
        if self.row_us is None:  # the curve never falls
            rows = range(num_own + 1, num_own + limit + 1)
            return bisect.bisect_right(rows, self.max_stretch * own_us, key=self.cost.verify_us)
        room_us = (self.max_stretch - 1.0) * own_us
        return limit if room_us >= limit * self.row_us else int(room_us / self.row_us)
