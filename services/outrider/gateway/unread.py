"""Readers that take nothing of their answer and stay: after a while the request is ended, for a verifier holds blocks for it all the while.

One timer looks at all streams now and then, so that a message costs nothing. Knows streams' messages under way. Must not know requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider.errors import Cancelled
from outrider.gateway.client_stream import ClientStream
from outrider.gateway.interruption import Interruption
from outrider.rpc.uncut import Uncut

LOOKS = 4  # in the time that a message may stay unread: one is noticed up to a quarter late


class UnreadAnswers:
    """max_unread_s: one message may wait so long for a reader that takes none before it either. Construct inside a running event loop."""

    def __init__(self, max_unread_s: float) -> None:
        self._max_unread_s = max_unread_s
        self._loop = asyncio.get_running_loop()
        self._interruptions: dict[ClientStream, Interruption] = {}
        self._seen: dict[ClientStream, tuple[tuple[Uncut, int], float]] = {}  # `unread` at the last look, and since when
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._interruptions)

    @asynccontextmanager
    async def watched(self, stream: ClientStream) -> AsyncIterator[None]:
        """The block ends with Cancelled once the reader of this stream has left a message unread for too long."""
        async with Interruption() as interruption:
            self._interruptions[stream] = interruption
            if self._timer is None:
                self._look_later()
            try:
                yield
            finally:
                del self._interruptions[stream]
                self._seen.pop(stream, None)

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._max_unread_s / LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for stream, interruption in self._interruptions.items():
            self._look_at(stream, interruption, now_s)
        if self._interruptions:
            self._look_later()

    def _look_at(self, stream: ClientStream, interruption: Interruption, now_s: float) -> None:
        unread, (seen, since_s) = stream.unread, self._seen.get(stream, (None, now_s))
        if unread is not None and unread != seen:
            self._seen[stream] = (unread, now_s)
        elif unread is not None and now_s - since_s >= self._max_unread_s:
            problem = f"the client has taken nothing of its answer for {self._max_unread_s:g} s; the same seed gives the same tokens again"
            interruption.interrupt(Cancelled(problem))
