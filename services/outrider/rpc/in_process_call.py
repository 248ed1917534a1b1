"""One call of a service that lives in the caller's process: the halves that grpc's call and context are elsewhere, on one event loop.

Messages are handed over as they are, neither encoded nor copied: who sends one must not change it afterwards. Everything else is as over a
socket: order, a bounded number under way, the deadline, statuses with their trailing metadata, and that cancelling ends the handler. Of
grpc's context there is what our services use: `write`, `abort`, `time_remaining`, `invocation_metadata`. Must not know services.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import grpc

MAX_UNREAD = 64  # messages of one direction that wait for their reader; whoever sends more waits, as with a full window of a connection

Metadata = tuple[tuple[str, str], ...]
Behavior = Callable[[Any, Any], Awaitable[Any]]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: Metadata = ()

    def error(self) -> grpc.aio.AioRpcError:
        """What the caller is raised."""
        metadata = grpc.aio.Metadata(*self.trailing)
        return grpc.aio.AioRpcError(self.code, grpc.aio.Metadata(), metadata, self.details, None)


_OK = Status(grpc.StatusCode.OK)
_EXPIRED = Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
STOPPED = Status(grpc.StatusCode.UNAVAILABLE, "the service has stopped")


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
    def is_closed(self) -> bool:
        """Nothing more can be sent."""
        return self._closed

    async def send(self, message: _T) -> bool:
        """Wait for room. False: it was closed, and the message is dropped."""
        while len(self._unread) >= MAX_UNREAD and not self._closed:
            await self._change()
        if self._closed:
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


class InProcessContext:
    """What a handler is given. status: what it aborted with."""

    def __init__(self, responses: Pipe[Any], deadline_s: float | None, metadata: Metadata) -> None:
        self._responses = responses
        self._deadline_s = deadline_s
        self._metadata = metadata
        self.status: Status | None = None

    def time_remaining(self) -> float | None:
        """Seconds; None without a deadline."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - asyncio.get_running_loop().time())

    def invocation_metadata(self) -> Metadata:
        """As the caller sent them."""
        return self._metadata

    async def write(self, message: Any) -> None:
        """Return when there was room for it. To a caller that has gone nothing is said: its handler is being cancelled."""
        await self._responses.send(message)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with this status."""
        self.status = Status(code, details, tuple(trailing_metadata))
        raise grpc.aio.AbortError


class InProcessCall:
    """The caller's half, and the task of the handler. timeout_s: None for no deadline. on_end: called once, when the handler has ended."""

    def __init__(self, behavior: Behavior, timeout_s: float | None, metadata: Metadata, on_end: Callable[[InProcessCall], None]) -> None:
        loop = asyncio.get_running_loop()
        self._requests: Pipe[Any] = Pipe()
        self._responses: Pipe[Any] = Pipe()
        self._status: Status | None = None
        self._left = False
        self._context = InProcessContext(self._responses, None if timeout_s is None else loop.time() + timeout_s, metadata)
        self._expiry = None if timeout_s is None else loop.call_later(timeout_s, self.end, _EXPIRED)
        self._handler = loop.create_task(self._handle(behavior))
        self._handler.add_done_callback(lambda _: self._ended(on_end))

    async def write(self, request: Any) -> None:
        """Send one message. Raises asyncio.InvalidStateError once the call has ended, as grpc does."""
        if not await self._requests.send(request):
            raise asyncio.InvalidStateError("the call has ended")

    def cancel(self) -> bool:
        """The caller wants no more; whether that ended the call."""
        was_live = self._status is None
        self._left = self._left or was_live
        self.end(Status(grpc.StatusCode.CANCELLED, "cancelled by the caller"))
        return was_live

    def end(self, status: Status) -> None:
        """End a call that runs: its handler is cancelled, the caller gets this status behind what is unread."""
        if self._status is None:
            self._close(status)
            self._handler.cancel()

    def __aiter__(self) -> InProcessCall:
        return self

    async def __anext__(self) -> Any:
        """The next message, StopAsyncIteration after the last of a call that went well. Raises grpc.aio.AioRpcError for any other end, and
        CancelledError to a caller that cancelled it."""
        message = await self._responses.receive()
        if message is not None:
            return message
        if self._left:
            raise asyncio.CancelledError
        assert self._status is not None, "a closed pipe has a status"
        if self._status.code is grpc.StatusCode.OK:
            raise StopAsyncIteration
        raise self._status.error()

    async def _handle(self, behavior: Behavior) -> None:
        """Behaviors report errors by `abort` (outrider.rpc.interceptor); what they raise beyond that is a bug of this module's users."""
        try:
            await behavior(self._requests, self._context)
        except grpc.aio.AbortError:
            assert self._context.status is not None, "only abort raises this"
            self._close(self._context.status)
        else:
            self._close(_OK)

    def _ended(self, on_end: Callable[[InProcessCall], None]) -> None:
        """For a handler that ended by neither: the process closes down."""
        self._close(STOPPED)
        on_end(self)

    def _close(self, status: Status) -> None:
        if self._status is not None:
            return
        self._status = status
        if self._expiry is not None:
            self._expiry.cancel()
        self._requests.close()
        self._responses.close()


def refusing(status: Status) -> Behavior:
    """A behavior that ends every call so."""

    async def behavior(request: Any, context: InProcessContext) -> NoReturn:
        await context.abort(status.code, status.details, status.trailing)

    return behavior


async def call_once(behavior: Behavior, request: Any, timeout_s: float | None, metadata: Metadata) -> Any:
    """A call of one message each way. Raises grpc.aio.AioRpcError."""
    deadline_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    context = InProcessContext(Pipe(), deadline_s, metadata)
    try:
        async with asyncio.timeout_at(deadline_s):
            return await behavior(request, context)
    except grpc.aio.AbortError:
        assert context.status is not None, "only abort raises this"
        raise context.status.error() from None
    except TimeoutError:
        raise _EXPIRED.error() from None
