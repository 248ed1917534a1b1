"""The requests this gateway holds right now: admission, unique ids, abort, and waiting for the last one at a drain.

Knows counts and ids. Must not know text or verifiers. An admitted request leaves the table when its block ends, however it ends.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from outrider.errors import AlreadyExists, Cancelled, OutriderError, Overloaded, UnknownSession
from outrider.gateway.interruption import Interruption
from outrider.gateway.limits import GatewayLimits
from outrider.rpc.turnover import Turnover

_MINTED_ID_BYTES = 12


class LiveRequests:
    """Bounded by GatewayLimits.max_live_requests and max_live_samples. on_change: told how many are live whenever that changes."""

    def __init__(self, limits: GatewayLimits, on_change: Callable[[int], None] = lambda num_live: None) -> None:
        self._limits = limits
        self._on_change = on_change
        self._interruptions: dict[str, Interruption] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self.num_samples = 0
        self._turnover = Turnover()

    def __len__(self) -> int:
        return len(self._interruptions)

    @asynccontextmanager
    async def admit(self, request_id: str, num_samples: int) -> AsyncIterator[str]:
        """Hold a place for the block's time and yield the id (minted when empty).

        Raises AlreadyExists or Overloaded before the block; inside it, Cancelled after `abort` and whatever `end_all` was given.
        """
        if request_id in self._interruptions:
            raise AlreadyExists(f"request_id: {request_id!r} is live already; abort it or choose another id")
        if len(self._interruptions) >= self._limits.max_live_requests:
            held = f"{len(self._interruptions)} requests are live, at most {self._limits.max_live_requests}; retry later"
            raise Overloaded(held, self._turnover.retry_after_s(len(self)))
        if self.num_samples + num_samples > self._limits.max_live_samples:
            held = f"{self.num_samples} samples are live and n is {num_samples}, at most {self._limits.max_live_samples} in all"
            raise Overloaded(held, self._turnover.retry_after_s(len(self)))
        request_id = request_id or f"req-{secrets.token_hex(_MINTED_ID_BYTES)}"
        async with Interruption() as interruption:
            self._interruptions[request_id] = interruption
            begun_s = time.monotonic()
            self.num_samples += num_samples
            self._empty.clear()
            self._on_change(len(self._interruptions))
            try:
                yield request_id
            finally:
                self._turnover.observe(time.monotonic() - begun_s)
                self.num_samples -= num_samples
                del self._interruptions[request_id]
                if not self._interruptions:
                    self._empty.set()
                self._on_change(len(self._interruptions))

    def abort(self, request_id: str) -> None:
        """End a live request with CANCELLED; raises UnknownSession when none has this id."""
        interruption = self._interruptions.get(request_id)
        if interruption is None:
            raise UnknownSession(f"request_id: no live request has the id {request_id!r}")
        interruption.interrupt(Cancelled(f"request {request_id!r} was aborted"))

    def end_all(self, error: OutriderError) -> None:
        """End every live request with this error."""
        for interruption in tuple(self._interruptions.values()):
            interruption.interrupt(error)

    async def wait_empty(self) -> None:
        """Return once no request is live."""
        await self._empty.wait()
