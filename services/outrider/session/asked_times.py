"""When a drafter was given leave to guess on from each committed length: what its answer is measured against.

Knows lengths and times that are handed in. Must not know frames, links or what is made of an answer.
"""

from __future__ import annotations

from collections import deque

MAX_ASKED = 64  # the newest; a drafter that is further behind is not measured


class AskedTimes:
    """Committed lengths in ascending order, each with its time in microseconds."""

    def __init__(self) -> None:
        self._asked: deque[tuple[int, int]] = deque(maxlen=MAX_ASKED)

    def note(self, committed_len: int, now_us: int) -> None:
        """Leave went out with the commit that made the text so long."""
        self._asked.append((committed_len, now_us))

    def take(self, base: int) -> int | None:
        """When leave went out for a tree that begins after `base` tokens; None if it did not. It and all before it are forgotten."""
        while self._asked and self._asked[0][0] <= base:
            committed_len, asked_us = self._asked.popleft()
            if committed_len == base:
                return asked_us
        return None
