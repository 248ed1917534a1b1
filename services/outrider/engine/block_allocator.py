"""Which KV blocks are free: counts references, prefers runs of neighbouring blocks, never moves anything.

A sequence whose blocks neighbour each other is read as one view of the pool, so contiguity is speed. A full block of committed tokens may
have several holders: writes only ever go behind them, so it is never written while it is held or can be found. One that nobody holds any
more stays as it is while it can be found (engine/prefix_index.py): it counts as free, can be held again, and is given up, the one let go
longest ago first, when blocks without contents run out. Must not know tensors or sequences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from outrider.engine.free_runs import FreeRuns
from outrider.engine.prefix_index import PrefixIndex
from outrider.errors import Overloaded


class BlockAllocator:
    """Hands out block ids [0, num_blocks). index: which blocks are worth keeping when nobody holds them; None: none is."""

    def __init__(self, num_blocks: int, index: PrefixIndex | None = None) -> None:
        assert num_blocks > 0
        self._index = index
        self._references = [0] * num_blocks
        self._empty = FreeRuns(num_blocks)
        self._kept: OrderedDict[int, None] = OrderedDict()  # free, but findable; the next to be given up first

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return self._empty.num_free + len(self._kept)

    def allocate(self, count: int, behind: int | None = None) -> list[int]:
        """Take `count` blocks with one reference each, ascending: those that follow the block `behind` if they are empty, else the smallest
        run that fits them all, else the largest runs first.

        Kept blocks are given up when there are too few others, and up to `count` more of them when that makes one run of the whole.
        Raises Overloaded, holding nothing, when fewer are free.
        """
        assert count > 0
        if count > self.num_free:
            raise Overloaded(f"the request needs {count} KV blocks and {self.num_free} are free; retry later")
        for _ in range(count - self._empty.num_free):
            self._give_up_oldest()
        taken = [] if behind is None else self._empty.take_from(behind + 1, count)
        if not taken:
            for _ in range(self._num_missing_for_a_run(count)):
                self._give_up_oldest()
            taken = self._empty.take(count)
        for block in taken:
            self._references[block] = 1
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """Add a reference to blocks that somebody holds already, or that are kept."""
        for block in blocks:
            assert self._references[block] > 0 or block in self._kept, f"block {block} is free"
            self._kept.pop(block, None)
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each; a block without references is free again. Of those kept, the last given is given up first:
        nobody finds the later block of a text without the earlier."""
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is free already"
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._index is not None and self._index.holds(block):
                self._kept[block] = None
            else:
                self._empty.add(block)

    def num_references(self, block: int) -> int:
        """How many hold the block; 0 is free."""
        return self._references[block]

    def _num_missing_for_a_run(self, count: int) -> int:
        """How many of the oldest kept blocks, at most `count`, make a run of `count` with the empty ones; 0 when there is one or will
        be none."""
        if not self._kept or self._empty.fits(count):
            return 0
        trial = self._empty.copy()
        for num_given_up, block in enumerate(islice(self._kept, count), 1):
            trial.add(block)
            if trial.fits(count):
                return num_given_up
        return 0

    def _give_up_oldest(self) -> None:
        assert self._index is not None
        block, _ = self._kept.popitem(last=False)
        self._index.forget(block)
        self._empty.add(block)
