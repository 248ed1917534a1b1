"""Whether this gateway is idle: to be waited for, and to end what only idle time is for.

Knows how many requests are live, as it is told. Must not know requests, or what the idle time is used for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.errors import OutriderError
from outrider.gateway.interruption import Interruption


class NoLongerIdle(OutriderError):
    """A client's request came in."""


class Idleness:
    """max_live: with at most so many live requests the gateway is idle."""

    def __init__(self, max_live: int) -> None:
        self._max_live = max_live
        self._num_times_busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._users: set[Interruption] = set()

    def observe(self, num_live: int) -> None:
        """So many requests are live from now on; whoever uses idle time that has ended is interrupted."""
        if num_live <= self._max_live:
            self._idle.set()
            return
        self._num_times_busy += 1
        self._idle.clear()
        for user in self._users:
            user.interrupt(NoLongerIdle("a client's request came in"))

    async def wait(self, settle_s: float) -> None:
        """Return once the gateway has been idle for settle_s."""
        while True:
            await self._idle.wait()
            num_before = self._num_times_busy
            await asyncio.sleep(settle_s)
            if self._idle.is_set() and num_before == self._num_times_busy:
                return

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Work of idle time: the block ends with NoLongerIdle as soon as the gateway is not idle any more, or is not entered at all."""
        if not self._idle.is_set():
            raise NoLongerIdle("a client's request came in")
        async with Interruption() as user:
            self._users.add(user)
            try:
                yield
            finally:
                self._users.discard(user)
