"""Where an engine thread sleeps until something comes for it: rung by other threads, or by bytes on one of its lanes.

Knows file descriptors and seconds. Must not know what the news is: whoever is woken looks for itself.
"""

from __future__ import annotations

import select
import socket
import weakref
from collections.abc import Collection
from contextlib import suppress

from outrider.rpc.lane import Lane

_RINGS_AT_ONCE = 4096


class Doorbell:
    """`ring` from any thread; `wait` from the one that sleeps. A ring that nobody waits for is kept, any number of them as one.

    select, not poll: its time-outs are in microseconds, and a planned step is not to begin a millisecond late.
    """

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair()
        self._inside.setblocking(False)
        self._outside.setblocking(False)
        weakref.finalize(self, _close, self._inside, self._outside)  # nobody knows when the last ring comes

    def ring(self) -> None:
        """Wake whoever waits, now or next time."""
        with suppress(BlockingIOError):  # so many rings wait already that one more says nothing new
            self._outside.send(b"\0")

    def wait(self, timeout_s: float | None, lanes: Collection[Lane] = ()) -> None:
        """Return when rung, when a lane has something to read or room for what waits on it, or after timeout_s (None: without end)."""
        full = [lane for lane in lanes if lane.backlog]
        waits: list[socket.socket | Lane] = [self._inside, *lanes]
        ready, _, _ = select.select(waits, full, (), timeout_s)
        if self._inside in ready:
            self.hush()

    def hush(self) -> None:
        """Forget the rings so far: whoever would have been woken has looked already."""
        with suppress(BlockingIOError):
            self._inside.recv(_RINGS_AT_ONCE)


def _close(*ends: socket.socket) -> None:
    for end in ends:
        end.close()
