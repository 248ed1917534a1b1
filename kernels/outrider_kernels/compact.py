"""Move the cache rows of an accepted tree path (and of a kept subtree) to the slots where committed tokens live.

Source and destination may overlap: every row is read before any is written. A chain that was accepted from its root is already
in place and moves nothing. Must not know trees or sequences: only slots. Source: the KV compaction step of SpecInfer-like systems.
"""

from __future__ import annotations

import torch
from torch import Tensor


def moves(source: list[int], destination: list[int]) -> tuple[list[int], list[int]]:
    """The pairs that really move. source, destination: slots of equal length, destinations distinct."""
    assert len(source) == len(destination)
    pairs = [(origin, target) for origin, target in zip(source, destination, strict=True) if origin != target]
    return [origin for origin, _ in pairs], [target for _, target in pairs]


def compact(pools: list[Tensor], source: list[int], destination: list[int]) -> int:
    """Copy slot source[i] to slot destination[i] on axis -2 of every pool; overlap is safe. Returns the rows moved per pool.

    pools: [..., num_slots, dim] each, changed in place.
    """
    origins, targets = moves(source, destination)
    if not origins:
        return 0
    read = torch.tensor(origins, dtype=torch.int64, device=pools[0].device)
    write = torch.tensor(targets, dtype=torch.int64, device=pools[0].device)
    for pool in pools:
        axis = pool.dim() - 2
        pool.index_copy_(axis, write, pool.index_select(axis, read))
    return len(origins)
