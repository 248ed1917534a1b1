"""What the event loop hands to the engine thread: one bounded queue, emptied whole between two steps.

Knows how to block the thread until something comes or a time has passed, and how to hold a reader back when the thread falls behind. Must
not know what the items do. Batches of drafter frames are bounded by `capacity`; the other items are bounded by what they stand for (one
open and one cancel per admitted stream, one up and one down per connection) and always get in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from outrider.errors import OutriderError
from outrider.rpc.convert.link import BadFrame
from outrider.rpc.doorbell import Doorbell
from outrider.rpc.lane import Lane
from outrider.types.frames import DrafterFrame
from outrider.types.value import quickly_made
from verifier_service.answer import AnswerStream

INBOX_CAPACITY = 1024


@dataclass(frozen=True, slots=True)
class OpenAsked:
    """A client wants a session; the answer says what it asked for."""

    answer: AnswerStream


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """A session must end now. error: what its stream ends with, None when a normal end (cancelled) is reported."""

    answer: AnswerStream
    detail: str
    error: OutriderError | None = None


@quickly_made
@dataclass(frozen=True, slots=True)
class FramesArrived:
    """A message of a drafter's stream, in order; connection counts the streams to it, so that an old one's frames are told apart.

    arrived_us: when it came, on this process' clock; 0 counts as when it is handled. The engine thread may be busy for a whole step, which
    is no part of the way from drafter to verifier.
    """

    drafter: str
    connection: int
    frames: tuple[DrafterFrame | BadFrame, ...]
    arrived_us: int = 0


@dataclass(frozen=True, slots=True)
class PairUp:
    """A drafter's stream is up and the pair is compatible. lane: the way past it, where there is one; the engine thread owns it now.
    weights: hash of the model that is there now."""

    drafter: str
    connection: int
    lane: Lane | None = None
    weights: str = ""


@dataclass(frozen=True, slots=True)
class PairDown:
    """A drafter's stream ended; reason is a sentence."""

    drafter: str
    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class Nudge:
    """Something outside changed (a slow reader caught up): plan again."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """End every session and the thread."""


Control = OpenAsked | CancelAsked | PairUp | PairDown | Nudge | StopAsked
InboxItem = Control | FramesArrived


class Inbox:
    """Thread-safe. on_room is called by the emptying thread when a full inbox has room again."""

    def __init__(self, on_room: Callable[[], None], capacity: int = INBOX_CAPACITY) -> None:
        self._capacity = capacity
        self._on_room = on_room
        self._items: list[InboxItem] = []
        self._num_messages = 0
        self._was_full = False
        self._sleeps = False  # whether the emptying thread waits for a ring; a busy one looks by itself, and needs none
        self._lock = threading.RLock()  # whoever holds it puts several items as one
        self._doorbell = Doorbell()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, message: FramesArrived) -> bool:
        """Queue a message; False when there is no room: wait for on_room, then offer it again."""
        with self._lock:
            if self._num_messages >= self._capacity:
                self._was_full = True
                return False
            self._num_messages += 1
            self._put(message)
            return True

    def put(self, item: Control) -> None:
        """Queue an item behind what came before it."""
        with self._lock:
            self._put(item)

    def take(self, timeout_s: float | None, lanes: Collection[Lane] = ()) -> list[InboxItem]:
        """Everything queued, in order; sleeps until something is there or on a lane, at most timeout_s (None: without end).

        May wake with nothing; whoever has lanes looks there itself.
        """
        self.wait(timeout_s, lanes)
        with self._lock:
            items, self._items = self._items, []
            self._num_messages = 0
            had_been_full, self._was_full = self._was_full, False
        if had_been_full:
            self._on_room()
        return items

    def wait(self, timeout_s: float | None, lanes: Collection[Lane] = ()) -> None:
        """Sleep as `take` does, and take nothing."""
        if timeout_s != 0.0 and self._lies_down():
            self._doorbell.wait(timeout_s, lanes)
            self._sleeps = False

    def close_lanes(self) -> None:
        """Close what nobody will take any more; once thread and pairs have ended."""
        for item in self.take(0.0):
            if isinstance(item, PairUp) and item.lane is not None:
                item.lane.close()

    def _lies_down(self) -> bool:
        """Whether nothing is queued, so that whoever queues the next item is to ring."""
        with self._lock:
            self._sleeps = not self._items
            return self._sleeps

    def _put(self, item: InboxItem) -> None:
        self._items.append(item)
        if self._sleeps and len(self._items) == 1:
            self._doorbell.ring()
