"""FleetService over grpc.aio: converts, asks the state, converts back.

Knows the wire and the clock. Must not decide anything: what a heartbeat means and where a request goes is the state's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from outrider.coordinator.state import FleetState
from outrider.errors import InvalidRequest, Overloaded, Unavailable
from outrider.rpc.address import check_address
from outrider.rpc.context import Context, remaining_s
from outrider.rpc.convert.bounds import bounded, finite, name, sentence
from outrider.rpc.convert.fleet import MAX_US, replica_from_proto, replica_to_proto, wish_from_proto
from outrider.rpc.status import DeadlinePassed
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label
from outrider.types.fleet import Role
from outrider.v1 import fleet_pb2 as pb
from outrider.v1.fleet_pb2_grpc import FleetServiceServicer

SERVICE_NAME = "outrider.v1.FleetService"


class FleetServicer(FleetServiceServicer):
    """One state, one event loop: calls never overlap inside it. clock_s: monotonic, seconds. metrics: placements, for who exports them."""

    def __init__(self, state: FleetState, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.metrics = LocalMetrics()
        self._state = state
        self._clock_s = clock_s

    def refresh_metrics(self) -> None:
        """Set what `metrics` holds of the present moment; on the event loop, which owns the state."""
        replicas = self._state.replicas(self._clock_s())
        for role in Role:
            num_live = sum(replica.role is role for replica in replicas)
            self.metrics.set(names.LIVE_REPLICAS, {Label.ROLE: role.value}, num_live)

    def _count(self, outcome: str) -> None:
        self.metrics.add(names.NUM_PLACEMENTS, {Label.SERVICE: "coordinator", Label.OUTCOME: outcome})

    async def Announce(self, request: pb.AnnounceRequest, context: Context) -> pb.AnnounceResponse:
        """See fleet.proto."""
        replica = replica_from_proto(request.replica)
        check_address("replica.endpoint", replica.endpoint)
        drain = self._state.announce(replica, self._clock_s())
        pause_ms = max(1, round(self._state.announce_every_s * 1000))
        return pb.AnnounceResponse(epoch=self._state.epoch, announce_every_ms=pause_ms, drain=drain)

    async def Place(self, request: pb.PlaceRequest, context: Context) -> pb.PlaceResponse:
        """See fleet.proto."""
        wish = wish_from_proto(request)
        if remaining_s(context) == 0.0:
            raise DeadlinePassed("nobody waits for this placement any more, so none is made")
        try:
            placement_id, placement = self._state.place(wish, self._clock_s())
        except Unavailable:
            self._count("nobody_fits")
            raise
        except Overloaded as error:
            self._count("full")
            # Nothing is known better before the next heartbeats have come in.
            error.retry_after_s = error.retry_after_s or self._state.announce_every_s
            raise
        self._count("placed")
        return pb.PlaceResponse(
            placement_id=placement_id,
            verifier=placement.verifier,
            drafters=placement.drafters,
            drafts_off=placement.drafts_off,
            token_us=placement.token_us,
            alternatives=placement.alternatives,
            epoch=self._state.epoch,
        )

    async def Finish(self, request: pb.FinishRequest, context: Context) -> pb.FinishResponse:
        """See fleet.proto. Placements of another epoch were made by another coordinator, whose ids may be ours too."""
        num_tokens = bounded("num_tokens", request.num_tokens, 0)
        token_us = finite("token_us", request.token_us, 0.0, MAX_US)
        if request.request_id:
            self._state.give_up(name("request_id", request.request_id), self._clock_s())
        elif request.epoch == self._state.epoch:
            self._state.finish(request.placement_id, num_tokens, token_us, sentence(request.failure), self._clock_s())
        return pb.FinishResponse()

    async def GetTopology(self, request: pb.GetTopologyRequest, context: Context) -> pb.GetTopologyResponse:
        """See fleet.proto."""
        replicas = self._state.replicas(self._clock_s())
        return pb.GetTopologyResponse(epoch=self._state.epoch, replicas=map(replica_to_proto, replicas))

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        """See fleet.proto."""
        if not request.replica_id:
            raise InvalidRequest("replica_id", "is empty")
        self._state.drain(request.replica_id)
        return pb.DrainResponse()
