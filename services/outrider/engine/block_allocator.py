"""Which KV blocks are free: counts references, prefers runs of neighbouring blocks, never moves anything.

A sequence whose blocks neighbour each other is read as one view of the pool, so contiguity is speed. References let full committed
blocks be shared between sequences later: writes only ever go behind a sequence's committed tokens, so a shared full block is never
written and a holder merely releases it. Must not know tensors or sequences.
"""

from __future__ import annotations

from outrider.errors import Overloaded


class BlockAllocator:
    """Hands out block ids [0, num_blocks). Free blocks are kept as runs, sorted by begin: a few entries, not one a block."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self._references = [0] * num_blocks
        self._runs: list[tuple[int, int]] = [(0, num_blocks)]
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return self._num_free

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each, ascending: the smallest run that fits them all, else the largest runs first.

        Raises Overloaded, holding nothing, when fewer are free.
        """
        assert count > 0
        if count > self._num_free:
            raise Overloaded(f"the request needs {count} KV blocks and {self._num_free} are free; retry later")
        fitting = [run for run in self._runs if run[1] - run[0] >= count]
        if fitting:
            begin, _ = min(fitting, key=lambda run: (run[1] - run[0], run[0]))
            taken = list(range(begin, begin + count))
        else:
            taken = []
            for begin, end in sorted(self._runs, key=lambda run: (run[0] - run[1], run[0])):
                taken.extend(range(begin, min(end, begin + count - len(taken))))
                if len(taken) == count:
                    break
            taken.sort()
        for block in taken:
            self._references[block] = 1
        self._num_free -= count
        self._rebuild()
        return taken

    def retain(self, blocks: list[int]) -> None:
        """Add a reference to blocks that somebody holds already."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is free"
            self._references[block] += 1

    def release(self, blocks: list[int]) -> None:
        """Drop one reference of each; a block without references is free again."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is free already"
            self._references[block] -= 1
            self._num_free += self._references[block] == 0
        self._rebuild()

    def num_references(self, block: int) -> int:
        """How many hold the block; 0 is free."""
        return self._references[block]

    def _rebuild(self) -> None:
        runs: list[tuple[int, int]] = []
        begin: int | None = None
        for block, references in enumerate([*self._references, 1]):
            if references == 0 and begin is None:
                begin = block
            elif references and begin is not None:
                runs.append((begin, block))
                begin = None
        self._runs = runs
