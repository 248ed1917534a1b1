"""Whether steps are so full already that no guess could pay, whoever makes it and however soon it comes.

With many sessions a further row costs as much as a token of plain decoding, and then the best drafter is one that is not asked: what
remains of it, its sessions, its messages and the thought about it, is all cost. The bound is of guesses that cost nothing but their rows,
of one session alone or of all of them. Must not know drafters, courses or what was achieved.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.session.pacing.contract import CostCurve, StepView

LENGTHS = (1, 2, 4, 8, 16)  # of drafts that are tried
# Tokens that guesses must bring over those of plain decoding in the time of their rows: what a drafter's messages and guesses cost beside
# the step is in no curve, and where rows are dear there is never much to win.
LEAST_GAIN = 0.1


class Saturation:
    """is_on: as of the newest look."""

    def __init__(self) -> None:
        self.is_on = False
        self._cost: CostCurve | None = None
        self._guess_us = 0.0
        self._num_sessions = self._num_begun = 0

    def observe(self, view: StepView) -> None:
        """Before each plan: who shares the step, and what it costs."""
        self._cost, self._guess_us, self._num_sessions, self._num_begun = view.cost, view.guess_us, len(view.sessions), 0

    def begun(self) -> None:
        """One more session, which no plan has seen yet: where many begin at once, the first of them already has company."""
        self._num_begun += 1

    @property
    def in_company(self) -> bool:
        """Whether several are sure to share steps: the one session of the newest plan may have ended before another begins."""
        return max(self._num_sessions, self._num_begun) > 1

    def look(self, rights: Sequence[float], overhead_us: float) -> None:
        """rights: acceptance to hope for, of each session of the newest view. overhead_us: of a round, beside its step."""
        self.is_on = self._is_full(self._num_sessions, max(rights), overhead_us)

    def awaits(self, right: float, overhead_us: float) -> bool:
        """Whether a session that begins now, with all those that begin with it, finds steps full. right: as in `look`."""
        return self._is_full(self._num_sessions + self._num_begun, right, overhead_us)

    def _is_full(self, num: int, right: float, overhead_us: float) -> bool:
        if self._cost is None or num < 2:
            return False
        cost = self._cost.shared_by(num)
        step_us = cost.verify_us(num)
        least = (1.0 + LEAST_GAIN) * num / (step_us + overhead_us)
        for length in LENGTHS:
            tokens = sum(right**depth for depth in range(1, length + 1))
            if any(who * tokens > least * (cost.verify_us(num + who * length) - step_us + who * self._guess_us) for who in (1, num)):
                return False
        return True
