"""A channel to services of the caller's own process: for a gateway that lives with its verifier, on one event loop.

Of grpc's channel there is what generated stubs and our callers use. It calls what the server serves to everybody else (the same handlers,
so the same refusals while it drains), past sockets, encoding and threads. Must not know services.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import grpc

from outrider.rpc.handled_call import STOPPED, Behavior, Status, refusing
from outrider.rpc.in_process_call import InProcessCall, call_once
from outrider.rpc.served_method import ServedMethod

Unary = Callable[..., Coroutine[Any, Any, Any]]
Streaming = Callable[..., InProcessCall]


class InProcessChannel:
    """methods: by full name. max_calls: streams at a time; more are RESOURCE_EXHAUSTED."""

    def __init__(self, methods: Mapping[str, ServedMethod], max_calls: int) -> None:
        self._methods = methods
        self._max_calls = max_calls
        self._calls: set[InProcessCall] = set()
        self._closed = False

    @property
    def num_calls(self) -> int:
        """Streams whose handlers have not ended."""
        return len(self._calls)

    async def channel_ready(self) -> None:
        """At once: whoever has this channel is in the process that serves it."""

    async def close(self, grace: float | None = None) -> None:
        """End every stream, at once whatever the grace is, and refuse new calls."""
        self._closed = True
        for call in tuple(self._calls):
            call.end(STOPPED)

    def unary_unary(self, method: str, **_: Any) -> Unary:
        """A stub's method of one message each way."""
        behavior = self._methods[method].behavior

        async def call(request: Any, timeout: float | None = None, metadata: Iterable[tuple[str, str]] = ()) -> Any:
            return await call_once(self._refusal() or behavior, request, timeout, tuple(metadata))

        return call

    def stream_stream(self, method: str, **_: Any) -> Streaming:
        """A stub's method of a stream each way."""
        behavior = self._methods[method].behavior

        def call(timeout: float | None = None, metadata: Iterable[tuple[str, str]] = ()) -> InProcessCall:
            started = InProcessCall(self._refusal() or behavior, timeout, tuple(metadata), self._calls.discard)
            self._calls.add(started)
            return started

        return call

    def _refusal(self) -> Behavior | None:
        """What answers instead of the service."""
        if self._closed:
            return refusing(STOPPED)
        if len(self._calls) >= self._max_calls:
            return refusing(Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!"))
        return None
