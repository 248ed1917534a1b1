"""A real coordinator process that is stopped for longer than a lease and goes on: it still knows its fleet.

pytest -m slow tests/integration/test_coordinator_stopped.py
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fakes_coordinator import WAIT_S, fake_replica
from outrider.coordinator.fleet import FleetLimits
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.rpc.channel import open_channel
from outrider.rpc.convert.fleet import replica_to_proto
from outrider.v1 import fleet_pb2 as pb
from outrider.v1.fleet_pb2_grpc import FleetServiceStub

pytestmark = pytest.mark.slow
STOP_S = FleetLimits().lease_s + 1.0


async def test_leases_stand_still_while_the_process_does(tmp_path: Path) -> None:
    process = ServiceProcess(
        ServiceCommand("coordinator", ("-m", "outrider.coordinator", "--listen", "127.0.0.1:0")), tmp_path / "coordinator.log"
    )
    try:
        ready = await asyncio.to_thread(process.wait_ready, time.monotonic() + WAIT_S)
        async with open_channel(str(ready["address"])) as channel:
            stub: Any = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
            await stub.Announce(pb.AnnounceRequest(replica=replica_to_proto(fake_replica())), wait_for_ready=True, timeout=WAIT_S)
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(STOP_S)  # the time itself is what is tested
            process.signal(signal.SIGCONT)
            topology = await stub.GetTopology(pb.GetTopologyRequest(), timeout=WAIT_S)
            assert [replica.replica_id for replica in topology.replicas] == ["verifier-0"]
            async with asyncio.timeout(WAIT_S):  # and a silent one is given up while it runs
                while topology.replicas:
                    topology = await stub.GetTopology(pb.GetTopologyRequest(), timeout=WAIT_S)
    finally:
        process.stop(WAIT_S)
