"""The writing end of one client's stream: a write that waits for a slow reader must not keep us from ending the request.

Knows a grpc context. grpc allows one write at a time and no status while one is pending, so an interrupted write is left to finish on
its own (`settle`) after everything else of the request is freed. Must not know what is written.
"""

from __future__ import annotations

from outrider.rpc.context import Context
from outrider.rpc.uncut import Uncut
from outrider.v1 import generation_pb2 as pb


class ClientStream:
    """Use `write` for every message, `settle` before ending the call with a status, `close` in any case."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pending: Uncut | None = None

    async def write(self, response: pb.GenerateResponse) -> None:
        """Return when grpc has taken the message, which waits for the reader's flow control; an interruption leaves it under way."""
        self._pending = Uncut(self._context.write(response))
        await self._pending.rest()

    async def settle(self) -> None:
        """Wait for the message under way, until the reader takes it or leaves."""
        if self._pending is not None:
            await self._pending.rest()

    def close(self) -> None:
        """Give up the message under way; whatever became of it no longer matters, for the reader left."""
        if self._pending is not None:
            self._pending.close()
