"""Moving the cache rows of an accepted path in Triton: every pool of one shape in one launch, source and destination may overlap.

A program owns some columns of one head's slots in one pool, reads all their moved rows, waits until every thread has read, and only
then writes; no other program touches those columns. Elements travel as integers of their size, so no dtype is interpreted. The
definition is `outrider_kernels.compact.compact`. Must not know trees or sequences: only slots. Source: the KV compaction step of
SpecInfer-like systems.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider_kernels.compact import moves

MAX_MOVES = 512  # rows moved by one call; a path and a kept subtree are far smaller
TILE_ELEMENTS = 8192  # elements a program holds between reading and writing


@dataclass(frozen=True, slots=True)
class PoolTable:
    """Pools of one shape and dtype, and their addresses on their device; made once for a cache.

    pools: [..., num_slots, dim] each, dense; kept, so that the addresses stay theirs. addresses: int64 [num_pools].
    """

    pools: tuple[Tensor, ...]
    addresses: Tensor


def pool_tables(pools: list[Tensor]) -> list[PoolTable]:
    """Tables of all pools, one for each shape and dtype."""
    groups: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = defaultdict(list)
    for pool in pools:
        assert pool.is_contiguous()
        groups[pool.shape, pool.dtype].append(pool)
    return [
        PoolTable(tuple(group), torch.tensor([pool.data_ptr() for pool in group], dtype=torch.int64, device=group[0].device))
        for group in groups.values()
    ]


def compact(pools: list[Tensor], source: list[int], destination: list[int]) -> int:
    """As `outrider_kernels.compact.compact`, the addresses gathered anew. Raises ValueError for more than MAX_MOVES rows."""
    return compact_tables(pool_tables(pools), source, destination)


def compact_tables(tables: list[PoolTable], source: list[int], destination: list[int]) -> int:
    """Copy slot source[i] to slot destination[i] in every pool; returns the rows moved per pool. Raises ValueError past MAX_MOVES.

    Slots are not checked: they must lie in the pools.
    """
    origins, targets = moves(source, destination)
    if len(origins) > MAX_MOVES:
        raise ValueError(f"{len(origins)} rows to move in one call, at most {MAX_MOVES}")
    if not origins:
        return 0
    slots = torch.tensor([origins, targets], dtype=torch.int64, device=tables[0].addresses.device)
    tile_moves = triton.next_power_of_2(len(origins))
    for table in tables:
        *lead, num_slots, dim = table.pools[0].shape
        block_dim = min(triton.next_power_of_2(dim), TILE_ELEMENTS // tile_moves)
        grid = (len(table.pools), torch.Size(lead).numel(), triton.cdiv(dim, block_dim))
        _move_kernel[grid](
            table.addresses, slots, len(origins), num_slots, DIM=dim, ELEMENT_BITS=table.pools[0].dtype.itemsize * 8,
            TILE_MOVES=tile_moves, BLOCK_DIM=block_dim,
        )  # fmt: skip
    return len(origins)


@triton.jit
def _move_kernel(
    addresses: tl.tensor, slots: tl.tensor, num_moves: tl.tensor, num_slots: tl.tensor,
    DIM: tl.constexpr, ELEMENT_BITS: tl.constexpr, TILE_MOVES: tl.constexpr, BLOCK_DIM: tl.constexpr,
) -> None:  # fmt: skip
    """Some columns of one head of one pool. slots: [2, num_moves], sources then destinations."""
    address = tl.load(addresses + tl.program_id(0))
    if ELEMENT_BITS == 8:
        pool = address.to(tl.pointer_type(tl.int8))
    elif ELEMENT_BITS == 16:
        pool = address.to(tl.pointer_type(tl.int16))
    elif ELEMENT_BITS == 32:
        pool = address.to(tl.pointer_type(tl.int32))
    else:
        pool = address.to(tl.pointer_type(tl.int64))
    move = tl.arange(0, TILE_MOVES)
    column = tl.program_id(2) * BLOCK_DIM + tl.arange(0, BLOCK_DIM)
    own = pool + tl.program_id(1).to(tl.int64) * num_slots * DIM + column[None, :]
    real = move < num_moves
    origin = tl.load(slots + move, mask=real, other=0)
    target = tl.load(slots + num_moves + move, mask=real, other=0)
    mask = real[:, None] & (column < DIM)[None, :]
    moved = tl.load(own + origin[:, None] * DIM, mask=mask, other=0)
    tl.debug_barrier()  # another thread's write may be this thread's source
    tl.store(own + target[:, None] * DIM, moved, mask=mask)
