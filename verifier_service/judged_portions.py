"""The drafters of a session that is still running, judged by portions of its guesses: who is hardly ever right is given up for the rest.

Knows the tallies of one session. Must not know other sessions, links or who tells the drafter. A portion is MIN_JUDGED guesses of one
drafter, all by themselves: what it was right about before says nothing of the text that is being written now.

Looked at once in ROUNDS_BETWEEN_LOOKS rounds, so that it costs a session a number counted up in most rounds.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider.session.drafter_tally import DrafterTally
from verifier_service.acceptance_floor import MIN_ACCEPTANCE, MIN_JUDGED

ROUNDS_BETWEEN_LOOKS = 16


class JudgedPortions:
    """Of one session. given_up: drafters that it has done with."""

    def __init__(self) -> None:
        self._num_rounds = 0
        self._begun: dict[str, tuple[int, int]] = {}  # judged and right, at the portion's beginning
        self.given_up: set[str] = set()

    def is_due(self) -> bool:
        """Ask after every round."""
        self._num_rounds += 1
        return self._num_rounds % ROUNDS_BETWEEN_LOOKS == 0

    def useless(self, tallies: Mapping[str, DrafterTally]) -> list[str]:
        """Drafters whose portion is full and was below the floor; each is named once, and is given up with that."""
        found = [drafter for drafter, tally in tallies.items() if drafter not in self.given_up and self._is_useless(drafter, tally)]
        self.given_up.update(found)
        return found

    def _is_useless(self, drafter: str, tally: DrafterTally) -> bool:
        judged, right = self._begun.setdefault(drafter, (0, 0))
        if tally.num_judged - judged < MIN_JUDGED:
            return False
        self._begun[drafter] = tally.num_judged, tally.num_right
        return tally.num_right - right < MIN_ACCEPTANCE * (tally.num_judged - judged)
