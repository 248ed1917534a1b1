"""All pairs of this verifier: configured drafters from the start, others when a request names them.

Runs on the event loop. Must not know streams (pair.py) or sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from outrider.errors import InvalidRequest
from outrider.rpc.channel import check_address
from outrider.types.frames import VerifierFrame
from outrider.types.identity import ModelIdentity
from verifier_service.inbox import Inbox, PairDown
from verifier_service.pair import Pair, stop_task

MAX_PAIRS = 8


class Pairs:
    """configured: endpoints that requests use when they name none."""

    def __init__(self, configured: Iterable[str], identity: ModelIdentity, verifier_id: str, inbox: Inbox) -> None:
        self.configured = frozenset(configured)
        self._identity = identity
        self._verifier_id = verifier_id
        self._inbox = inbox
        self._pairs: dict[str, Pair] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin to connect to every configured drafter."""
        for endpoint in sorted(self.configured):
            self._add(endpoint)

    async def wait_decided(self, timeout_s: float) -> None:
        """Return when every pair has either come up or been found incompatible, or after timeout_s."""
        waits = [asyncio.ensure_future(pair.wait_decided()) for pair in self._pairs.values()]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=timeout_s)
            for wait in pending:
                wait.cancel()

    def all(self) -> list[Pair]:
        """Every pair, by endpoint."""
        return [self._pairs[endpoint] for endpoint in sorted(self._pairs)]

    def connect(self, endpoints: Iterable[str]) -> None:
        """Keep a stream to drafters that a request names, from now on.

        Raises InvalidRequest for a malformed address or more pairs than MAX_PAIRS.
        """
        for endpoint in sorted(set(endpoints) - self._pairs.keys()):
            check_address("drafters", endpoint)
            self._add(endpoint)

    def push(self, frames: dict[tuple[str, int], list[VerifierFrame]]) -> None:
        """Queue frames for drafters' streams."""
        for (endpoint, connection), batch in frames.items():
            self._pairs[endpoint].push(connection, batch)

    def lose_lanes(self, lost: Iterable[PairDown]) -> None:
        """The engine thread has found these connections' lanes broken."""
        for down in lost:
            self._pairs[down.drafter].lose_lane(down.connection, down.reason)

    def on_room(self) -> None:
        """The engine thread's inbox has room again."""
        for pair in self._pairs.values():
            pair.on_room()

    async def stop(self) -> None:
        """Close every stream."""
        for pair in self._pairs.values():
            pair.connect_no_more()
        await asyncio.gather(*(stop_task(task) for task in self._tasks.values()))

    def _add(self, endpoint: str) -> None:
        if len(self._pairs) >= MAX_PAIRS:
            raise InvalidRequest("drafters", f"this verifier keeps at most {MAX_PAIRS} drafters")
        pair = self._pairs[endpoint] = Pair(endpoint, self._identity, self._verifier_id, self._inbox)
        self._tasks[endpoint] = asyncio.create_task(pair.run(), name=f"pair {endpoint}")
