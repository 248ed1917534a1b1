"""One direction of a call whose other half lives on the same event loop: messages in order, a bounded number of them unread.

Messages are handed over as they are. Must not know what they mean, nor who reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

MAX_UNREAD = 64  # messages of one direction that wait for their reader; whoever sends more waits, as with a full window of a connection
_T = TypeVar("_T")


class Pipe(Generic[_T]):
    """One direction of a call: at most MAX_UNREAD messages, one reader, one writer. Only one of them ever waits: the reader while it is
    empty, the writer while it is full."""

    def __init__(self) -> None:
        self._unread: deque[_T] = deque()
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None
        self._take: Callable[[_T], bool] | None = None

    @property
    def num_unread(self) -> int:
        """Messages that wait."""
        return len(self._unread)

    @property
    def num_read(self) -> int:
        """Nobody is told: whoever writes sees what is unread."""
        return 0

    @property
    def is_closed(self) -> bool:
        """Nothing more can be sent."""
        return self._closed

    async def send(self, message: _T) -> bool:
        """Wait for room. False: it was closed, and the message is dropped."""
        while len(self._unread) >= MAX_UNREAD and not self._closed:
            await self._change()
        return self.put(message)

    def put(self, message: _T) -> bool:
        """Send without waiting. False: it is closed or full, and the message is dropped."""
        if self._closed or len(self._unread) >= MAX_UNREAD:
            return False
        if self._take is not None:
            self._take = self._take if self._take(message) else None
            return True
        self._unread.append(message)
        self._wake()
        return True

    async def receive(self) -> _T | None:
        """The next message; None when it is closed and everything was read."""
        while not self._unread:
            if self._closed:
                return None
            await self._change()
        message = self._unread.popleft()
        if len(self._unread) == MAX_UNREAD - 1:
            self._wake()
        return message

    def tell(self, take: Callable[[_T], bool] | None) -> None:
        """In place of a reader: hand every message to take, at once and in the writer's turn, until it wants no more (False); then, and
        with None, they wait again. take must not raise."""
        self._take = take
        while self._unread and self._take is not None:
            self._take = self._take if self._take(self._unread.popleft()) else None
        self._wake()

    def close(self) -> None:
        """Safe to repeat."""
        self._closed = True
        self._wake()

    async def _change(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():  # done: whoever waited was cancelled
            waiting.set_result(None)

    def __aiter__(self) -> Pipe[_T]:
        return self

    async def __anext__(self) -> _T:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message
