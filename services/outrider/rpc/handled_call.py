"""The handler's half of a call that did not come to it from grpc: its task, its deadline, how it ended, and the context it is given.

Of grpc's context there is what our services use: `write`, `abort`, `time_remaining`, `invocation_metadata`. Where responses go is up to
whoever carries the call: to a caller in this process, or over a trunk. Must not know services.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

import grpc

from outrider.rpc.pipe import Pipe

Metadata = tuple[tuple[str, str], ...]
Behavior = Callable[[Any, Any], Awaitable[Any]]


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

    def end_of_iteration(self, *, left: bool) -> BaseException:
        """What ends the iteration over a call's responses, behind the last of them, as grpc has it. left: the caller cancelled the call."""
        if left:
            return asyncio.CancelledError()
        return StopAsyncIteration() if self.code is grpc.StatusCode.OK else self.error()


OK = Status(grpc.StatusCode.OK)
EXPIRED = Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
STOPPED = Status(grpc.StatusCode.UNAVAILABLE, "the service has stopped")
CALLER_LEFT = Status(grpc.StatusCode.CANCELLED, "cancelled by the caller")


class Responses(Protocol):
    """Where a handler's messages go. num_read: how much of them the caller has said that it read; 0 where it is not asked."""

    @property
    def num_read(self) -> int:
        """In any unit."""
        ...

    async def send(self, message: Any) -> bool:
        """Wait for room. False: nobody reads any more, and the message is dropped."""
        ...


class HandlerContext:
    """What a handler is given. status: what it aborted with."""

    def __init__(self, responses: Responses, deadline_s: float | None, metadata: Metadata) -> None:
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

    @property
    def num_read(self) -> int:
        """How much of what was written the caller has said that it read."""
        return self._responses.num_read

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with this status."""
        self.status = Status(code, details, tuple(trailing_metadata))
        raise grpc.aio.AbortError


class HandledCall(ABC):
    """requests: for the handler to read. timeout_s: None for no deadline. on_end: called once, when the handler has ended."""

    def __init__(
        self, behavior: Behavior, responses: Responses, timeout_s: float | None, metadata: Metadata, on_end: Callable[[Self], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.requests: Pipe[Any] = Pipe()
        self.status: Status | None = None
        self._context = HandlerContext(responses, None if timeout_s is None else loop.time() + timeout_s, metadata)
        self._expiry = None if timeout_s is None else loop.call_later(timeout_s, self.end, EXPIRED)
        self._handler = loop.create_task(self._handle(behavior))
        self._handler.add_done_callback(lambda _: self._ended(on_end))

    def end(self, status: Status) -> None:
        """End a call that runs: its handler is cancelled, the caller gets this status behind what is unread."""
        if self.status is None:
            self._close(status)
            self._handler.cancel()

    @abstractmethod
    def _say(self, status: Status) -> None:
        """Tell the caller how the call ended."""

    async def _handle(self, behavior: Behavior) -> None:
        """Behaviors report errors by `abort` (outrider.rpc.interceptor); what they raise beyond that is a bug of this module's users."""
        try:
            await behavior(self.requests, self._context)
        except grpc.aio.AbortError:
            assert self._context.status is not None, "only abort raises this"
            self._close(self._context.status)
        else:
            self._close(OK)

    def _ended(self, on_end: Callable[[Self], None]) -> None:
        """For a handler that ended by neither: the process closes down."""
        self._close(STOPPED)
        on_end(self)

    def _close(self, status: Status) -> None:
        if self.status is not None:
            return
        self.status = status
        if self._expiry is not None:
            self._expiry.cancel()
        self.requests.close()
        self._say(status)


def refusing(status: Status) -> Behavior:
    """A behavior that ends every call so."""

    async def behavior(request: Any, context: HandlerContext) -> NoReturn:
        await context.abort(status.code, status.details, status.trailing)

    return behavior
