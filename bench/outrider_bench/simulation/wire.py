"""The stream between a verifier and a drafter: messages of many frames, in order, each a fixed time on its way.

Knows when a message arrives. Must not know frames.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Frame = TypeVar("Frame")


class Wire(Generic[Frame]):
    """One direction."""

    def __init__(self, delay_us: int) -> None:
        self._delay_us = delay_us
        self._flying: deque[tuple[int, list[Frame]]] = deque()

    def send(self, frames: list[Frame], now_us: int) -> None:
        """One message; nothing is sent for no frames."""
        if frames:
            self._flying.append((now_us + self._delay_us, frames))

    def due_us(self) -> int | None:
        """When the next message arrives."""
        return self._flying[0][0] if self._flying else None

    def arrived(self, now_us: int) -> list[tuple[int, Frame]]:
        """The frames of all messages that are there, oldest first, each with the time its message came."""
        frames: list[tuple[int, Frame]] = []
        while self._flying and self._flying[0][0] <= now_us:
            came_us, message = self._flying.popleft()
            frames += [(came_us, frame) for frame in message]
        return frames
