"""The KV pool: per layer K and V as [kv_heads, num_slots, head_dim].

Readers get views of runs of neighbouring slots, writers name slots. Unread slots are zero.
Must not know models, trees, sequences or which block is whose.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.engine.block_table import BlockTable
from outrider_kernels.compact import compact


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of one layer's cache."""

    num_kv_heads: int
    head_dim: int


class PagedCache:
    """All KV memory of an engine. pools[layer]: [2, kv_heads, num_slots, head_dim], zeroed (unread slots must stay finite)."""

    def __init__(self, layers: tuple[LayerShape, ...], num_slots: int, dtype: torch.dtype, device: str) -> None:
        self.pools = [torch.zeros(2, shape.num_kv_heads, num_slots, shape.head_dim, dtype=dtype, device=device) for shape in layers]
        self.keys = [pool[0] for pool in self.pools]
        self.values = [pool[1] for pool in self.pools]
        self.device = self.pools[0].device

    def write(self, layer: int, begin: int, end: int, index: Tensor | None, keys_values: Tensor) -> None:
        """Store rows at pool slots [begin, end), or at `index` (int64 [rows]) when given. keys_values: [2, kv_heads, rows, dim]."""
        if index is None:
            self.pools[layer][:, :, begin:end].copy_(keys_values)
        else:
            self.pools[layer].index_copy_(2, index, keys_values)

    def move(self, table: BlockTable, source: list[int], destination: list[int]) -> int:
        """Copy logical slots, overlap being safe, in every layer. Returns the rows moved per layer."""
        return compact(self.pools, table.slots[source].tolist(), table.slots[destination].tolist())

    def copy(self, source: list[int], destination: list[int]) -> None:
        """Copy pool slots in every layer."""
        compact(self.pools, source, destination)


def bytes_per_slot(layers: tuple[LayerShape, ...], dtype: torch.dtype) -> int:
    """Bytes of K and V of one position in all layers."""
    return sum(2 * shape.num_kv_heads * shape.head_dim for shape in layers) * dtype.itemsize
