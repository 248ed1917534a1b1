"""How far a drafter's monotonic clock is ahead of ours, from the quickest of the latest round trips (Cristian's method).

Knows numbers only. The error is at most half of the quickest round trip; it blurs the measured overlap by as much and nothing else.
"""

from __future__ import annotations

from collections import deque

MAX_SAMPLES = 16
_MAX_NS = 1 << 62


class PairClock:
    """round_trip_ns: the quickest of the latest MAX_SAMPLES trips, 0 when unknown. ahead_ns: their clock minus ours."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=MAX_SAMPLES)

    @property
    def round_trip_ns(self) -> int:
        """Quickest measured round trip."""
        return min(self._samples)[0] if self._samples else 0

    @property
    def ahead_ns(self) -> int:
        """Estimate from the quickest trip; 0 when unknown."""
        return min(self._samples)[1] if self._samples else 0

    def sample(self, sent_ns: int, their_ns: int, received_ns: int) -> None:
        """A ping sent at sent_ns came back at received_ns (our clock), stamped their_ns by the other side."""
        if sent_ns <= received_ns and 0 <= their_ns < _MAX_NS:
            self._samples.append((received_ns - sent_ns, their_ns - (sent_ns + received_ns) // 2))

    def ours_ns(self, their_ns: int) -> int:
        """An instant of their clock on ours."""
        return their_ns - self.ahead_ns
