"""A method as a server serves it, for calls that do not come to it from grpc. Must not know services."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc

from outrider.rpc.handled_call import Behavior, HandlerContext
from outrider.rpc.pipe import Pipe


class ServedMethod(NamedTuple):
    """behavior: with errors as statuses. parse: of a request's bytes; raises google.protobuf.message.DecodeError. serialize: a response.
    takes_stream, gives_stream: of messages, rather than one."""

    behavior: Behavior
    parse: Callable[[bytes], Any]
    serialize: Callable[[Any], bytes]
    takes_stream: bool
    gives_stream: bool

    @property
    def of_stream(self) -> Behavior:
        """For a call whose requests come in a pipe, be it a single one."""
        return self.behavior if self.takes_stream else _of_first(self.behavior)


def _of_first(behavior: Behavior) -> Behavior:
    async def call(requests: Pipe[Any], context: HandlerContext) -> None:
        request = await requests.receive()
        if request is None:
            await context.abort(grpc.StatusCode.INTERNAL, "the call ended before its request came")
        await behavior(request, context)

    return call
