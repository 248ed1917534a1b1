"""What the event loop hands to the engine thread: one bounded queue, emptied whole between two steps.

Knows how to block the thread until something comes or a time has passed, and how to hold a reader back when the thread falls behind. Must
not know what the items do. Batches of drafter frames are bounded by `capacity`; the other items are bounded by what they stand for (one
open and one cancel per admitted stream, one up and one down per connection) and always get in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from outrider.errors import OutriderError
from outrider.rpc.convert.link import BadFrame
from outrider.types.frames import DrafterFrame
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
    """A drafter's stream is up and the pair is compatible."""

    drafter: str
    connection: int


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
        self._arrived = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, message: FramesArrived) -> bool:
        """Queue a message; False when there is no room: wait for on_room, then offer it again."""
        with self._arrived:
            if self._num_messages >= self._capacity:
                self._was_full = True
                return False
            self._num_messages += 1
            self._items.append(message)
            self._arrived.notify()
            return True

    def put(self, item: Control) -> None:
        """Queue an item behind what came before it."""
        with self._arrived:
            self._items.append(item)
            self._arrived.notify()

    def take(self, timeout_s: float | None) -> list[InboxItem]:
        """Everything queued, in order; blocks until something is there, at most timeout_s (None: without end)."""
        with self._arrived:
            if not self._items and timeout_s != 0.0:
                self._arrived.wait_for(lambda: bool(self._items), timeout_s)
            items, self._items = self._items, []
            self._num_messages = 0
            had_been_full, self._was_full = self._was_full, False
        if had_been_full:
            self._on_room()
        return items
