"""A fleet whose answers a test sets, coordinators that serve it over real gRPC, and replicas as values.

Knows FleetService's questions. Places as it is told; the real placement has tests of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fakes_verifier import fake_identity
from outrider.coordinator.servicer import SERVICE_NAME, FleetServicer
from outrider.coordinator.state import FleetState
from outrider.errors import OutriderError, Superseded, Unavailable, UnknownSession
from outrider.rpc.context import Context
from outrider.rpc.server import RpcServer
from outrider.types.fleet import Placement, PlacementWish, Replica, Role
from outrider.types.identity import ModelIdentity
from outrider.v1 import fleet_pb2 as pb
from outrider.v1.fleet_pb2_grpc import add_FleetServiceServicer_to_server

WAIT_S = 30.0
ANNOUNCE_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Finished:
    """One Finish."""

    placement_id: int
    num_tokens: int
    token_us: float
    failure: str


@dataclass
class FakeFleet:
    """refuse: raised by place. choose: what place answers; None: the first verifier, no drafters. is_slow: placements are answered when
    `release` is set, and counted (num_asked) before. draining: replicas told to drain. num_calls: over the wire, by method."""

    epoch: int = 1
    announce_every_s: float = ANNOUNCE_EVERY_S
    known: dict[str, Replica] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    announced: list[Replica] = field(default_factory=list)
    wishes: list[PlacementWish] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    num_topologies: int = 0
    refuse: OutriderError | None = None
    is_slow: bool = False
    num_asked: int = 0
    choose: Callable[[PlacementWish], Placement] | None = None
    num_calls: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._changed = asyncio.Condition()
        self.release = asyncio.Event()
        self._tellers: set[asyncio.Task[None]] = set()

    def announce(self, replica: Replica, now_s: float) -> bool:
        known = self.known.get(replica.replica_id)
        if known is not None and known.incarnation > replica.incarnation:
            raise Superseded(f"{replica.replica_id} has been started anew")
        self.known[replica.replica_id] = replica
        self.announced.append(replica)
        self._tell()
        return replica.replica_id in self.draining

    def place(self, wish: PlacementWish, now_s: float) -> tuple[int, Placement]:
        self.wishes.append(wish)
        self._tell()
        if self.refuse is not None:
            raise self.refuse
        if self.choose is not None:
            return len(self.wishes), self.choose(wish)
        verifiers = [replica.endpoint for replica in self.known.values() if replica.role is Role.VERIFIER]
        if not verifiers:
            raise Unavailable("no verifier fits")
        return len(self.wishes), Placement(verifiers[0], (), tuple(verifiers[1:]), 0.0, "the first")

    def finish(self, placement_id: int, num_tokens: int, token_us: float, failure: str, now_s: float) -> None:
        self.finished.append(Finished(placement_id, num_tokens, token_us, failure))
        self._tell()

    def give_up(self, request_id: str, now_s: float) -> None:
        self.given_up.append(request_id)
        self._tell()

    def drain(self, replica_id: str) -> None:
        if replica_id not in self.known:
            raise UnknownSession(f"replica_id: {replica_id!r} is unknown")
        self.draining.add(replica_id)

    def replicas(self, now_s: float) -> list[Replica]:
        self.num_topologies += 1
        self._tell()
        return list(self.known.values())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is looked at after every call. TimeoutError after WAIT_S."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(condition)

    def _tell(self) -> None:
        teller = asyncio.ensure_future(self._notify())
        self._tellers.add(teller)
        teller.add_done_callback(self._tellers.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def fake_replica(
    replica_id: str = "verifier-0",
    endpoint: str = "127.0.0.1:7071",
    role: Role = Role.VERIFIER,
    incarnation: int = 1,
    identity: ModelIdentity | None = None,
) -> Replica:
    """A replica that passes every check."""
    return Replica(replica_id, incarnation, role, endpoint, identity or fake_identity(), max_sessions=8)


def state_of_a_fake(epoch: int) -> FleetState:
    """An empty fake fleet, for coordinators in other processes."""
    return FakeFleet(epoch=epoch)


class CountedServicer(FleetServicer):
    """The real one; every call of every method is counted (FakeFleet.num_calls)."""

    def __init__(self, fleet: FakeFleet) -> None:
        super().__init__(fleet)
        self._fleet = fleet

    async def Announce(self, request: pb.AnnounceRequest, context: Context) -> pb.AnnounceResponse:
        self._fleet.num_calls["Announce"] += 1
        return await super().Announce(request, context)

    async def Place(self, request: pb.PlaceRequest, context: Context) -> pb.PlaceResponse:
        self._fleet.num_calls["Place"] += 1
        return await super().Place(request, context)

    async def Finish(self, request: pb.FinishRequest, context: Context) -> pb.FinishResponse:
        self._fleet.num_calls["Finish"] += 1
        return await super().Finish(request, context)

    async def GetTopology(self, request: pb.GetTopologyRequest, context: Context) -> pb.GetTopologyResponse:
        self._fleet.num_calls["GetTopology"] += 1
        return await super().GetTopology(request, context)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        self._fleet.num_calls["Drain"] += 1
        return await super().Drain(request, context)


class HeldServicer(CountedServicer):
    """But for placements that a test holds."""

    async def Place(self, request: pb.PlaceRequest, context: Context) -> pb.PlaceResponse:
        self._fleet.num_asked += 1
        if self._fleet.is_slow:
            await self._fleet.release.wait()
        return await super().Place(request, context)


@asynccontextmanager
async def coordinator_over(fleet: FakeFleet, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serve a fleet for the block's time; yields the address."""
    server = RpcServer([address])
    server.add(SERVICE_NAME, add_FleetServiceServicer_to_server, HeldServicer(fleet))
    await server.start()
    try:
        yield server.address
    finally:
        fleet.release.set()
        await server.stop(grace_s=0.0)
