"""The simulated draft source: one token of a text a step, or why none can come.

Pauses as outrider.drafting's sources do: at limits, at the end of the credit, and for want of confidence. A step that finds the drafter
unsure costs its time and yields nothing, unless nothing else is guessed: then its token is sent and is the last. Must not know frames.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.types.frames import DraftLimits, TailEnd
from outrider_bench.simulation.text import Text


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chain stands: its tree, the position of its next guess, live guesses, the credit (exclusive) and the session's limits."""

    tree_id: int
    position: int
    num_live: int
    until: int
    limits: DraftLimits


class Guesser:
    """One session's source. What it found it was unsure of is remembered for the life of a tree."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._closed = (-1, -1)

    def pause(self, place: Place) -> TailEnd:
        """Why no step can add a guess here; MORE when one may."""
        if place.position >= place.limits.max_len or place.num_live >= place.limits.max_nodes:
            return TailEnd.LIMIT
        if place.num_live and self._closed == (place.tree_id, place.position):
            return TailEnd.CONFIDENCE
        return TailEnd.CREDIT if place.position >= place.until else TailEnd.MORE

    def draft(self, place: Place) -> tuple[int | None, TailEnd]:
        """The step that `pause` allowed: a token or None, and whether more may follow."""
        position = place.position
        unsure = bool(self._text.unsure[position]) or self._text.strays(position - place.num_live, position)
        if unsure and place.num_live:
            self._closed = (place.tree_id, position)
            return None, TailEnd.CONFIDENCE
        after = Place(place.tree_id, position + 1, place.num_live + 1, place.until, place.limits)
        if unsure:
            self._closed = (place.tree_id, position + 1)
        return self._text.guess(position, place.num_live), self.pause(after)
