"""The KV pool: per layer K and V as [kv_heads, num_slots, head_dim], and a table of blocks per sequence.

A sequence's logical slot i lives at blocks[i // block_len] * block_len + i % block_len. Committed position p is logical slot p; tree
nodes lie behind the committed ones. Readers get views of runs of neighbouring slots. The last `scratch` slots belong to no sequence:
padding rows write there. Must not know models, trees or sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.engine.block_allocator import BlockAllocator
from outrider_kernels.compact import compact

SlotArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of one layer's cache."""

    num_kv_heads: int
    head_dim: int


class BlockTable:
    """Where one sequence's logical slots are. slots: int64 [capacity], logical to pool."""

    def __init__(self, blocks: list[int], block_len: int) -> None:
        self.blocks = blocks
        starts = np.asarray(blocks, np.int64) * block_len
        self.slots: SlotArray = (starts[:, None] + np.arange(block_len, dtype=np.int64)).reshape(-1)
        self.is_contiguous = bool((np.diff(starts) == block_len).all())

    @property
    def capacity(self) -> int:
        """Logical slots."""
        return len(self.slots)

    def runs(self, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        """Pool ranges, half-open, that hold logical slots [begin, end) in order."""
        if begin >= end:
            return ()
        if self.is_contiguous:
            first = int(self.slots[begin])
            return ((first, first + end - begin),)
        slots = self.slots[begin:end]
        cuts = np.flatnonzero(np.diff(slots) != 1) + 1
        edges = [0, *cuts.tolist(), len(slots)]
        return tuple((int(slots[left]), int(slots[right - 1]) + 1) for left, right in pairwise(edges))


class PagedCache:
    """All KV memory of an engine. pools[layer]: [2, kv_heads, num_slots, head_dim], zeroed (unread slots must stay finite)."""

    def __init__(
        self, layers: tuple[LayerShape, ...], num_blocks: int, block_len: int, dtype: torch.dtype, device: str, scratch: int
    ) -> None:
        self.block_len = block_len
        self.num_blocks = num_blocks
        self.scratch_slot = num_blocks * block_len
        num_slots = self.scratch_slot + scratch
        self.pools = [torch.zeros(2, shape.num_kv_heads, num_slots, shape.head_dim, dtype=dtype, device=device) for shape in layers]
        self.keys = [pool[0] for pool in self.pools]
        self.values = [pool[1] for pool in self.pools]
        self._allocator = BlockAllocator(num_blocks)

    @property
    def num_free_blocks(self) -> int:
        """Blocks held by no sequence."""
        return self._allocator.num_free

    def num_blocks_for(self, num_slots: int) -> int:
        """Blocks that hold num_slots slots."""
        return -(-num_slots // self.block_len)

    def open(self, num_slots: int) -> BlockTable:
        """Reserve a table for num_slots logical slots. Raises Overloaded, holding nothing."""
        return BlockTable(self._allocator.allocate(self.num_blocks_for(num_slots)), self.block_len)

    def close(self, table: BlockTable) -> None:
        """Give the table's blocks back."""
        self._allocator.release(table.blocks)

    def write(self, layer: int, begin: int, end: int, index: Tensor | None, keys: Tensor, values: Tensor) -> None:
        """Store rows at pool slots [begin, end), or at `index` (int64 [rows]) when given. keys, values: [rows, kv_heads, dim]."""
        if index is None:
            self.keys[layer][:, begin:end].copy_(keys.transpose(0, 1))
            self.values[layer][:, begin:end].copy_(values.transpose(0, 1))
        else:
            self.keys[layer].index_copy_(1, index, keys.transpose(0, 1))
            self.values[layer].index_copy_(1, index, values.transpose(0, 1))

    def move(self, table: BlockTable, source: list[int], destination: list[int]) -> int:
        """Copy logical slots, overlap being safe, in every layer. Returns the rows moved per layer."""
        return compact(self.pools, table.slots[source].tolist(), table.slots[destination].tolist())
