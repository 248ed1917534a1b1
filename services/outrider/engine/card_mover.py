"""Moves rows of the cache with our Triton kernel: every layer of one shape in one launch. Needs Triton: import it where a card is used.

Must not know trees or sequences: only slots.
"""

from __future__ import annotations

from torch import Tensor

from outrider_kernels.compact import compact, moves
from outrider_kernels.triton_compact import MAX_MOVES, compact_tables, pool_tables


class CardMover:
    """SlotMover over pools that stay where they are."""

    def __init__(self, pools: list[Tensor]) -> None:
        self._pools = pools
        self._tables = pool_tables(pools)

    def __call__(self, source: list[int], destination: list[int]) -> int:
        """See SlotMover. More rows than the kernel takes at once go by torch: a part of them may be what another part overwrites."""
        if len(moves(source, destination)[0]) > MAX_MOVES:
            return compact(self._pools, source, destination)
        return compact_tables(self._tables, source, destination)
