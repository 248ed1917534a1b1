"""Events on their way over a trunk: whatever is said until a message can be written goes with it.

That is what a trunk is for: the sixty-four calls that have something to say in one turn of the event loop send one message, and while it
is being written the next one gathers. Must not know what events mean. What waits here is bounded by what each call may have under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

MAX_BATCH_BYTES = 1 << 20  # payload of a message, beyond which only a single event goes
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
    """`add` from any callback of the loop; `run` in one task."""

    def __init__(self) -> None:
        self._events: list[_E] = []
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Events that are not being written yet."""
        return len(self._events)

    def add(self, event: _E) -> None:
        """Say it with the next message; after `close` it is said to nobody."""
        if not self._closed:
            self._events.append(event)
            self._wake()

    def close(self) -> None:
        """`run` returns once what is there was written. Safe to repeat."""
        self._closed = True
        self._wake()

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
        events, num_bytes = self._events, 0
        for place, event in enumerate(events):
            num_bytes += event.ByteSize()
            if place and num_bytes > MAX_BATCH_BYTES:
                self._events = events[place:]
                return events[:place]
        self._events = []
        return events

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():  # done: the task was cancelled
            waiting.set_result(None)
