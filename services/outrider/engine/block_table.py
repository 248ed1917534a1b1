"""Where one sequence's logical slots are in the pool.

Logical slot i lives at blocks[i // block_len] * block_len + i % block_len. Committed position p is logical slot p; tree nodes lie
behind the committed ones. Must not know tensors, models or trees, nor who else holds a block.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from outrider_kernels.thin_chain import ChainSlots

SlotArray = npt.NDArray[np.int64]

_FIRST: SlotArray = np.zeros(1, np.int64)
_SIZES_KEPT = 8  # of pools, in powers of two: a process has one or two


class BlockTable:
    """The blocks of one sequence.

    slots: int64 [capacity], logical to pool. edges: int64 [runs + 1] logical slots, ascending: from one to the next, slots are neighbours
    in the pool. chain_slots: both, for chains of rows.
    """

    def __init__(self, blocks: list[int], block_len: int) -> None:
        self.blocks = blocks
        # logical slots that do not follow the one before them in the pool
        self._cuts = [at * block_len for at, (left, right) in enumerate(pairwise(blocks), 1) if right != left + 1]
        self.slots: SlotArray = _slots_of(blocks, block_len, self._cuts)
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


def _slots_of(blocks: list[int], block_len: int, cuts: list[int]) -> SlotArray:
    """Of each position, not to be written to. Neighbours, as most sequences' blocks are, need no arithmetic: a sequence is opened while its
    client waits."""
    if not cuts and blocks:
        begin, end = blocks[0] * block_len, (blocks[-1] + 1) * block_len
        return _ascending(1 << (end - 1).bit_length())[begin:end]
    starts = np.asarray(blocks, np.int64) * block_len
    return (starts[:, None] + _ascending(block_len)).reshape(-1)


@lru_cache(maxsize=_SIZES_KEPT)
def _ascending(num: int) -> SlotArray:
    """0, 1, ..., num - 1; shared. Made anew, numpy would let go of the interpreter for it, and whoever waits for that comes in between."""
    return np.arange(num, dtype=np.int64)
