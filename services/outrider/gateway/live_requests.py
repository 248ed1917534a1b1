"""The requests this gateway holds right now: admission, unique ids, abort, taking over, and waiting for the last one at a drain.

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
# What an ended request holds is freed without waiting for its client or its verifier; who still holds it after this is stuck.
TAKE_OVER_TIMEOUT_S = 5.0


class _Held:
    """One live request. left: set when it is out of the table, with everything it held."""

    def __init__(self, interruption: Interruption) -> None:
        self.interruption = interruption
        self.left = asyncio.Event()


class LiveRequests:
    """Bounded by GatewayLimits.max_live_requests and max_live_samples. on_change: told how many are live whenever that changes."""

    def __init__(self, limits: GatewayLimits, on_change: Callable[[int], None] = lambda num_live: None) -> None:
        self._limits = limits
        self._on_change = on_change
        self._held: dict[str, _Held] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self.num_samples = 0
        self._turnover = Turnover()

    def __len__(self) -> int:
        return len(self._held)

    @asynccontextmanager
    async def admit(self, request_id: str, num_samples: int, *, takes_over: bool = False) -> AsyncIterator[str]:
        """Hold a place for the block's time and yield the id (minted when empty). takes_over: a live request of this id is ended first,
        and what it held is free before the block begins.

        Raises AlreadyExists or Overloaded before the block; inside it, Cancelled after `abort` or for who takes over, and whatever
        `end_all` was given.
        """
        if takes_over and request_id in self._held:
            await self._end_former(request_id)
        if request_id in self._held:
            raise AlreadyExists(f"request_id: {request_id!r} is live already; abort it, take it over, or choose another id")
        self._check_room(num_samples)
        request_id = request_id or f"req-{secrets.token_hex(_MINTED_ID_BYTES)}"
        async with Interruption() as interruption:
            held = self._held[request_id] = _Held(interruption)
            begun_s = time.monotonic()
            self.num_samples += num_samples
            self._empty.clear()
            self._on_change(len(self._held))
            try:
                yield request_id
            finally:
                self._turnover.observe(time.monotonic() - begun_s)
                self.num_samples -= num_samples
                del self._held[request_id]
                held.left.set()
                if not self._held:
                    self._empty.set()
                self._on_change(len(self._held))

    def abort(self, request_id: str) -> None:
        """End a live request with CANCELLED; raises UnknownSession when none has this id."""
        held = self._held.get(request_id)
        if held is None:
            raise UnknownSession(f"request_id: no live request has the id {request_id!r}")
        held.interruption.interrupt(Cancelled(f"request {request_id!r} was aborted"))

    def end_all(self, error: OutriderError) -> None:
        """End every live request with this error."""
        for held in tuple(self._held.values()):
            held.interruption.interrupt(error)

    async def wait_empty(self) -> None:
        """Return once no request is live."""
        await self._empty.wait()

    async def _end_former(self, request_id: str) -> None:
        """Until none of this id is live. Of several that take over at once each ends the one before it, and the last goes on."""
        former = Cancelled(f"request {request_id!r} was taken over by a call that goes on with it")
        try:
            async with asyncio.timeout(TAKE_OVER_TIMEOUT_S):
                while (held := self._held.get(request_id)) is not None:
                    held.interruption.interrupt(former)
                    await held.left.wait()
        except TimeoutError:
            problem = f"request_id: the live request {request_id!r} was ended, but has not let go within {TAKE_OVER_TIMEOUT_S:g} s"
            raise AlreadyExists(problem) from None

    def _check_room(self, num_samples: int) -> None:
        if len(self._held) >= self._limits.max_live_requests:
            held = f"{len(self._held)} requests are live, at most {self._limits.max_live_requests}; retry later"
            raise Overloaded(held, self._turnover.retry_after_s(len(self)))
        if self.num_samples + num_samples > self._limits.max_live_samples:
            held = f"{self.num_samples} samples are live and n is {num_samples}, at most {self._limits.max_live_samples} in all"
            raise Overloaded(held, self._turnover.retry_after_s(len(self)))
