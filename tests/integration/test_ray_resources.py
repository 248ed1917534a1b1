"""What replicas ask of Ray's nodes: a replica runs only where its demand is met, and its service sees the GPUs that Ray assigned.

The GPUs are Ray's word only: it takes what `--num-gpus` says. Needs the extra `ray`, which `make test-all` installs:

    pytest -m slow tests/integration/test_ray_resources.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.coordinator import cluster as cluster_module
from outrider.coordinator.cluster import Cluster, ClusterOptions
from outrider.coordinator.replica_actor import ReplicaSpec
from outrider.launch.process import ServiceCommand, StartFailed
from ray_nodes import HEAD_IP, NODE_NAME, SECOND_IP, ray_head, ray_node

pytestmark = pytest.mark.slow
START_S = 120.0
# Its address says which GPUs it may use and which node it is on.
TELLS = f"""
import json, os, signal
told = os.environ.get("CUDA_VISIBLE_DEVICES", "any") + "@" + os.environ["{NODE_NAME}"]
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print(json.dumps({{"ready": True, "address": told}}), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head without GPUs, and a node with two of them and one of what is called fast."""
    folder = tmp_path_factory.mktemp("nodes")
    before = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["RAY_AUTH_MODE"] = "disabled"  # on loopback for the tests' time only
    try:
        with (
            ray_head(folder / "head.log") as address,
            ray_node(folder / "node.log", address, 2, {"fast": 1.0}),
            Cluster(ClusterOptions(address, HEAD_IP)) as cluster,
        ):
            yield cluster
    finally:
        os.environ.pop("RAY_AUTH_MODE", None)
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


@pytest.fixture(autouse=True)
def _nobody_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.stop_actors()


def replica(name: str, gpus: float = 0.0, node: str = "", **resources: float) -> ReplicaSpec:
    return ReplicaSpec(ServiceCommand(name, ("-c", TELLS)), num_gpus=gpus, resources=resources, node=node)


def told(cluster: Cluster, *specs: ReplicaSpec) -> list[str]:
    """What each service says of its GPUs and its node; all run side by side."""
    cluster.check_demands(specs)
    return [handle.wait_ready(START_S) for handle in map(cluster.start_replica, specs)]


def test_each_runs_where_its_demand_is_met_and_sees_its_own_gpu(cluster: Cluster) -> None:
    found = told(cluster, replica("one", gpus=1.0), replica("other", gpus=1.0), replica("quick", fast=1.0))
    assert sorted(found[:2]) == [f"0@{SECOND_IP}", f"1@{SECOND_IP}"]
    assert found[2] == f"any@{SECOND_IP}", "without GPUs of its own none are hidden from it"


def test_two_replicas_may_share_a_gpu(cluster: Cluster) -> None:
    one, other, whole = told(cluster, replica("one", gpus=0.5), replica("other", gpus=0.5), replica("whole", gpus=1.0))
    assert one == other
    assert {one, whole} == {f"0@{SECOND_IP}", f"1@{SECOND_IP}"}


def test_what_no_node_has_is_said_at_once(cluster: Cluster) -> None:
    with pytest.raises(StartFailed, match=r"greedy asks for 3 GPU on one node, and none has so much: they have"):
        told(cluster, replica("greedy", gpus=3.0))
    with pytest.raises(StartFailed, match=r"1 GPU \(here\); it has 0 GPU in all"):
        told(cluster, replica("here", gpus=1.0, node=cluster.node_id))


def test_what_is_not_free_is_said_instead_of_being_waited_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(told(cluster, replica("first", gpus=2.0))) == 1
    monkeypatch.setattr(cluster_module, "ACTOR_TIMEOUT_S", 2.0)
    with pytest.raises(StartFailed, match=r"second asks for 1 GPU, 1 fast, .*: free in the cluster are 0 GPU, 1 fast"):
        told(cluster, replica("second", gpus=1.0, fast=1.0))


TOKEN = "a token of this test's cluster alone"
JOIN = """
import sys
from outrider.coordinator.cluster import Cluster, ClusterOptions
with Cluster(ClusterOptions(sys.argv[1], sys.argv[2])) as cluster:
    print("coordinator at", cluster.start_fleet(sys.argv[2] + ":0"))
"""


def joined(address: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, as the token is read once in each."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    own = {"HOME": str(home), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment}
    return subprocess.run(
        [sys.executable, "-c", JOIN, address, HEAD_IP], env={**kept, **own}, capture_output=True, text=True, timeout=START_S
    )


def test_a_cluster_that_demands_a_token_is_joined_with_it_and_says_so_without(tmp_path: Path) -> None:
    guarded = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "HOME": str(tmp_path)}
    with ray_head(tmp_path / "head.log", 0, None, **guarded) as address:
        without, wrong = joined(address, tmp_path), joined(address, tmp_path, RAY_AUTH_TOKEN="another's")
        right = joined(address, tmp_path, RAY_AUTH_TOKEN=TOKEN)
    assert f"the Ray cluster at {address} demands a token, and there is none here" in without.stderr
    assert "does not take the token of RAY_AUTH_TOKEN" in wrong.stderr
    assert right.returncode == 0, right.stderr
    assert f"coordinator at {HEAD_IP}:" in right.stdout
