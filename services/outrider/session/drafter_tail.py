"""Nodes that a drafter's session has guessed but not sent: one growing burst, turned into one Tail frame.

Knows the frame's bookkeeping (first index, times, scores, rows). Must not decide when to send.
"""

from __future__ import annotations

import numpy as np

from outrider.session.events import Grown
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import Tail, TailEnd
from outrider.types.tree import DraftRow, FloatArray


class TailBuffer:
    """The unsent nodes of one tree; never more than the tree itself may hold (MAX_TREE_NODES)."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything unsent: the tree was abandoned."""
        self.tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[FloatArray] = []
        self._rows: list[DraftRow] = []
        self._draft_us = self._hedge_us = self._first_us = 0
        self._is_hedge = False
        self._begin_ns = 0
        self._end_ns = 0

    @property
    def is_hedge(self) -> bool:
        """Whether what is unsent is of side branches; False when nothing is."""
        return self._is_hedge

    def add(self, grown: Grown) -> None:
        """Take in a burst's next nodes; times of steps that yielded nothing (prefill) are not drafting."""
        if not grown.tokens:
            return
        if not self.tokens:
            self._begin_ns = grown.begin_ns
            self._first_us = 0 if grown.is_hedge else max(0, grown.draft_us - grown.follow_us)
        self._end_ns = grown.end_ns
        self._is_hedge = grown.is_hedge
        if grown.is_hedge:
            self._hedge_us += grown.draft_us
        else:
            self._draft_us += grown.draft_us
        self.tokens += grown.tokens
        self._parents += grown.parents
        self._rows += grown.rows
        if grown.scores is not None:
            self._scores.append(grown.scores)

    def take(self, session: int, incarnation: int, tree: GuessTree, base_hash: int, end: TailEnd, source: str) -> Tail:
        """Everything unsent of `tree` as one frame, possibly without nodes; base_hash: of the tokens before the tree's base."""
        scores = np.concatenate(self._scores) if self._scores else None
        if scores is not None and len(scores) != len(self.tokens):
            scores = None
        tail = Tail(
            session=session,
            incarnation=incarnation,
            tree_id=tree.tree_id,
            first_node=tree.num_nodes - len(self.tokens),
            base=tree.base,
            prefix_hash=base_hash,
            tokens=np.array(self.tokens, np.int32),
            parents=np.array(self._parents, np.int32),
            end=end,
            source=source,
            draft_us=self._draft_us,
            begin_ns=self._begin_ns,
            end_ns=self._end_ns,
            scores=scores,
            rows=tuple(self._rows),
            hedge_us=self._hedge_us,
            first_us=self._first_us,
        )
        self.reset()
        return tail
