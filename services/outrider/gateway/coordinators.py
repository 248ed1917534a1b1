"""The coordinators of a gateway: one Place and one Finish a request, and the topology every few seconds.

Knows FleetService and epochs: of coordinators that answer, the one started last is asked. Must not know requests. None of this is needed to
serve: whatever a coordinator does not answer in time, the gateway decides by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc

from outrider.errors import OutriderError, Overloaded
from outrider.gateway.topology import Topology, merged
from outrider.rpc.channel import open_channel
from outrider.rpc.convert.fleet import replica_from_proto, wish_to_proto
from outrider.rpc.status import came_from_service, error_from_rpc
from outrider.types.fleet import PlacementWish
from outrider.v1 import fleet_pb2 as pb
from outrider.v1.fleet_pb2_grpc import FleetServiceStub

_LOG = logging.getLogger(__name__)
MAX_REPLICAS = 16_384
MAX_NAMED = 8  # in a sentence
_Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    """place_timeout_s: a placement that takes longer is not worth waiting for. finish_timeout_s, max_finishes: reports under way; more are
    dropped, and the placement's lease ends it. topology_timeout_s, refresh_s: of the topology. retry_s: while no verifier is known."""

    place_timeout_s: float = 0.05
    finish_timeout_s: float = 2.0
    max_finishes: int = 256
    topology_timeout_s: float = 2.0
    refresh_s: float = 2.0
    retry_s: float = 0.2


@dataclass(eq=False, slots=True)
class _Coordinator:
    """epoch: as it last said; None while it does not answer. What the log said last: told_epoch, that it answers with this one (None: that
    it does not); refusal, that it places nothing, with this code (None: it has placed since)."""

    address: str
    channel: grpc.aio.Channel
    stub: FleetServiceStub
    epoch: int | None = None
    told_epoch: int | None = None
    refusal: grpc.StatusCode | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A coordinator's answer and who gave it."""

    answer: pb.PlaceResponse
    coordinator: str


