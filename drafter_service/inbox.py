"""What the network hands to the drafting thread: one bounded queue, filled by the event loop, emptied whole by the thread.

Knows how to block the thread without waking it in vain, and how to hold the event loop back when the thread falls behind. Must not know
what the items mean to sessions. Frames are bounded by `capacity` messages; control items are few (three per stream, two per shutdown) and
always get in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from outrider.rpc.convert.link import BadFrame
from outrider.rpc.doorbell import Doorbell
from outrider.rpc.lane import Lane
from outrider.types.frames import VerifierFrame
from outrider.types.value import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True)
class FramesArrived:
    """One message of a stream, in order."""

    stream: int
    frames: tuple[VerifierFrame | BadFrame, ...]


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """Nothing more comes of this stream; its sessions are to be freed."""

    stream: int


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Close every session and take no more."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """End the thread."""


@dataclass(frozen=True, slots=True)
class LaneOpened:
    """A stream's frames go over this lane from now on; the thread owns it."""

    stream: int
    lane: Lane


InboxItem = FramesArrived | LaneOpened | StreamEnded | DrainAsked | StopAsked


class Inbox:
    """Thread-safe. on_room is called by the emptying thread after a full inbox got room again."""

    def __init__(self, capacity: int, on_room: Callable[[], None]) -> None:
        self._capacity = capacity
        self._on_room = on_room
        self._items: list[InboxItem] = []
        self._num_messages = 0
        self._was_full = False
        self._sleeps = False  # whether the emptying thread waits for a ring; a busy one looks by itself, and needs none
        self._lock = threading.Lock()
        self._doorbell = Doorbell()

    @property
    def num_messages(self) -> int:
        """Messages waiting."""
        return self._num_messages

    @property
    def is_empty(self) -> bool:
        """Nothing waits, control items included."""
        return not self._items

    def offer(self, message: FramesArrived) -> bool:
        """Queue a message; False when there is no room: wait for on_room and offer it again."""
        with self._lock:
            if self._num_messages >= self._capacity:
                self._was_full = True
                return False
            self._num_messages += 1
            self._put(message)
            return True

    def control(self, item: LaneOpened | StreamEnded | DrainAsked | StopAsked) -> None:
        """Queue a control item behind what came before it."""
        with self._lock:
            self._put(item)

    def take(self, *, wait: bool, lanes: Collection[Lane] = ()) -> list[InboxItem]:
        """Everything queued, in order; with wait, sleeps until something is there or on a lane.

        May wake with nothing; whoever has lanes looks there itself.
        """
        if wait and self._lies_down():
            self._doorbell.wait(None, lanes)
        with self._lock:
            self._sleeps = False
            items, self._items = self._items, []
            self._num_messages = 0
            had_been_full, self._was_full = self._was_full, False
        if had_been_full:
            self._on_room()
        return items

    def close_lanes(self) -> None:
        """Close what nobody will take any more; once the thread has ended."""
        for item in self.take(wait=False):
            if isinstance(item, LaneOpened):
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
