"""The coordinator's actor as the plain class it is, without Ray: it serves by itself, and is scraped.

pytest tests/integration/test_fleet_actor.py
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import urllib.request
from collections.abc import AsyncIterator

import pytest

from fakes_coordinator import WAIT_S, fake_replica, state_of_a_fake
from outrider.coordinator import fleet_actor
from outrider.coordinator.fleet_actor import FleetActor
from outrider.errors import InvalidRequest
from outrider.exposition.options import NOWHERE, MetricsAddress
from outrider.rpc.channel import open_channel
from outrider.rpc.convert.fleet import replica_to_proto
from outrider.v1 import fleet_pb2 as pb
from outrider.v1.fleet_pb2_grpc import FleetServiceStub

ANYWHERE = "127.0.0.1:0"


@contextlib.asynccontextmanager
async def serving(metrics: MetricsAddress = NOWHERE) -> AsyncIterator[tuple[FleetActor, str]]:
    """The actor, and where it serves."""
    actor = FleetActor(ANYWHERE, state_of_a_fake, metrics)
    try:
        async with asyncio.timeout(WAIT_S):
            yield actor, await actor.address()
    finally:
        await actor.stop()


async def announce(address: str) -> None:
    async with open_channel(address) as channel:
        stub = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
        replica = replica_to_proto(fake_replica("verifier-0", "127.0.0.1:7071"))
        await stub.Announce(pb.AnnounceRequest(replica=replica), timeout=WAIT_S)


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return str(answer.read().decode())


async def test_it_is_scraped_while_it_serves() -> None:
    async with serving(MetricsAddress(port=0)) as (actor, address):
        await announce(address)
        text = await asyncio.to_thread(scraped, await actor.metrics_url())
    assert 'outrider_live_replicas{role="verifier"} 1.0' in text


async def test_it_is_scraped_nowhere_unless_it_is_told_where() -> None:
    async with serving() as (actor, _):
        assert await actor.metrics_url() == ""


async def test_it_serves_though_its_port_for_metrics_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_actor, "MAX_BIND_ATTEMPTS", 2)
    monkeypatch.setattr(fleet_actor, "BIND_PAUSE_S", 0.001)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with serving(MetricsAddress(port=taken.getsockname()[1])) as (actor, address):
            with pytest.raises(InvalidRequest, match="--metrics-port"):
                await actor.metrics_url()
            await announce(address)
