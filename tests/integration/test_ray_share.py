"""What `outrider up --ray` keeps running on one machine, with cheap executables in place of the services: a killed gateway and killed
replicas come back where they were, and their number is changed while the fleet runs.

Needs the extra `ray`, which `make test-all` installs:

    pytest -m slow tests/integration/test_ray_share.py
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from outrider.cli import scale
from outrider.coordinator.cluster import LOCAL_NODE_IP
from outrider.coordinator.ray_deployment import RayDeployment
from outrider.coordinator.replica_plan import RayShare
from outrider.errors import InvalidRequest
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.process import ServiceCommand, StartFailed
from outrider.launch.threads import ThreadPlan
from outrider.v1 import fleet_pb2
from outrider.v1 import scaling_pb2 as pb
from outrider.v1.fleet_pb2_grpc import FleetServiceStub
from ray_nodes import HEAD_IP, ray_head

pytestmark = pytest.mark.slow
WAIT_S, POLL_S = 120.0, 0.05
SERVICE = "import sys\nfrom announcing_process import main\nsys.exit(main())\n"
GATEWAY = """
import json, signal, socket, sys
host, _, port = sys.argv[sys.argv.index("--listen") + 1].rpartition(":")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
listener = socket.create_server((host, int(port)))
print(json.dumps({"ready": True, "address": f"{host}:{listener.getsockname()[1]}"}), flush=True)
while True: signal.pause()
"""


# Another machine's `outrider up`, as far as the coordinator goes: it starts one and lives.
OWNER = """
import signal, sys
from outrider.coordinator.cluster import Cluster, ClusterOptions
with Cluster(ClusterOptions(sys.argv[1], sys.argv[2])) as cluster:
    print(cluster.start_fleet(sys.argv[2] + ":" + sys.argv[3]), flush=True)
    signal.pause()
