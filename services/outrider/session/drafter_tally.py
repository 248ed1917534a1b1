"""What one drafter did for one session: guesses that the truth proved right or wrong, and deadlines that it missed.

A value. Knows no rounds: a guess counts whether a round verified it or the truth overtook it, and once for each position.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DrafterTally:
    """num_right, num_wrong: guesses of the next token that were judged; side branches are none. num_missed_deadlines: rounds that began
    past their deadline without what the drafter owed."""

    num_right: int = 0
    num_wrong: int = 0
    num_missed_deadlines: int = 0

    @property
    def num_judged(self) -> int:
        """Right or wrong."""
        return self.num_right + self.num_wrong
