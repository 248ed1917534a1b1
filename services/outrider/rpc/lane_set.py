"""The lanes of one engine thread: what waits for each goes out when there is room, what comes in is handed on by whose it is.

Knows which lane is whose and what became of it. Must not know frames: messages are bytes, made when there is room for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from outrider.errors import OutriderError
from outrider.rpc.lane import Lane

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Port:
    """next_message: of what waits, None when nothing does; made no sooner than it can be sent, so that what waits still merges."""

    lane: Lane
    next_message: Callable[[], bytes | None]


class LaneSet(Generic[Key]):
    """One thread's. A lane that broke is closed at once and waits in `take_lost` to be told of."""

    def __init__(self) -> None:
        self._ports: dict[Key, _Port] = {}
        self._lost: list[tuple[Key, OutriderError]] = []

    def __contains__(self, key: Key) -> bool:
        return key in self._ports

    @property
    def is_silent(self) -> bool:
        """No lane is there, and none was lost that nobody has heard of: nothing can come."""
        return not self._ports and not self._lost

    @property
    def lanes(self) -> Collection[Lane]:
        """For the doorbell."""
        return [port.lane for port in self._ports.values()]

    def add(self, key: Key, lane: Lane, next_message: Callable[[], bytes | None]) -> None:
        """From now on this lane is the key's; one it had before is closed."""
        self.drop(key)
        self._ports[key] = _Port(lane, next_message)

    def drop(self, key: Key) -> None:
        """Close the key's lane, if it has one."""
        port = self._ports.pop(key, None)
        if port is not None:
            port.lane.close()

    def drop_all(self) -> None:
        """Close every lane."""
        for key in list(self._ports):
            self.drop(key)

    def send(self, key: Key) -> None:
        """Send what waits for this key, as far as there is room."""
        port = self._ports[key]
        try:
            if port.lane.backlog:
                port.lane.flush()
            while not port.lane.backlog and (message := port.next_message()) is not None:
                port.lane.send(message)
        except OutriderError as error:
            self.lose(key, error)

    def send_backlogs(self) -> None:
        """Send what a full socket has kept waiting."""
        if not self._ports:
            return
        for key in [key for key, port in self._ports.items() if port.lane.backlog]:
            self.send(key)

    def receive(self) -> list[tuple[Key, bytes]]:
        """The messages that have come, in order for each key."""
        received: list[tuple[Key, bytes]] = []
        if not self._ports:
            return received
        for key, port in list(self._ports.items()):
            try:
                received += [(key, message) for message in port.lane.receive()]
            except OutriderError as error:
                self.lose(key, error)
        return received

    def lose(self, key: Key, error: OutriderError) -> None:
        """Give a lane up, for a reason: the first one counts."""
        if key in self._ports:
            self.drop(key)
            self._lost.append((key, error))

    @property
    def has_lost(self) -> bool:
        """Whether `take_lost` has something to tell."""
        return bool(self._lost)

    def take_lost(self) -> list[tuple[Key, OutriderError]]:
        """Lanes that broke since the last call."""
        lost, self._lost = self._lost, []
        return lost
