"""The writing end of one client's stream: a write that waits for a slow reader must not keep us from ending the request.

Knows a grpc context. grpc allows one write at a time and no status while one is pending, so an interrupted write is left to finish on
its own (`settle`) after everything else of the request is freed. To a client that takes bundles, what is certain to be followed waits for
that, and goes in one message with it. Must not know what else is written.
"""

from __future__ import annotations

import asyncio

from outrider.rpc.context import Context, num_heard_read
from outrider.rpc.convert.bundle import bundled, takes_bundles
from outrider.rpc.uncut import Uncut
from outrider.v1 import generation_pb2 as pb

MAX_WAIT_S = 0.016  # of Started and Finished for what follows them: a frame of a screen, as a verifier's --stream-interval-ms
_FOLLOWED = ("started", "finished")


class ClientStream:
    """Use `write` for every message, `settle` before ending the call with a status, `close` in any case."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._bundles = takes_bundles(context)
        self._waiting: list[pb.GenerateResponse] = []
        self._timer: asyncio.TimerHandle | None = None  # of those that wait
        self._late: asyncio.Task[None] | None = None  # writes what waited too long
        self._pending: Uncut | None = None

    @property
    def unread(self) -> tuple[Uncut, int] | None:
        """The message under way, which waits for its reader, and what that told of reading those before; None while there is none."""
        return None if self._pending is None or self._pending.is_over else (self._pending, num_heard_read(self._context))

    async def write(self, *responses: pb.GenerateResponse) -> None:
        """Return when grpc has taken the messages, which waits for the reader's flow control, or when they wait for what follows; an
        interruption leaves them under way."""
        self._waiting += responses
        if self._bundles and self._late is None and responses[-1].WhichOneof("event") in _FOLLOWED:
            self._timer = self._timer or asyncio.get_running_loop().call_later(MAX_WAIT_S, self._write_waiting)
        else:
            await self.settle()

    async def settle(self) -> None:
        """Write what waits, and wait for the message under way, until the reader takes it or leaves."""
        if self._timer is not None:
            self._stop_waiting()
        if self._late is not None:
            await asyncio.wait((self._late,))  # which a cancellation of ours leaves alone
            late, self._late = self._late, None
            late.result()
        while True:
            if self._pending is not None:
                await self._pending.rest()
                self._pending = None
            if not self._waiting:
                return
            self._pending = Uncut(self._context.write(self._next()))

    def close(self) -> None:
        """Give up the message under way; whatever became of it no longer matters, for the reader left."""
        self._stop_waiting()
        if self._late is not None:
            self._late.cancel()
        if self._pending is not None:
            self._pending.close()

    def _write_waiting(self) -> None:
        """Nothing followed in time."""
        self._timer = None
        self._pending = Uncut(self._context.write(self._next()))
        self._late = asyncio.get_running_loop().create_task(self._pending.rest())
        self._late.add_done_callback(_retrieve)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> pb.GenerateResponse:
        if not self._bundles:
            return self._waiting.pop(0)
        waiting, self._waiting = self._waiting, []
        return bundled(waiting)


def _retrieve(late: asyncio.Task[None]) -> None:
    """What it raised is raised by the next write; if there is none, the reader has left, and nobody wants to know."""
    if not late.cancelled():
        late.exception()
