"""Free ids as runs of neighbours: sorted, disjoint, never touching.

Knows ids only, and that neighbours are worth keeping together. Must not know blocks' contents, holders or references.
"""

from __future__ import annotations

from bisect import bisect_right


class FreeRuns:
    """Half-open runs over [0, size), all of it free at first. Every operation costs O(number of runs) at most."""

    def __init__(self, size: int) -> None:
        self._begins = [0]
        self._ends = [size]
        self.num_free = size

    def copy(self) -> FreeRuns:
        """The same ids, to try something on."""
        other = FreeRuns(0)
        other._begins, other._ends, other.num_free = self._begins.copy(), self._ends.copy(), self.num_free
        return other

    def fits(self, count: int) -> bool:
        """Whether `count` neighbours are free."""
        return any(end - begin >= count for begin, end in zip(self._begins, self._ends, strict=True))

    def take(self, count: int) -> list[int]:
        """Take `count` ids, ascending: the smallest run that fits them all, else the largest runs first. As many must be free."""
        assert 0 < count <= self.num_free
        runs = list(zip(self._begins, self._ends, strict=True))
        fitting = [run for run in runs if run[1] - run[0] >= count]
        if fitting:
            chosen = [min(fitting, key=lambda run: (run[1] - run[0], run[0]))]
        else:
            chosen = sorted(runs, key=lambda run: (run[0] - run[1], run[0]))
        taken: list[int] = []
        for begin, end in chosen:
            own_end = min(end, begin + count - len(taken))
            self._shorten(begin, own_end)
            taken.extend(range(begin, own_end))
            if len(taken) == count:
                break
        self.num_free -= count
        return sorted(taken)

    def take_from(self, begin: int, count: int) -> list[int]:
        """Take `count` neighbours from `begin` on, or nothing where a run does not begin there, or is shorter."""
        place = bisect_right(self._begins, begin) - 1
        if place < 0 or self._begins[place] != begin or self._ends[place] - begin < count:
            return []
        self._shorten(begin, begin + count)
        self.num_free -= count
        return list(range(begin, begin + count))

    def add(self, block: int) -> None:
        """Give one id back; it joins its neighbours."""
        place = bisect_right(self._begins, block)
        assert place == 0 or self._ends[place - 1] <= block, f"{block} is free already"
        joins_before = place > 0 and self._ends[place - 1] == block
        joins_after = place < len(self._begins) and self._begins[place] == block + 1
        if joins_before and joins_after:
            self._ends[place - 1] = self._ends.pop(place)
            del self._begins[place]
        elif joins_before:
            self._ends[place - 1] = block + 1
        elif joins_after:
            self._begins[place] = block
        else:
            self._begins.insert(place, block)
            self._ends.insert(place, block + 1)
        self.num_free += 1

    def _shorten(self, begin: int, end: int) -> None:
        """The run that begins at `begin` now begins at `end`."""
        place = bisect_right(self._begins, begin) - 1
        if self._ends[place] == end:
            del self._begins[place], self._ends[place]
        else:
            self._begins[place] = end
