"""`outrider fleet`: what an operator reads of a fleet, and the order to drain, over real gRPC.

pytest tests/unit/test_cli_fleet.py
"""

from __future__ import annotations

import argparse
import asyncio
import io
from dataclasses import replace

import pytest
from rich.console import Console

from fakes_coordinator import FakeFleet, coordinator_over, fake_replica
from outrider.cli import fleet
from outrider.errors import InvalidRequest, Unavailable, UnknownSession
from outrider.rpc.convert.fleet import replica_to_proto
from outrider.types.fleet import PairMeasurement, Replica, Role
from outrider.v1 import fleet_pb2 as pb

PAIRS = {"h:2": PairMeasurement(150, 0.75, True), "h:3": PairMeasurement(150, None, True), "h:4": PairMeasurement(90, 0.9, False)}
LOADED = replace(fake_replica("v[red]", "h:1"), num_sessions=3, kv_blocks_used=5, kv_blocks_total=20)
VERIFIER = replace(LOADED, cost=((1, 850.0), (8, 900.0)), pairs=PAIRS)
DRAFTER = replace(fake_replica("d0", "h:2", Role.DRAFTER), draft_us=120.0, draining=True)


def given(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    fleet.add_parser(parser.add_subparsers())
    return parser.parse_args(["fleet", *arguments])


def shown(*replicas: Replica) -> str:
    told = io.StringIO()
    Console(width=300, file=told).print(fleet.replica_table(pb.GetTopologyResponse(epoch=7, replicas=map(replica_to_proto, replicas))))
    return told.getvalue()


def test_a_person_reads_who_is_there_and_how_loaded() -> None:
    told = shown(VERIFIER, DRAFTER)
    assert "verifiers: 1, drafters: 1; coordinator epoch 7" in told
    lines = {line.split("│")[1].strip(): line for line in told.splitlines() if line.startswith("│")}
    verifier, drafter = lines["v[red]"], lines["d0 (drains)"]
    for part in ("verifier", "h:1", "3 of 8", "25%", "0.85 ms a step of 1", "h:2 75%"):
        assert part in verifier, part
    assert "h:3" in told, "connected, and not judged yet"
    assert "h:4" not in told, "not connected"
    for part in ("drafter", "h:2", "0 of 8", "0.12 ms a guess"):
        assert part in drafter, part
    assert "verifiers: 0, drafters: 0" in shown()


async def test_an_order_to_drain_goes_to_the_one_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    known = FakeFleet()
    known.announce(VERIFIER, 0.0)
    known.announce(replace(VERIFIER, replica_id="v1", endpoint="h:9"), 0.0)
    async with coordinator_over(known) as address:
        assert await asyncio.to_thread(fleet.run, given("--coordinator", address)) == 0
        assert known.draining == set()
        assert await asyncio.to_thread(fleet.run, given("--coordinator", address, "--drain", "v1")) == 0
        assert known.draining == {"v1"}
        with pytest.raises(UnknownSession, match="nobody"):
            await asyncio.to_thread(fleet.run, given("--coordinator", address, "--drain", "nobody"))
    assert "v1" in capsys.readouterr().out
    with pytest.raises(Unavailable):
        await asyncio.to_thread(fleet.run, given("--coordinator", address))
    with pytest.raises(InvalidRequest) as caught:
        fleet.run(given("--coordinator", "nowhere"))
    assert caught.value.field == "--coordinator"
