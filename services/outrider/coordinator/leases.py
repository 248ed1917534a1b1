"""When whose lease is over, by number. Leases may differ in length: a larger fleet is asked to announce itself less often.

The caller brings the time. Must not know what a lease is for.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Leases:
    """A renewed lease stays where it is in the heap until it comes up, and is put back then; a shortened one gets a second entry."""

    def __init__(self) -> None:
        self._until_s: dict[int, float] = {}
        self._queued_s: dict[int, float] = {}  # the soonest entry of each in the heap
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._until_s)

    def renew(self, number: int, until_s: float) -> None:
        """Its lease ends then, whatever it was told before."""
        self._until_s[number] = until_s
        if until_s < self._queued_s.get(number, float("inf")):
            self._queue(number, until_s)

    def end(self, number: int) -> None:
        """It has none any more."""
        del self._until_s[number]
        del self._queued_s[number]

    def expired(self, now_s: float) -> Iterator[int]:
        """Those whose lease ended before this, each of which the caller is to `end`."""
        while self._heap and self._heap[0][0] < now_s:
            queued_s, number = heapq.heappop(self._heap)
            if self._queued_s.get(number) != queued_s:
                continue
            until_s = self._until_s[number]
            if until_s < now_s:
                yield number
            else:
                self._queue(number, until_s)

    def _queue(self, number: int, until_s: float) -> None:
        self._queued_s[number] = until_s
        heapq.heappush(self._heap, (until_s, number))
