"""What reading costs those who decode: how much a row of a prompt adds to a step, and the bound on such rows that follows from it.

The curve of costs was measured on small steps, and its end says little of hundreds of rows, so what steps that read took of late decides as
soon as there was one. Where that is more than rows of a step of the bound's size really cost, the bound shrinks until it is not, and the
other way round: it settles where a step takes what it may. Lives on the engine thread. Must not know sessions or the engine.
"""

from __future__ import annotations

from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.prefill_bound import DEFAULT_PREFILL_STRETCH, PrefillBound

MEMORY = 15 / 16  # of what was observed, from one step that reads to the next
MAX_SLOWNESS = 16.0  # of a step that read, beside what the curve says: a machine that stalled once is not slow for ever


class PrefillPrice:
    """max_stretch: a step that reads may take so many times as long as without what it reads; 0 = as long as it takes."""

    def __init__(self, max_stretch: float = DEFAULT_PREFILL_STRETCH) -> None:
        self._max_stretch = max_stretch
        self._added_us = self._num_rows = 0.0

    def observe(self, num_read: int, num_own: int, step_us: float, cost: CostCurve) -> None:
        """A step of num_read rows of prompts beside num_own rows of sessions that decode."""
        step_us = min(step_us, MAX_SLOWNESS * cost.verify_us(num_read + num_own))
        self._added_us = MEMORY * self._added_us + max(0.0, step_us - cost.verify_us(num_own))
        self._num_rows = MEMORY * self._num_rows + num_read

    def bound(self, num_decoding: int, cost: CostCurve) -> PrefillBound | None:
        """For a step in which so many sessions decode; None: prompts may take what rows there are."""
        if not self._max_stretch or not num_decoding:
            return None
        row_us = self._added_us / self._num_rows if self._num_rows else None
        return PrefillBound(cost, self._max_stretch, num_decoding, row_us)