"""


class CheapDeployment(RayDeployment):
    """Its gateway only listens."""

    def _gateway_command(self) -> ServiceCommand:
        return replace(super()._gateway_command(), arguments=("-c", GATEWAY, "--listen", "127.0.0.1:0"))


def cheap(folder: Path) -> DeploymentSpec:
    """Services that do nothing but announce themselves, in place of the real ones on the path."""
    for service in ("verifier_service", "drafter_service"):
        (folder / service).mkdir()
        (folder / service / "__init__.py").touch()
        (folder / service / "__main__.py").write_text(SERVICE)
    # The working folder comes before the path, and may be the repository, unless Python is told to leave it out.
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]), "PYTHONSAFEPATH": "1"}
    return DeploymentSpec("target", "draft", "serial", ThreadPlan(1, 1), environment=environment)


@contextlib.contextmanager
def deployed(folder: Path, address: str = "") -> Iterator[RayDeployment]:
    with socket.create_server((LOCAL_NODE_IP, 0)) as listener:
        fleet_port = int(listener.getsockname()[1])
    share = RayShare(address=address, node_ip=HEAD_IP if address else "", fleet_port=fleet_port)
    before = os.environ.get("RAY_AUTH_MODE")
    os.environ["RAY_AUTH_MODE"] = "disabled"  # on loopback for the test's time only
    try:
        with CheapDeployment(cheap(folder), share, WAIT_S) as deployment:
            yield deployment
    finally:
        os.environ.pop("RAY_AUTH_MODE")
        if before is not None:
            os.environ["RAY_AUTH_MODE"] = before


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what}: not within {WAIT_S:g} s"
        time.sleep(POLL_S)


def announced(deployment: RayDeployment) -> set[str]:
    """In placement, as the coordinator has it."""
    with grpc.insecure_channel(deployment.coordinator) as channel:
        stub: Any = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
        replicas = stub.GetTopology(fleet_pb2.GetTopologyRequest(), timeout=WAIT_S, wait_for_ready=True).replicas
    return {replica.replica_id for replica in replicas if not replica.draining}


def drain(deployment: RayDeployment, replica_id: str) -> None:
    with grpc.insecure_channel(deployment.coordinator) as channel:
        stub: Any = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
        stub.Drain(fleet_pb2.DrainRequest(replica_id=replica_id), timeout=WAIT_S)


def test_a_gateway_comes_back_and_replicas_are_added_drained_and_replaced(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        drafter, verifier = (replica.replica_id for replica in deployment.replicas)
        until(lambda: announced(deployment) == {drafter, verifier}, "both")
        gateway = deployment.gateway_report
        os.kill(gateway.pid, signal.SIGKILL)
        until(lambda: deployment.gateway_report.pid not in (0, gateway.pid), "another gateway")
        assert deployment.gateway_report.address == deployment.gateway == gateway.address
        assert announced(deployment) == {drafter, verifier}, "nobody else was touched"

        grown = {one.replica_id for one in scale.ask(deployment.scaling, pb.ScaleRequest(num_verifiers=2)).replicas}
        (added,) = grown - {drafter, verifier}
        until(lambda: announced(deployment) == grown, "the added one")
        handle = deployment.replicas[-1]
        pid = handle.report().pid
        scale.ask(deployment.scaling, pb.ScaleRequest(num_verifiers=1))
        until(lambda: announced(deployment) == {drafter, verifier}, "it has left the placement")
        assert not Path(f"/proc/{pid}").exists()

        drain(deployment, verifier)
        until(lambda: deployment.replicas[1].report().has_ended, "its end")
        assert deployment.replicas[1].report().exit_codes == (0,), "it drained, and is not started again by itself"
        again = {one.replica_id for one in scale.ask(deployment.scaling, pb.ScaleRequest(num_verifiers=1)).replicas}
        assert again.isdisjoint({verifier, added})
        until(lambda: announced(deployment) == {drafter, *(again - {drafter})}, "another in its place")
        with pytest.raises(InvalidRequest, match="num_verifiers"):
            scale.ask(deployment.scaling, pb.ScaleRequest(num_verifiers=0))
        with pytest.raises(StartFailed, match="another `outrider up` running on this node"):
            deployment._cluster.start_replica(deployment.replicas[0].spec)


def test_in_a_joined_cluster_a_replica_has_its_port_over_its_own_and_its_actors_death(tmp_path: Path) -> None:
    with ray_head(tmp_path / "head.log") as address, deployed(tmp_path, address) as deployment:
        replica = deployment.replicas[-1]
        first = deployment.addresses[replica.replica_id]
        assert first.startswith(f"{HEAD_IP}:")
        os.kill(replica.report().pid, signal.SIGKILL)
        assert replica.wait_ready(WAIT_S, num_starts=2) == first
        actor = deployment._cluster.ray.get(replica.actor.pid.remote())
        os.kill(actor, signal.SIGKILL)
        until(lambda: bool(deployment._cluster.ray.get(replica.actor.pid.remote()) != actor), "another actor")
        assert replica.wait_ready(WAIT_S) == first


@contextlib.contextmanager
def owner(head: str, fleet_port: int) -> Iterator[subprocess.Popen[str]]:
    """Serves once it is yielded."""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [sys.executable, "-c", OWNER, head, HEAD_IP, str(fleet_port)]
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == f"{HEAD_IP}:{fleet_port}"
            yield process
        finally:
            process.kill()


def test_a_coordinator_that_went_with_its_owner_knows_the_others_again_when_it_is_started_where_it_was(tmp_path: Path) -> None:
    with socket.create_server((HEAD_IP, 0)) as listener:
        port = int(listener.getsockname()[1])
    with contextlib.ExitStack() as stack:
        head = stack.enter_context(ray_head(tmp_path / "head.log"))
        first = stack.enter_context(owner(head, port))
        deployment = stack.enter_context(deployed(tmp_path, head))
        assert deployment.coordinator == f"{HEAD_IP}:{port}", "it found the first one's"
        both = set(deployment.addresses)
        until(lambda: announced(deployment) == both, "both")
        reports = [replica.report() for replica in deployment.replicas]
        first.kill()
        until(lambda: not answers(deployment.coordinator), "the coordinator's end")
        stack.enter_context(owner(head, port))
        until(lambda: announced(deployment) == both, "both again")
        assert [replica.report() for replica in deployment.replicas] == reports, "nobody was restarted for it"


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(ConnectionError), socket.create_connection((host, int(port)), WAIT_S):
        return True
    return False
