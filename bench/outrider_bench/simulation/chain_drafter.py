"""The reduced form of a DrafterSession: a chain of guesses as a few integers, several times as fast.

Reduced: no untrusted input, no siblings, no refusal, no second incarnation. What is left is frame for frame what
outrider.session.drafter sends (tests/unit/test_simulation_drafters.py compares them): change it there first. Must not know policies.
"""

from __future__ import annotations

import numpy as np

from outrider.types.frames import Close, Commit, DrafterFrame, DraftLimits, Open, Opened, Tail, TailEnd, VerifierFrame
from outrider.types.tree import MAX_TREE_NODES, IntArray
from outrider_bench.simulation.drafter_side import SOURCE
from outrider_bench.simulation.guesser import Guesser, Place
from outrider_bench.simulation.text import Text

_CHAIN: IntArray = np.arange(-1, MAX_TREE_NODES, dtype=np.int32)


class ChainDrafter:
    """Positions, absolute: _known tokens are committed, the tree reaches from _base to _tip, its nodes from _sent on are unsent. _guessed:
    its tokens, from _base on."""

    def __init__(self, handle: int, text: Text) -> None:
        self.ended = False
        self._handle = handle
        self._text = text
        self._guesser = Guesser(text)
        self._said = TailEnd.MORE
        self._limits = DraftLimits(0)
        self._flush_nodes = 0
        self._incarnation = self._tree_id = 0
        self._known = self._credit = self._base = self._tip = self._sent = 0
        self._guessed: list[int] = []
        self._armed = self._opened = False
        self._draft_us = self._begin_us = self._end_us = self._first_us = 0

    def wants(self) -> bool:
        """See DrafterSide."""
        return self._armed

    def can_grow(self) -> bool:
        """See DrafterSide."""
        return self._guesser.pause(self._place()) is TailEnd.MORE

    def num_growing(self, most: int) -> int:
        """See DrafterSide."""
        place, limits = self._place(), self._limits
        room = min(place.until, limits.max_len) - place.position, limits.max_nodes - place.num_live
        return max(1, min(most, *room, self._flush_nodes - (self._tip - self._sent) if self._flush_nodes else most))

    def num_branches(self) -> int:
        """See DrafterSide: there are none."""
        return 0

    def may_hedge(self) -> bool:
        """See DrafterSide."""
        return False

    def hedge(self, begin_us: int, end_us: int) -> list[DrafterFrame]:
        """See DrafterSide."""
        return self.grow(begin_us, end_us)

    def receive(self, frame: VerifierFrame) -> list[DrafterFrame]:
        """See DrafterSide."""
        match frame:
            case Commit():
                return self._on_commit(frame)
            case Open():
                self._incarnation, self._limits = frame.incarnation, frame.limits
                self._flush_nodes = frame.limits.flush_nodes
                self._known, self._credit = frame.prefix_len, frame.draft_until
                self._plant(0)
                return self._arm()
            case Close():
                self.ended = True
                self._armed = False
        return []

    def grow(self, begin_us: int, end_us: int) -> list[DrafterFrame]:
        """See DrafterSide."""
        place = self._place()
        end = self._guesser.pause(place)
        if end is TailEnd.MORE:
            token, end = self._guesser.draft(place)
            if token is not None:
                self._add(token, begin_us, end_us)
        frames = self._answer_open(self._known)
        if end is not TailEnd.MORE:
            self._armed = False
            return frames if self._is_known_pause(end) else [*frames, self._tail(end)]
        if 0 < self._flush_nodes <= self._tip - self._sent:
            frames.append(self._tail(TailEnd.MORE))
        return frames

    def _add(self, token: int, begin_us: int, end_us: int) -> None:
        if self._sent == self._tip:
            self._begin_us, self._draft_us, self._first_us = begin_us, 0, end_us - begin_us
        self._guessed.append(token)
        self._tip += 1
        self._draft_us += end_us - begin_us
        self._end_us = end_us

    def _is_known_pause(self, end: TailEnd) -> bool:
        return end is TailEnd.CONFIDENCE is self._said and self._sent == self._tip > self._known

    def _on_commit(self, commit: Commit) -> list[DrafterFrame]:
        newest = commit.begin + len(commit.tokens)
        num_fresh = newest - self._known
        is_other_leave = commit.draft_until != self._credit
        self._credit = commit.draft_until
        if commit.flush_nodes is not None:
            self._flush_nodes = commit.flush_nodes
        frames: list[DrafterFrame] = []
        if num_fresh > 0:
            followed = self._follows(newest)
            self._known = newest
            most = self._limits.max_nodes + self._limits.hedge_nodes
            if not followed or self._tip - self._base + most > MAX_TREE_NODES:
                self._plant(self._tree_id + 1)
            elif self._sent < self._tip:
                frames.append(self._tail(TailEnd.MORE))
        return frames + self._arm() if num_fresh > 0 or is_other_leave else frames

    def _follows(self, newest: int) -> bool:
        """Whether the tree holds the truth up to `newest`."""
        fresh = self._guessed[self._known - self._base : newest - self._base]
        return newest <= self._tip and self._text.num_right(self._known, np.array(fresh, np.int32)) == len(fresh)

    def _plant(self, tree_id: int) -> None:
        self._tree_id = tree_id
        self._base = self._tip = self._sent = self._known
        self._guessed = []
        self._said = TailEnd.MORE

    def _arm(self) -> list[DrafterFrame]:
        end = self._spent()
        self._armed = end is TailEnd.MORE
        return [] if self._armed else [*self._answer_open(0), self._tail(end)]

    def _spent(self) -> TailEnd:
        if self._known >= self._limits.max_len:
            return TailEnd.LIMIT
        return TailEnd.CREDIT if self._known >= self._credit else TailEnd.MORE

    def _place(self) -> Place:
        until = min(self._credit, self._limits.max_len)
        return Place(self._tree_id, self._tip, self._tip - self._known, until, self._limits)

    def _answer_open(self, prefilled_to: int) -> list[DrafterFrame]:
        if self._opened:
            return []
        self._opened = True
        return [Opened(self._handle, self._incarnation, prefilled_to)]

    def _tail(self, end: TailEnd) -> Tail:
        first, last = self._sent - self._base, self._tip - self._base
        times, first_us = ((self._draft_us, self._begin_us * 1000, self._end_us * 1000), self._first_us) if first < last else ((0, 0, 0), 0)
        tokens = np.array(self._guessed[first:last], np.int32)
        self._sent, self._said = self._tip, end
        identity = (self._handle, self._incarnation, self._tree_id, first, self._base, self._text.hashes[self._base])
        return Tail(*identity, tokens, _CHAIN[first:last], end, SOURCE, *times, first_us=first_us)
