"""A clock that stands still while the process does.

A coordinator that was stopped for longer than a lease finds, once it goes on, everybody's lease over before it has read the heartbeats that
wait in its sockets. So leases run on this clock: it ticks while the event loop turns, and what passed between two ticks beyond a bound did
not pass. Must not know leases.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TICK_S = 0.1
MAX_GAP_S = 0.5  # between ticks of a process that is merely busy


class WakingClock:
    """Seconds that never go back. now_s: the clock beneath, monotonic."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._seen_s = now_s()
        self._slept_s = 0.0

    def __call__(self) -> float:
        """The time awake."""
        now_s = self._now_s()
        gap_s = now_s - self._seen_s
        if gap_s > MAX_GAP_S:
            self._slept_s += gap_s - TICK_S
        self._seen_s = now_s
        return now_s - self._slept_s

    async def tick(self) -> None:
        """Until cancelled: tells a process that nobody asks for the time from one that does not run."""
        while True:
            self()
            await asyncio.sleep(TICK_S)
