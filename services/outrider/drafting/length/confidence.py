"""Pause when the best guess is improbable: Kangaroo's second exit (Liu et al. 2024; ALGORITHMS.md C), `max draft_probs < stop_below`.

Kangaroo's own threshold is 0.6. The guess that fired is not sent, since the target is expected to reject it, unless it is the only one: a
round with it costs little more than one without. It loses when acceptance is high although probabilities are flat, as under a high
temperature with shared noise.
"""

from __future__ import annotations

from outrider.types.frames import DraftLimits


class ConfidenceStop:
    """Fires below DraftLimits.stop_below."""

    name = "confidence"
    needs_entropy = False
    sends_trigger = False

    def applies(self, limits: DraftLimits) -> bool:
        """On when stop_below is positive."""
        return limits.stop_below > 0.0

    def stops(self, limits: DraftLimits, best_prob: float, entropy: float) -> bool:
        """Whether the best guess is below the bar."""
        return best_prob < limits.stop_below
