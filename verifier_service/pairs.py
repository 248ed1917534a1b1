"""All pairs of this verifier: configured drafters from the start, others when a request names them, until newer ones need their place.

Runs on the event loop. Must not know streams (pair.py) or sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from outrider.errors import InvalidRequest
from outrider.rpc.address import check_address
from outrider.types.frames import VerifierFrame
from outrider.types.identity import ModelIdentity
from verifier_service.inbox import Inbox, PairDown
from verifier_service.pair import Pair, stop_task

MAX_PAIRS = 8  # that requests named; those that are configured have places of their own, MAX_CONFIGURED at most (settings.py)
MAX_PAST_PAIRS = 64  # whose distance is remembered, so that a coordinator need not have them tried again
# A drafter that gave way and is named again begins with another number: what is left of its old stream is nobody's.
CONNECTIONS_OF_A_PAIR = 1 << 20


class Pairs:
    """configured: endpoints that requests use when they name none. past_round_trips_us: as measured, of those that gave way."""

    def __init__(self, configured: Iterable[str], identity: ModelIdentity, verifier_id: str, inbox: Inbox) -> None:
        self.configured = frozenset(configured)
        self._identity = identity
        self._verifier_id = verifier_id
        self._inbox = inbox
        self._pairs: dict[str, Pair] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._num_added = 0
        self.past_round_trips_us: dict[str, int] = {}

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

        Where there are MAX_PAIRS of these already, the one that was named longest ago gives way; configured ones never do, nor do they
        count here: a coordinator that names a drafter does not know who is configured here, and its client has named none.
        Raises InvalidRequest for a malformed address or for more than MAX_PAIRS.
        """
        named = sorted(set(endpoints))
        for endpoint in named:
            check_address("drafters", endpoint)
        if len(set(named) - self.configured) > MAX_PAIRS:
            raise InvalidRequest(
                "drafters", f"names {len(named)} drafters, and this verifier keeps at most {MAX_PAIRS} that are not its own"
            )
        for endpoint in named:
            if endpoint in self._pairs:
                self._pairs[endpoint] = self._pairs.pop(endpoint)  # named last
                continue
            others = [other for other in self._pairs if other not in self.configured]
            if len(others) >= MAX_PAIRS:
                self._retire(next(other for other in others if other not in named))
            self._add(endpoint)

    def push(self, frames: dict[tuple[str, int], list[VerifierFrame]]) -> None:
        """Queue frames for drafters' streams."""
        for (endpoint, connection), batch in frames.items():
            if (pair := self._pairs.get(endpoint)) is not None:  # else it gave way meanwhile
                pair.push(connection, batch)

    def lose_lanes(self, lost: Iterable[PairDown]) -> None:
        """The engine thread has found these connections' lanes broken."""
        for down in lost:
            if (pair := self._pairs.get(down.drafter)) is not None:
                pair.lose_lane(down.connection, down.reason)

    def on_room(self) -> None:
        """The engine thread's inbox has room again."""
        for pair in self._pairs.values():
            pair.on_room()

    async def stop(self) -> None:
        """Close every stream."""
        for pair in self._pairs.values():
            pair.connect_no_more()
        await asyncio.gather(*(stop_task(task) for task in (*self._tasks.values(), *self._leaving)))

    def _retire(self, endpoint: str) -> None:
        """Sessions that use it hear that it is gone, which costs them drafts and never an answer."""
        pair = self._pairs.pop(endpoint)
        if round_trip_us := pair.clock.round_trip_ns // 1000:
            self.past_round_trips_us[endpoint] = round_trip_us
            if len(self.past_round_trips_us) > MAX_PAST_PAIRS:
                del self.past_round_trips_us[next(iter(self.past_round_trips_us))]
        pair.retire()
        task = self._tasks.pop(endpoint)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        task.cancel()

    def _add(self, endpoint: str) -> None:
        self.past_round_trips_us.pop(endpoint, None)
        self._num_added += 1
        pair = Pair(endpoint, self._identity, self._verifier_id, self._inbox, first_connection=self._num_added * CONNECTIONS_OF_A_PAIR)
        self._pairs[endpoint] = pair
        self._tasks[endpoint] = asyncio.create_task(pair.run(), name=f"pair {endpoint}")
