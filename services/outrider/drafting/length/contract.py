"""The seam of the stop rules (ALGORITHMS.md C): lossless, since they only choose how much to draft.

A rule is pure and reads its threshold from the session's DraftLimits. It must not know engines, trees or sessions.
"""

from __future__ import annotations

from typing import Protocol

from outrider.types.frames import DraftLimits


class StopRule(Protocol):
    """Decides after each model row whether drafting below it should pause.

    sends_trigger: whether the guess that made the rule fire is still sent (the rule then pauses after it).
    needs_entropy: whether the row's entropy decides; without it only the pick's probability has to be computed.
    """

    name: str
    sends_trigger: bool
    needs_entropy: bool

    def applies(self, limits: DraftLimits) -> bool:
        """Whether this session asked for the rule; a session that asked for none saves the engine the numbers."""
        ...

    def stops(self, limits: DraftLimits, best_prob: float, entropy: float) -> bool:
        """best_prob: draft probability of the best guess after the row. entropy: nats of the row's distribution, 0 if not needed."""
        ...
