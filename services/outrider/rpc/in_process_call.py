"""One call of a service that lives in the caller's process: both halves on one event loop.

Messages are handed over as they are, neither encoded nor copied: who sends one must not change it afterwards. Everything else is as over a
socket: order, a bounded number under way, the deadline, statuses with their trailing metadata, and that cancelling ends the handler. Must
not know services.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import grpc

from outrider.rpc.handled_call import CALLER_LEFT, EXPIRED, Behavior, HandledCall, HandlerContext, Metadata, Status
from outrider.rpc.pipe import Pipe


class InProcessCall(HandledCall):
    """The caller's half too. timeout_s: None for no deadline. on_end: called once, when the handler has ended."""

    def __init__(self, behavior: Behavior, timeout_s: float | None, metadata: Metadata, on_end: Callable[[Self], None]) -> None:
        self._responses: Pipe[Any] = Pipe()
        self._left = False
        super().__init__(behavior, self._responses, timeout_s, metadata, on_end)

    async def write(self, request: Any) -> None:
        """Send one message. Raises asyncio.InvalidStateError once the call has ended, as grpc does."""
        if not await self.requests.send(request):
            raise asyncio.InvalidStateError("the call has ended")

    def cancel(self) -> bool:
        """The caller wants no more; whether that ended the call."""
        was_live = self.status is None
        self._left = self._left or was_live
        self.end(CALLER_LEFT)
        return was_live

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next message, StopAsyncIteration after the last of a call that went well. Raises grpc.aio.AioRpcError for any other end, and
        CancelledError to a caller that cancelled it."""
        message = await self._responses.receive()
        if message is not None:
            return message
        assert self.status is not None, "a closed pipe has a status"
        raise self.status.end_of_iteration(left=self._left)

    def _say(self, status: Status) -> None:
        self._responses.close()


async def call_once(behavior: Behavior, request: Any, timeout_s: float | None, metadata: Metadata) -> Any:
    """A call of one message each way. Raises grpc.aio.AioRpcError."""
    deadline_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    context = HandlerContext(Pipe(), deadline_s, metadata)
    try:
        async with asyncio.timeout_at(deadline_s):
            return await behavior(request, context)
    except grpc.aio.AbortError:
        assert context.status is not None, "only abort raises this"
        raise context.status.error() from None
    except TimeoutError:
        raise EXPIRED.error() from None
