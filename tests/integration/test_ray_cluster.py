"""A local Ray cluster: the coordinator and two replicas as actors, each killed and each back. Replicas are cheap executables that
announce themselves as the real ones do.

Needs the extra `ray`, which `make test-all` installs; minutes rather than seconds on a busy machine:

    pytest -m slow tests/integration/test_ray_cluster.py
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from fakes_coordinator import state_of_a_fake
from outrider.coordinator.cluster import LOCAL_NODE_IP, Cluster, ClusterOptions
from outrider.coordinator.replica_actor import ReplicaSpec
from outrider.coordinator.replica_supervisor import SupervisionLimits
from outrider.launch.process import ServiceCommand
from outrider.rpc.channel import open_channel, wait_ready
from outrider.v1 import fleet_pb2 as pb
from outrider.v1.fleet_pb2_grpc import FleetServiceStub

pytestmark = pytest.mark.slow
START_S = 120.0
ANNOUNCING = str(Path(__file__).parents[1] / "announcing_process.py")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # it listens on loopback for the test's time only, and would write a token at home
    with Cluster(ClusterOptions(num_cpus=2.0)) as cluster:
        yield cluster


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOCAL_NODE_IP, 0))
        return int(listener.getsockname()[1])


def spec(coordinator: str, replica_id: str) -> ReplicaSpec:
    command = ServiceCommand(replica_id, (ANNOUNCING, "--coordinator", coordinator, "--replica-id", replica_id))
    return ReplicaSpec(command, num_cpus=0.5, limits=SupervisionLimits(min_backoff_s=0.05))


async def incarnations(coordinator: str, wanted: Any) -> dict[str, int]:
    """Of the replicas that the coordinator knows, once they are as wanted."""
    async with asyncio.timeout(START_S), open_channel(coordinator) as channel:
        while True:
            await wait_ready(channel, coordinator, START_S)
            stub: Any = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
            topology = await stub.GetTopology(pb.GetTopologyRequest(), wait_for_ready=True)
            found = {replica.replica_id: replica.incarnation for replica in topology.replicas}
            if wanted(found, topology.epoch):
                return found
            await asyncio.sleep(0.02)


async def test_a_killed_replica_and_a_killed_coordinator_come_back(cluster: Cluster) -> None:
    coordinator = await asyncio.to_thread(cluster.start_fleet, f"{LOCAL_NODE_IP}:{free_port()}", state_of_a_fake)
    replicas = [cluster.start_replica(spec(coordinator, replica_id)) for replica_id in ("one", "two")]
    for replica in replicas:
        assert await asyncio.to_thread(replica.wait_ready, START_S)
    before = await incarnations(coordinator, lambda found, epoch: set(found) == {"one", "two"})

    begin_s = time.monotonic()
    os.kill(replicas[0].report().pid, signal.SIGKILL)
    after = await incarnations(coordinator, lambda found, epoch: found["one"] > before["one"])
    print(f"a killed service is announced again after {time.monotonic() - begin_s:.2f} s")
    assert after["two"] == before["two"]
    assert replicas[0].report().exit_codes == (-signal.SIGKILL,)

    epoch, pid = cluster.ray.get([cluster.fleet.epoch.remote(), cluster.fleet.pid.remote()])
    begin_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    again = await incarnations(coordinator, lambda found, newer: newer > epoch and set(found) == {"one", "two"})
    print(f"a killed coordinator knows the fleet again after {time.monotonic() - begin_s:.2f} s")
    assert again == after, "nobody was restarted for it"

    pid = cluster.ray.get(replicas[1].actor.pid.remote())
    service = replicas[1].report().pid
    os.kill(pid, signal.SIGKILL)
    last = await incarnations(coordinator, lambda found, epoch: found["two"] > before["two"])
    assert last["one"] == after["one"]
    assert replicas[1].report().pid not in (0, service)
    assert not alive(service), "it died with its actor"


class LateToKnow:
    """Ray as a machine sees it that looks for the coordinator a moment before another starts one."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._num_asked = ray, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def get_actor(self, name: str, namespace: str) -> Any:
        self._num_asked += 1
        if self._num_asked == 1:
            raise ValueError(f"no actor {name}")
        return self._ray.get_actor(name, namespace=namespace)


def test_of_two_machines_that_begin_at_once_one_starts_the_coordinator_and_the_other_finds_it(cluster: Cluster) -> None:
    coordinator = cluster.start_fleet(f"{LOCAL_NODE_IP}:{free_port()}", state_of_a_fake)
    other = Cluster()
    other.ray = LateToKnow(cluster.ray)
    assert other.start_fleet(f"{LOCAL_NODE_IP}:{free_port()}", state_of_a_fake) == coordinator
    other.stop_actors()
    assert cluster.ray.get(cluster.fleet.address.remote(), timeout=START_S) == coordinator, "who found it does not end it"
    assert not cluster.is_left_without(cluster.node_id)
    assert cluster.is_left_without("another node")


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
