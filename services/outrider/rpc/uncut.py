"""A coroutine that goes on where it stopped when whoever waits for it is cancelled, without a task of its own.

`asyncio.shield` does this with a task, an outer future and some forty calls each time, and the event loop has four turns for it; every
message of a client's stream goes this way. Here the caller drives the coroutine, and waits beside the futures that it waits for, not for
them: so a cancellation ends the waiting alone. Knows asyncio's futures only. Must not know what the coroutine does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Uncut:
    """Use: `await Uncut(coroutine).rest()`; after a cancellation once more, for what is left of it, or `close`.

    For coroutines that wait for plain futures, or for the loop's next turn, and whose waiting nobody else cuts short (no asyncio.timeout).
    """

    def __init__(self, coroutine: Coroutine[Any, Any, object]) -> None:
        self._coroutine = coroutine
        self._waited: asyncio.Future[Any] | None = None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the coroutine has ended."""
        return self._is_over

    async def rest(self) -> None:
        """Return when the coroutine has; raises what it raises. Nothing is left of one that has ended, however."""
        while not self._is_over:
            if self._waited is not None:
                await _done(self._waited)
            self._is_over = True  # unless it stops once more
            try:
                self._waited = self._coroutine.send(None)
            except StopIteration:
                return
            self._is_over = False
            if self._waited is None:
                await asyncio.sleep(0)

    def close(self) -> None:
        """Give up what is left, and with it how whatever it waited for ends; safe to repeat."""
        self._coroutine.close()
        if self._waited is not None:
            self._waited.add_done_callback(_heard)


def _heard(waited: asyncio.Future[Any]) -> None:
    """Of a failure that nobody asked for the loop complains; but nobody is left who could: a write to a client that has gone fails."""
    if not waited.cancelled():
        waited.exception()


async def _done(waited: asyncio.Future[Any]) -> None:
    """Until a future is done, which this does not cancel."""
    beside: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not beside.done():
            beside.set_result(None)

    waited.add_done_callback(wake)
    await beside
