"""Pause when the row's entropy bounds acceptance too low: SVIP (Zhang et al. 2024; ALGORITHMS.md C), `sqrt(k * entropy) > threshold`.

Rests on acceptance >= 1 - sqrt(k * entropy) with k = 0.15 as published (entropy in nats); the paper's threshold is 0.3. The guess that
fired is still sent. It loses when entropy is high and the pair agrees anyway.
"""

from __future__ import annotations

import math

from outrider.types.frames import DraftLimits

ENTROPY_FACTOR = 0.15


class SvipStop:
    """Fires above DraftLimits.svip_threshold."""

    name = "svip"
    needs_entropy = True
    sends_trigger = True

    def applies(self, limits: DraftLimits) -> bool:
        """On when svip_threshold is positive."""
        return limits.svip_threshold > 0.0

    def stops(self, limits: DraftLimits, best_prob: float, entropy: float) -> bool:
        """Whether the bound on acceptance has fallen too low."""
        return math.sqrt(ENTROPY_FACTOR * max(entropy, 0.0)) > limits.svip_threshold
