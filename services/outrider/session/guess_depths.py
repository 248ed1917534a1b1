"""How far a drafter's guesses were from what it knew when it made them, and what the truth said of them.

A guess that was drafted while the target verified those before it is deep, wherever the round that verifies it begins. So each guess keeps
the length of the text that its drafter had heard of when its tail was begun, and is counted in a band of the distance. Knows lengths, nodes
by number and times that are handed in. Must not know trees, frames or what is made of the counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from outrider.session.pacing.depth_bands import BAND_OF, MAX_DEPTH, NUM_BANDS

BATCH = 8
MAX_TELLINGS = 16  # the newest commits; a drafter further behind is taken to know what its tree began with


class DepthCounts(NamedTuple):
    """By band: guesses that were right, and that were wrong though all before them were right."""

    right: Sequence[int]
    wrong: Sequence[int]


class GuessDepths:
    """Of one drafter in one session. Nodes: of its newest tree. batch: guesses that are counted together, as counting takes time."""

    def __init__(self, batch: int = BATCH) -> None:
        self._batch = batch
        self._tellings: deque[tuple[float, int]] = deque(maxlen=MAX_TELLINGS)
        self._known_lens: list[int] = []  # by node
        self._right, self._wrong = [0] * NUM_BANDS, [0] * NUM_BANDS
        self._num_judged = 0

    def told(self, known_len: int, heard_us: float) -> None:
        """A commit that makes the text so long is expected to be heard then, by the verifier's clock."""
        self._tellings.append((heard_us, known_len))

    def begin_tree(self) -> None:
        """Nodes are counted from 0 again."""
        self._known_lens = []

    def join(self, num_nodes: int, base: int, begin_us: int) -> None:
        """So many nodes more, of a tree that begins behind `base` tokens, were drafted from begin_us on."""
        known_len = base
        for heard_us, told_len in reversed(self._tellings):
            if heard_us <= begin_us:
                known_len = told_len if told_len > base else base
                break
        self._known_lens += [known_len] * num_nodes

    def judge(self, node: int, begin: int, end: int, *, right: bool) -> None:
        """The truth said so of the guesses for positions [begin, end), the first of which is this node, each other one the next."""
        counts = self._right if right else self._wrong
        num = end - begin
        for known_len in self._known_lens[node : node + num]:
            begin += 1
            depth = begin - known_len
            if depth > 0:  # else it was drafted before the truth that its drafter had by then
                counts[BAND_OF[depth if depth < MAX_DEPTH else MAX_DEPTH]] += 1
        self._num_judged += num

    def take(self) -> DepthCounts | None:
        """Since they were last taken; None until there is a batch."""
        if self._num_judged < self._batch:
            return None
        counts = DepthCounts(self._right, self._wrong)
        self._right, self._wrong = [0] * NUM_BANDS, [0] * NUM_BANDS
        self._num_judged = 0
        return counts
