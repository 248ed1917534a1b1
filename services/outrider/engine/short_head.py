"""The head of a draft that computes the logits of a shortlist of ids, and has all others at -inf, as ids that stand for nothing are.

A guess decides no token: one that is not listed is missed, and the verifier's own pick takes its place. What a head of 150,000 ids takes,
which is most of a small model's step, goes with the number of listed ones. Must not know layers, sequences or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.engine.shortlist import LongArray, Shortlist
from outrider.types.tree import FloatArray, IntArray
from outrider_kernels.thin_chain import ChainIds, ChainRows, ChainSlots, ChainStart, Followed, ThinChain
from outrider_kernels.thin_matrix import PANEL
from outrider_kernels.thin_pick import PickRule
from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_team import ThinTeam


class ShortHead:
    """Over a head's product into `logits`, float32 [most rows, num_logits], from now on of listed ids only."""

    def __init__(self, team: ThinTeam, head: ThinProduct, logits: FloatArray, shortlist: Shortlist) -> None:
        self._team, self._head, self._logits, self._shortlist = team, head, logits, shortlist
        self._num_blank = 0  # rows that are -inf where nothing is listed; a row of a large vocabulary is touched when it is used
        head.limit_to(shortlist.panels)

    def make_room(self, num_rows: int) -> None:
        """Before the head computes so many rows."""
        if num_rows > self._num_blank:
            self._logits[self._num_blank : num_rows] = -np.inf
            self._num_blank = num_rows

    def read(self, tokens: Sequence[int] | IntArray | LongArray) -> None:
        """These are listed from now on. Nothing is being computed ahead afterwards, if any was not."""
        gone = self._shortlist.read(tokens)
        if gone is None:
            return
        self._team.settle()  # the list is another from here on
        self._head.limit_to(self._shortlist.panels)
        columns = (gone[:, None] * PANEL + np.arange(PANEL)).ravel()
        self._logits[: self._num_blank, columns[columns < self._logits.shape[1]]] = -np.inf


class ShortChain(ThinChain):
    """Chains of a model with such a head: what they begin with is read, and so is what is guessed."""

    def __init__(self, team: ThinTeam, rows: ChainRows, ids: ChainIds, head: ShortHead) -> None:
        """See ThinChain."""
        super().__init__(team, rows, ids)
        self._short = head

    def follow(self, start: ChainStart, rule: PickRule, where: ChainSlots) -> Followed:
        """See ThinChain."""
        self._short.read(start.tokens)
        self._short.make_room(start.num_wanted)
        found = super().follow(start, rule, where)
        if not found.is_left:
            self._short.read(found.picks)
        return found
