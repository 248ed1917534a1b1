"""FleetService over real gRPC, with a state that answers as it is told.

pytest tests/integration/test_coordinator_service.py
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fakes_coordinator import ANNOUNCE_EVERY_S, WAIT_S, FakeFleet, Finished, coordinator_over, fake_replica
from outrider.coordinator.fleet import Fleet
from outrider.coordinator.server import serve_fleet, start_coordinator
from outrider.coordinator.servicer import SERVICE_NAME, FleetServicer
from outrider.coordinator.waking_clock import MAX_GAP_S, WakingClock
from outrider.errors import InvalidRequest, Overloaded, Superseded, Unavailable, UnknownSession
from outrider.rpc.channel import open_channel
from outrider.rpc.context import Context
from outrider.rpc.convert.fleet import replica_from_proto, replica_to_proto, wish_to_proto
from outrider.rpc.status import RETRY_AFTER_KEY, DeadlinePassed, error_from_rpc
from outrider.types.fleet import Placement, PlacementWish, Role
from outrider.v1 import fleet_pb2 as pb
from outrider.v1.fleet_pb2_grpc import FleetServiceStub

WISH = PlacementWish("r-1", tenant="a", prefix_len=7, max_tokens=5, exclude=frozenset({"10.0.0.1:1"}), prefix_digests=(b"x" * 16,))


@asynccontextmanager
async def stub_of(fleet: FakeFleet) -> AsyncIterator[Any]:
    async with coordinator_over(fleet) as address, open_channel(address) as channel:
        yield FleetServiceStub(channel)  # type: ignore[no-untyped-call]


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def metadata_of(failure: grpc.aio.AioRpcError) -> dict[str, str]:
    return dict(cast(Iterable[tuple[str, str]], failure.trailing_metadata()))


async def test_a_heartbeat_is_kept_and_answered_with_epoch_and_pause() -> None:
    fleet, replica = FakeFleet(epoch=9), fake_replica()
    async with stub_of(fleet) as stub:
        answer = await stub.Announce(pb.AnnounceRequest(replica=replica_to_proto(replica)))
        assert (answer.epoch, answer.announce_every_ms, answer.drain) == (9, round(ANNOUNCE_EVERY_S * 1000), False)
        topology = await stub.GetTopology(pb.GetTopologyRequest())
    assert fleet.announced == [replica]
    assert (topology.epoch, [replica_from_proto(one) for one in topology.replicas]) == (9, [replica])


@pytest.mark.parametrize(
    ("field", "change"),
    [("replica.endpoint", {"endpoint": "nowhere"}), ("replica.replica_id", {"replica_id": ""}), ("replica.role", {"role": 0})],
)
async def test_a_heartbeat_that_cannot_be_is_refused_by_its_field(field: str, change: dict[str, Any]) -> None:
    fleet = FakeFleet()
    message = replica_to_proto(fake_replica())
    for name, value in change.items():
        setattr(message, name, value)
    async with stub_of(fleet) as stub:
        failure = await refused(stub.Announce(pb.AnnounceRequest(replica=message)))
    error = error_from_rpc(failure)
    assert isinstance(error, InvalidRequest)
    assert error.field == field
    assert fleet.announced == []


async def test_an_older_incarnation_is_told_that_it_is_superseded() -> None:
    fleet = FakeFleet()
    async with stub_of(fleet) as stub:
        await stub.Announce(pb.AnnounceRequest(replica=replica_to_proto(fake_replica(incarnation=5))))
        failure = await refused(stub.Announce(pb.AnnounceRequest(replica=replica_to_proto(fake_replica(incarnation=4)))))
    assert failure.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert isinstance(error_from_rpc(failure), Superseded)


async def test_a_place_hands_the_wish_in_and_the_placement_out() -> None:
    fleet = FakeFleet(epoch=4, choose=lambda wish: Placement("h:1", ("h:2", "h:3"), ("h:4",), 123.5, "because"))
    async with stub_of(fleet) as stub:
        answer = await stub.Place(wish_to_proto(WISH))
    assert fleet.wishes == [WISH]
    assert (answer.verifier, list(answer.drafters), list(answer.alternatives)) == ("h:1", ["h:2", "h:3"], ["h:4"])
    assert (answer.placement_id, answer.token_us, answer.epoch, answer.drafts_off) == (1, 123.5, 4, False)


@pytest.mark.parametrize("drafts_off", [True, False])
async def test_a_placement_without_drafters_says_whether_drafts_are_off(drafts_off: bool) -> None:
    async with stub_of(FakeFleet(choose=lambda wish: Placement("h:1", (), (), 1.0, "", drafts_off))) as stub:
        answer = await stub.Place(wish_to_proto(WISH))
    assert (answer.drafts_off, list(answer.drafters)) == (drafts_off, [])


async def test_a_full_fleet_says_when_to_come_again_and_an_empty_one_does_not() -> None:
    fleet = FakeFleet(refuse=Overloaded("all are full"))
    async with stub_of(fleet) as stub:
        full = await refused(stub.Place(wish_to_proto(WISH)))
        fleet.refuse = Unavailable("no verifier fits")
        empty = await refused(stub.Place(wish_to_proto(WISH)))
    error = error_from_rpc(full)
    assert isinstance(error, Overloaded)
    assert (str(error), error.retry_after_s) == ("all are full", ANNOUNCE_EVERY_S)
    assert isinstance(error_from_rpc(empty), Unavailable)
    assert RETRY_AFTER_KEY not in metadata_of(empty)


async def test_a_finish_reaches_the_state_only_when_the_epoch_is_its_own() -> None:
    fleet = FakeFleet(epoch=4)
    async with stub_of(fleet) as stub:
        await stub.Finish(pb.FinishRequest(placement_id=1, num_tokens=8, token_us=2.5, failure="it died", epoch=4))
        await stub.Finish(pb.FinishRequest(placement_id=1, num_tokens=9, epoch=3))
        failure = await refused(stub.Finish(pb.FinishRequest(placement_id=1, token_us=float("nan"), epoch=4)))
    assert fleet.finished == [Finished(1, 8, 2.5, "it died")]
    assert "token_us" in str(failure.details())


async def test_a_gateway_that_gave_up_names_the_request_instead() -> None:
    fleet = FakeFleet(epoch=4)
    async with stub_of(fleet) as stub:
        await stub.Finish(pb.FinishRequest(request_id="word/r-1"))
        failure = await refused(stub.Finish(pb.FinishRequest(request_id="x" * 300)))
    assert (fleet.given_up, fleet.finished) == (["word/r-1"], [])
    assert "request_id" in str(failure.details())


async def test_a_coordinator_that_was_stopped_reads_the_heartbeats_that_wait_before_it_gives_anybody_up() -> None:
    now = [0.0]
    server = await start_coordinator(["127.0.0.1:0"], Fleet(1), lambda: now[0])
    try:
        async with open_channel(server.address) as channel:
            stub: Any = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
            await stub.Announce(pb.AnnounceRequest(replica=replica_to_proto(fake_replica())))
            now[0] += 3_600.0  # nothing ran meanwhile
            assert len((await stub.GetTopology(pb.GetTopologyRequest())).replicas) == 1
            async with asyncio.timeout(WAIT_S):
                while (await stub.GetTopology(pb.GetTopologyRequest())).replicas:  # silence while it runs is silence
                    now[0] += MAX_GAP_S / 2
    finally:
        await server.stop(grace_s=0.0)


async def test_a_drain_is_told_with_the_next_heartbeat() -> None:
    fleet = FakeFleet()
    drafter = fake_replica("drafter-0", "127.0.0.1:7072", Role.DRAFTER)
    async with stub_of(fleet) as stub:
        unknown = await refused(stub.Drain(pb.DrainRequest(replica_id="drafter-0")))
        await stub.Announce(pb.AnnounceRequest(replica=replica_to_proto(drafter)))
        await stub.Drain(pb.DrainRequest(replica_id="drafter-0"))
        assert (await stub.Announce(pb.AnnounceRequest(replica=replica_to_proto(drafter)))).drain
        nameless = await refused(stub.Drain(pb.DrainRequest()))
    assert isinstance(error_from_rpc(unknown), UnknownSession)
    assert isinstance(error_from_rpc(nameless), InvalidRequest)


async def test_a_coordinator_is_healthy_from_its_start_and_takes_calls() -> None:
    fleet = FakeFleet(epoch=6)
    server = await start_coordinator(["127.0.0.1:0"], fleet)
    try:
        async with open_channel(server.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", SERVICE_NAME):
                assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == health_pb2.HealthCheckResponse.SERVING
            stub: Any = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
            assert (await stub.GetTopology(pb.GetTopologyRequest())).epoch == 6
    finally:
        await server.stop(grace_s=0.0)


async def test_placements_and_replicas_are_counted() -> None:
    fleet = FakeFleet()
    clock = WakingClock(time.monotonic)
    servicer = FleetServicer(fleet, clock)
    server = await serve_fleet(["127.0.0.1:0"], servicer, clock)
    try:
        async with open_channel(server.address) as channel:
            stub: Any = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
            await stub.Announce(pb.AnnounceRequest(replica=replica_to_proto(fake_replica("drafter-0", "127.0.0.1:7072", Role.DRAFTER))))
            fleet.choose = lambda wish: Placement("127.0.0.1:7071", (), (), 1.0, "")
            await stub.Place(wish_to_proto(WISH))
            for error in (Overloaded("all are full"), Unavailable("no verifier fits")):
                fleet.refuse = error
                await refused(stub.Place(wish_to_proto(WISH)))
    finally:
        await server.stop(grace_s=0.0)
    servicer.refresh_metrics()
    assert {series.label_values: series.value for series in servicer.metrics.snapshot()} == {
        ("coordinator", "placed"): 1,
        ("coordinator", "full"): 1,
        ("coordinator", "nobody_fits"): 1,
        ("drafter",): 1,
        ("verifier",): 0,
    }


async def test_a_placement_nobody_waits_for_is_not_made() -> None:
    class PassedDeadline:
        def time_remaining(self) -> float:
            return -0.1

    fleet = FakeFleet()
    with pytest.raises(DeadlinePassed):
        await FleetServicer(fleet).Place(wish_to_proto(WISH), cast(Context, PassedDeadline()))
    assert fleet.wishes == []
