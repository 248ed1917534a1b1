"""Where one sequence's logical slots are in the pool.

Logical slot i lives at blocks[i // block_len] * block_len + i % block_len. Committed position p is logical slot p; tree nodes lie
behind the committed ones. Must not know tensors, models or trees, nor who else holds a block.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from outrider_kernels.thin_chain import ChainSlots

SlotArray = npt.NDArray[np.int64]

_FIRST: SlotArray = np.zeros(1, np.int64)


class BlockTable:
    """The blocks of one sequence.

    slots: int64 [capacity], logical to pool. edges: int64 [runs + 1] logical slots, ascending: from one to the next, slots are neighbours
    in the pool. chain_slots: both, for chains of rows.
    """

    def __init__(self, blocks: list[int], block_len: int) -> None:
        self.blocks = blocks
        starts = np.asarray(blocks, np.int64) * block_len
        self.slots: SlotArray = (starts[:, None] + np.arange(block_len, dtype=np.int64)).reshape(-1)
        cuts = np.flatnonzero(np.diff(starts) != block_len) + 1
        self._cuts: list[int] = (cuts * block_len).tolist()  # logical slots that do not follow the one before them in the pool
        self.edges: SlotArray = np.array([0, *self._cuts, len(self.slots)], np.int64)
        self.chain_slots = ChainSlots(self.slots, self.edges, is_lasting=True)

    @property
    def capacity(self) -> int:
        """Logical slots."""
        return len(self.slots)

    def slots_along(self, num_committed: int, path: list[int], num_nodes: int) -> ChainSlots:
        """chain_slots of a tree: of the committed tokens, of these of the num_nodes behind them, and of what lies behind those."""
        nodes, free = self.slots[num_committed : num_committed + num_nodes], self.slots[num_committed + num_nodes :]
        slots = np.concatenate((self.slots[:num_committed], nodes[path], free))
        cuts = np.flatnonzero(slots[1:] != slots[:-1] + 1) + 1
        return ChainSlots(slots, np.concatenate((_FIRST, cuts, np.array([len(slots)], np.int64))))

    def runs(self, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        """Pool ranges, half-open, that hold logical slots [begin, end) in order."""
        if begin >= end:
            return ()
        if not self._cuts:
            first = int(self.slots[begin])
            return ((first, first + end - begin),)
        edges = [begin, *(cut for cut in self._cuts if begin < cut < end), end]
        return tuple((int(self.slots[left]), int(self.slots[right - 1]) + 1) for left, right in pairwise(edges))
