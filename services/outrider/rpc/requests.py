"""What the caller of a stream says, for a handler: the first message within a time, further ones told as they come.

From grpc they are read by a task. A caller in this process, or over a trunk, has sent the first before the handler begins, and its pipe
tells the others by itself, so that neither a timer nor a task is made. Must not know what the messages mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Generic, TypeVar

import grpc

from outrider.errors import InvalidRequest
from outrider.rpc.pipe import Pipe

_T = TypeVar("_T")


class Requests(Generic[_T]):
    """Use: `await first(...)`, then `tell(...)`, and `close` in any case."""

    def __init__(self, messages: AsyncIterator[_T]) -> None:
        self._messages = aiter(messages)
        self._pipe: Pipe[_T] | None = messages if isinstance(messages, Pipe) else None
        self._reading: asyncio.Task[None] | None = None

    async def first(self, timeout_s: float) -> _T | None:
        """None when the caller says nothing at all. Raises TimeoutError."""
        if self._pipe is not None and self._pipe.num_unread:
            return await self._pipe.receive()
        async with asyncio.timeout(timeout_s):
            return await anext(self._messages, None)

    def tell(self, take: Callable[[_T], bool], refuse: Callable[[InvalidRequest], None]) -> None:
        """From now on hand over what comes, until take wants no more (False). refuse: told once, in place of anything further, when what
        came is no message. A pipe carries messages only: whoever fills it ends the call then."""
        if self._pipe is not None:
            self._pipe.tell(take)
        else:
            self._reading = asyncio.ensure_future(self._read(take, refuse))

    async def close(self) -> None:
        """Nothing is told any more; a read under way has ended."""
        if self._pipe is not None:
            self._pipe.tell(None)
        elif self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError, grpc.aio.BaseError):
                await self._reading

    async def _read(self, take: Callable[[_T], bool], refuse: Callable[[InvalidRequest], None]) -> None:
        try:
            async for message in self._messages:
                if not take(message):
                    return
        except InvalidRequest as error:
            refuse(error)
