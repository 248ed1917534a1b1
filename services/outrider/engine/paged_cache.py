"""The KV pool: per layer K and V as [kv_heads, num_slots, head_dim].

Readers get views of runs of neighbouring slots, writers name slots. Unread slots are zero.
Must not know models, trees, sequences or which block is whose.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from outrider.engine.block_table import BlockTable
from outrider.errors import DoesNotFit
from outrider_kernels.compact import compact


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of one layer's cache."""

    num_kv_heads: int
    head_dim: int


class SlotMover(Protocol):
    """Copies slots of pools it knows."""

    def __call__(self, source: list[int], destination: list[int]) -> int:
        """Copy pool slots source[i] to destination[i] in every layer, overlap being safe. Returns the rows moved per layer."""
        ...


class PagedCache:
    """All KV memory of an engine. pools[layer]: [2, kv_heads, num_slots, head_dim], zeroed (unread slots must stay finite).

    Raises DoesNotFit where the device has not got that much."""

    def __init__(self, layers: tuple[LayerShape, ...], num_slots: int, dtype: torch.dtype, device: str) -> None:
        self.pools = _pools(layers, num_slots, dtype, device)
        self.keys = [pool[0] for pool in self.pools]
        self.values = [pool[1] for pool in self.pools]
        self.device = self.pools[0].device
        self._move: SlotMover = partial(compact, self.pools)

    def move_with(self, mover: SlotMover) -> None:
        """Move slots in this way from now on."""
        self._move = mover

    def write(self, layer: int, begin: int, end: int, index: Tensor | None, keys_values: Tensor) -> None:
        """Store rows at pool slots [begin, end), or at `index` (int64 [rows]) when given. keys_values: [2, kv_heads, rows, dim]."""
        if index is None:
            self.pools[layer][:, :, begin:end].copy_(keys_values)
        else:
            self.pools[layer].index_copy_(2, index, keys_values)

    def move(self, table: BlockTable, source: list[int], destination: list[int]) -> int:
        """Copy logical slots, overlap being safe, in every layer. Returns the rows moved per layer."""
        return self._move(table.slots[source].tolist(), table.slots[destination].tolist())

    def copy(self, source: list[int], destination: list[int]) -> None:
        """Copy pool slots in every layer."""
        self._move(source, destination)


def _pools(layers: tuple[LayerShape, ...], num_slots: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    try:
        return [torch.zeros(2, shape.num_kv_heads, num_slots, shape.head_dim, dtype=dtype, device=device) for shape in layers]
    except RuntimeError as error:  # torch has no class of its own for memory that could not be had, but for cards
        mib = (bytes_per_slot(layers, dtype) * num_slots) >> 20
        problem = f"{mib} MiB for the KV cache could not be had on {device}, which has {_memory_mib(device)} MiB in all"
        raise DoesNotFit("--kv-mib, --kv-blocks", f"{problem} ({str(error).partition(chr(10))[0]})") from error


def _memory_mib(device: str) -> int:
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1]) >> 20
    return (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20


def bytes_per_slot(layers: tuple[LayerShape, ...], dtype: torch.dtype) -> int:
    """Bytes of K and V of one position in all layers."""
    return sum(2 * shape.num_kv_heads * shape.head_dim for shape in layers) * dtype.itemsize