class Coordinators:
    """Construct inside a running event loop; `refresh` tells which of them answer. num_dropped: reports that were not sent."""

    def __init__(self, addresses: Sequence[str], limits: CoordinatorLimits | None = None) -> None:
        self._limits = limits or CoordinatorLimits()
        self._all = tuple(map(_coordinator, dict.fromkeys(addresses)))
        self._finishes: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._told = asyncio.Event()
        self._last: Topology | None = None  # that any of them told of
        self.num_dropped = 0

    async def refresh(self) -> Topology | None:
        """Ask every coordinator for the fleet; what they know together, None when none answers."""
        topologies = await asyncio.gather(*(self._topology(one) for one in self._all))
        return merged([topology for topology in topologies if topology is not None])

    def watch(self, on_topology: Callable[[Topology], Awaitable[None]], knows_nobody: Callable[[], bool]) -> None:
        """From now on, ask every refresh_s and hand on what is answered; every retry_s while the gateway knows no verifier."""
        self._watcher = asyncio.create_task(self._watch(on_topology, knows_nobody))

    async def told(self) -> None:
        """Return once `watch` has asked all of them, and has handed on what was answered."""
        await self._told.wait()

    def why_nobody(self, timeout_s: float) -> str:
        """Why no verifier is known after a start's time, as a sentence."""
        names = ", ".join(one.address for one in self._all)
        if self._last is None:
            return f"no coordinator answered ({names}) within {timeout_s:g} s"
        verifiers = self._last.verifiers
        if not verifiers:
            return f"no verifier announced itself to a coordinator ({names}) within {timeout_s:g} s"
        draining = ", ".join(f"{one.replica_id} at {one.endpoint}" for one in verifiers[:MAX_NAMED])
        more = f" and {len(verifiers) - MAX_NAMED} more" if len(verifiers) > MAX_NAMED else ""
        return f"the fleet has no verifier that is not draining ({draining}{more}; told by {names}) within {timeout_s:g} s"

    async def place(self, wish: PlacementWish, metadata: _Metadata = ()) -> Placed | None:
        """Where to; None when nobody says so in time, and the gateway places by itself. Raises Overloaded: the whole fleet is full."""
        leader = self._leader()
        if leader is None:
            return None
        try:
            answer: pb.PlaceResponse = await leader.stub.Place(wish_to_proto(wish), timeout=self._limits.place_timeout_s, metadata=metadata)
        except asyncio.CancelledError:
            self._report(leader, pb.FinishRequest(request_id=wish.request_id))
            raise
        except grpc.aio.AioRpcError as failure:
            if not came_from_service(failure):  # it may have been placed all the same
                self._report(leader, pb.FinishRequest(request_id=wish.request_id))
            error = error_from_rpc(failure)
            if isinstance(error, Overloaded):
                raise error from failure
            if failure.code() is not leader.refusal:  # else every request says the same
                _LOG.warning("coordinator %s placed nothing: %s", leader.address, error)
            leader.refusal = failure.code()
            if failure.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                leader.epoch = None  # until it answers again: requests must not wait for it one after the other
            return None
        leader.refusal = None
        return Placed(answer, leader.address)

    def finish(self, placed: Placed, num_tokens: int, token_us: float, failure: str) -> None:
        """Report to whoever placed it; does not wait, and whether it arrives changes nothing for the request."""
        answer = placed.answer
        request = pb.FinishRequest(
            placement_id=answer.placement_id, num_tokens=num_tokens, token_us=token_us, failure=failure, epoch=answer.epoch
        )
        placer = next(one for one in self._all if one.address == placed.coordinator)
        self._report(placer, request)

    def _report(self, one: _Coordinator, request: pb.FinishRequest) -> None:
        if len(self._finishes) >= self._limits.max_finishes:
            self.num_dropped += 1
            return
        task = asyncio.create_task(self._finish(one, request))
        self._finishes.add(task)
        task.add_done_callback(self._finishes.discard)

    async def close(self) -> None:
        """Let reports under way go out, and close."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await asyncio.gather(*self._finishes)  # each ends within finish_timeout_s
        await asyncio.gather(*(one.channel.close(None) for one in self._all))

    def _leader(self) -> _Coordinator | None:
        answering = [one for one in self._all if one.epoch is not None]
        return max(answering, key=lambda one: one.epoch or 0, default=None)

    async def _watch(self, on_topology: Callable[[Topology], Awaitable[None]], knows_nobody: Callable[[], bool]) -> None:
        try:
            while True:
                topology = await self.refresh()
                if topology is not None:
                    self._last = topology
                    await on_topology(topology)
                self._told.set()
                await asyncio.sleep(self._limits.retry_s if knows_nobody() else self._limits.refresh_s)
        except Exception:  # noqa: BLE001 -- the task's edge: until `close` nobody else would hear of it
            _LOG.exception("the fleet is followed no more")
        finally:
            self._told.set()  # nobody is to wait for who tells no more

    async def _topology(self, one: _Coordinator) -> Topology | None:
        try:
            response: pb.GetTopologyResponse = await one.stub.GetTopology(pb.GetTopologyRequest(), timeout=self._limits.topology_timeout_s)
            topology = Topology(response.epoch, tuple(map(replica_from_proto, response.replicas[:MAX_REPLICAS])))
        except grpc.aio.AioRpcError as failure:
            _note_loss(one, error_from_rpc(failure))
            return None
        except OutriderError as error:
            _note_loss(one, error)
            return None
        if one.told_epoch != topology.epoch:
            _LOG.info("coordinator %s answers, with epoch %d and %d replicas", one.address, topology.epoch, len(topology.replicas))
        one.epoch = one.told_epoch = topology.epoch
        return topology

    async def _finish(self, one: _Coordinator, request: pb.FinishRequest) -> None:
        try:
            await one.stub.Finish(request, timeout=self._limits.finish_timeout_s)
        except grpc.aio.AioRpcError as failure:
            _LOG.debug("coordinator %s did not hear of the end of placement %d: %s", one.address, request.placement_id, failure.details())


def _coordinator(address: str) -> _Coordinator:
    channel = open_channel(address)
    return _Coordinator(address, channel, FleetServiceStub(channel))  # type: ignore[no-untyped-call]


def _note_loss(one: _Coordinator, error: OutriderError) -> None:
    if one.told_epoch is not None:
        _LOG.warning("coordinator %s does not answer, the gateway places by itself: %s", one.address, error)
    one.epoch = one.told_epoch = None
