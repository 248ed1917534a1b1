"""Warm-up, steady, decay: the learning-rate scale as a function of how much of the budget is spent.

A budget is tokens, minutes, or both; whichever is nearer to spent counts. Knows numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass

_WARM_UP_SHARE = 0.015


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend in all, resumed parts included."""

    minutes: float
    tokens: int
    decay_share: float

    def progress(self, spent_minutes: float, num_tokens: int) -> float:
        """Share of the budget spent, 0..1."""
        return min(1.0, max(spent_minutes / self.minutes, num_tokens / self.tokens))

    def rate_scale(self, progress: float) -> float:
        """Linear warm-up, then 1, then a linear fall to zero over the last `decay_share`."""
        warm = min(1.0, (progress + 0.001) / _WARM_UP_SHARE)
        return min(warm, max(0.0, (1.0 - progress) / self.decay_share))
