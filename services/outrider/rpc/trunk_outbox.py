"""Events on their way over a trunk: whatever is said until a message can be written goes with it.

That is what a trunk is for: the sixty-four calls that have something to say in one turn of the event loop send one message, and while it
is being written the next one gathers. Must not know what events mean. Whoever adds what was asked for bounds what waits here: by what each
call may have under way, and, since calls that ended have none, by hearing nothing more while this `is_full`.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

MAX_BATCH_BYTES = 1 << 20  # payload of a message, beyond which only a single event goes
MAX_WAITING_EVENTS = 4096
MAX_WAITING_BYTES = 4 * MAX_BATCH_BYTES
FRAME_BYTES = 5  # of an event in its message, beside its own: most of one that is not alone there
EVENT_RESERVE_BYTES = 1024  # of the largest message, for what stands around a single payload


class Event(Protocol):
    """As in trunk.proto."""

    def ByteSize(self) -> int:
        """Of its encoding."""
        ...


_E = TypeVar("_E", bound=Event)


def too_large(payload: bytes, max_bytes: int) -> str:
    """What is said of one that no message can hold."""
    return f"a message of {len(payload)} bytes is more than the {max_bytes} that can be sent"


class TrunkOutbox(Generic[_E]):
    """`add` from any callback of the loop; `run` in one task. max_event_bytes: what the channel lets through of one event, and of many in
    one message."""

    def __init__(self, max_event_bytes: int = MAX_BATCH_BYTES) -> None:
        self._max_batch_bytes = min(MAX_BATCH_BYTES, max_event_bytes)
        self._events: list[_E] = []
        self._sizes: list[int] = []
        self._num_bytes = 0
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Events that are not being written yet."""
        return len(self._events)

    @property
    def is_full(self) -> bool:
        """More waits than anybody needs who reads."""
        return len(self._events) > MAX_WAITING_EVENTS or self._num_bytes > MAX_WAITING_BYTES

    def add(self, event: _E) -> None:
        """Say it with the next message, full or not; after `close` it is said to nobody."""
        if not self._closed:
            size = event.ByteSize() + FRAME_BYTES
            self._events.append(event)
            self._sizes.append(size)
            self._num_bytes += size
            _wake(self._waiting)

    async def room(self) -> None:
        """Return once this is not full; for one task at a time."""
        while self.is_full:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def close(self) -> None:
        """`run` returns once what is there was written. Safe to repeat."""
        self._closed = True
        _wake(self._waiting)

    async def run(self, write: Callable[[Sequence[_E]], Awaitable[None]]) -> None:
        """Write until closed; raises what write raises."""
        while self._events or not self._closed:
            if self._events:
                await write(self._taken())
            else:
                self._waiting = asyncio.get_running_loop().create_future()
                await self._waiting

    def _taken(self) -> Sequence[_E]:
        """The oldest events, as many as a message may hold."""
        events, sizes, num_bytes = self._events, self._sizes, self._num_bytes
        self._events, self._sizes, self._num_bytes = [], [], 0
        if num_bytes > self._max_batch_bytes:
            place = max(1, bisect.bisect_right(list(itertools.accumulate(sizes)), self._max_batch_bytes))
            self._events, self._sizes = events[place:], sizes[place:]
            self._num_bytes = sum(self._sizes)
            events = events[:place]
        if not self.is_full:
            _wake(self._room)
        return events


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():  # done: woken before, or the task was cancelled
        waiting.set_result(None)
