"""A deployment whose replicas Ray keeps running: this machine's share of a fleet, its coordinator if there is none yet, and a gateway.

Knows the services' command lines and who is started on which node. Must not know Ray itself (cluster.py) or terminals.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from outrider.coordinator.cluster import Cluster, ClusterOptions, ReplicaHandle
from outrider.coordinator.replica_actor import ReplicaSpec
from outrider.exposition.options import DEFAULT_HOST, NOWHERE, MetricsAddress
from outrider.launch.deployment import START_DEADLINE_S, DeploymentSpec, drafter_options, verifier_options
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.launch.threads import usable_cores

DEFAULT_FLEET_PORT = 7069
GATEWAY_DRAIN_S = 15.0
PAIRED_DRAFTERS = 2
# From DeploymentSpec.metrics_port on: the gateway, the coordinator where it is started here, drafters, verifiers.
COORDINATOR_METRICS, FIRST_REPLICA_METRICS = 1, 2
_NODE_NAME_LEN = 8


@dataclass(frozen=True, slots=True)
class RayShare:
    """What this machine gives to the fleet. address: of a running cluster, empty: start one here. node_ip: of this machine in it, empty: as
    Ray finds it. num_verifiers, num_drafters: replicas on this node. *_cpus, *_gpus, *_resources (custom ones by name): what Ray sets aside
    for each. fleet_port: of the coordinator, when it is started here."""

    address: str = ""
    node_ip: str = ""
    num_verifiers: int = 1
    num_drafters: int = 1
    verifier_cpus: float = 0.0
    verifier_gpus: float = 0.0
    drafter_cpus: float = 0.0
    drafter_gpus: float = 0.0
    verifier_resources: Mapping[str, float] = field(default_factory=dict)
    drafter_resources: Mapping[str, float] = field(default_factory=dict)
    fleet_port: int = DEFAULT_FLEET_PORT


class RayDeployment:
    """Running once constructed; use as a context manager, from a thread that lives as long as it should. Raises StartFailed and RayMissing;
    nothing of ours is left running then."""

    def __init__(self, spec: DeploymentSpec, share: RayShare, deadline_s: float = START_DEADLINE_S) -> None:
        self.spec = spec
        self.share = share
        self.folder = Path(tempfile.mkdtemp(prefix="outrider-ray-"))
        self.replicas: list[ReplicaHandle] = []
        self.addresses: dict[str, str] = {}
        self.metrics: dict[str, str] = {}  # where each process is scraped, by its name
        self.gateway_process: ServiceProcess | None = None
        self.gateway = self.coordinator = ""
        self._cluster = Cluster(ClusterOptions(share.address, share.node_ip, self._claimed_cpus()))
        started = time.monotonic()
        self._cluster.__enter__()
        try:
            self._start(started + deadline_s)
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - started

    def stop(self) -> None:
        """Drain the gateway first, then what it needs; logs are kept. Safe to call again."""
        if self.gateway_process is not None:
            self.gateway_process.stop(GATEWAY_DRAIN_S)
            self.gateway_process = None
        cluster, self._cluster = self._cluster, Cluster()
        if cluster.ray is not None:
            cluster.__exit__(None, None, None)

    def __enter__(self) -> RayDeployment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def commands(self, coordinator: str, node: str, node_ip: str) -> list[ServiceCommand]:
        """The replicas' executables. Their names hold the node's, so that machines of one fleet never share one."""
        spec, share = self.spec, self.share
        drafters = [f"drafter-{node}-{number}" for number in range(share.num_drafters if spec.draft is not None else 0)]
        commands = []
        ports = iter(range(FIRST_REPLICA_METRICS, FIRST_REPLICA_METRICS + len(drafters) + share.num_verifiers))
        for name in drafters:
            options = (*self._metrics_options(next(ports), node_ip), *drafter_options(spec, spec.draft or ""))
            commands.append(self._command(name, "drafter_service", options, coordinator, node_ip, spec.threads.drafter))
        for number in range(share.num_verifiers):
            options = (*self._paired(drafters, number), *self._metrics_options(next(ports), node_ip), *verifier_options(spec))
            name = f"verifier-{node}-{number}"
            commands.append(self._command(name, "verifier_service", options, coordinator, node_ip, spec.threads.verifier))
        return commands

    def _paired(self, drafters: Sequence[str], number: int) -> tuple[str, ...]:
        """Drafters that a verifier knows without any coordinator, in turn: their pair is measured before the first request is placed, and
        drafts go on while no coordinator answers. Only where addresses are known beforehand."""
        if self.share.address or not drafters:
            return ()
        paired = dict.fromkeys(drafters[(number + place) % len(drafters)] for place in range(PAIRED_DRAFTERS))
        return tuple(option for name in paired for option in ("--drafter", self._socket(name)))

    def _start(self, deadline_s: float) -> None:
        cluster = self._cluster
        metrics = self._metrics_address(COORDINATOR_METRICS, cluster.node_ip)
        self.coordinator = cluster.start_fleet(f"{cluster.node_ip}:{self.share.fleet_port}", metrics=metrics)
        commands = self.commands(self.coordinator, cluster.node_id[:_NODE_NAME_LEN], cluster.node_ip)
        specs = [self._replica(command, cluster.node_id) for command in commands]
        cluster.check_demands(specs)
        self.replicas += map(cluster.start_replica, specs)
        gateway: tuple[str, ...] = (
            "-m",
            "outrider.gateway",
            "--coordinator",
            self.coordinator,
            "--listen",
            self.spec.listen or self._socket("gateway"),
        )
        gateway += ("--verifier-timeout-s", str(START_DEADLINE_S))
        if Path(self.spec.target).is_dir():
            gateway += ("--model-dir", self.spec.target)
        gateway += (*self._metrics_options(0, cluster.node_ip), *self.spec.gateway_extra)
        command = ServiceCommand("gateway", gateway, 1, (), self.spec.environment)
        self.gateway_process = ServiceProcess(command, self.folder / "gateway.log")
        for replica in self.replicas:
            self.addresses[replica.replica_id] = replica.wait_ready(max(0.0, deadline_s - time.monotonic()))
        ready = self.gateway_process.wait_ready(deadline_s)
        self.gateway = str(ready["address"])
        if self.spec.metrics_port is not None:
            told = {"coordinator": cluster.fleet_metrics(), "gateway": str(ready.get("metrics", ""))}
            self.metrics = {**told, **{replica.replica_id: replica.report().metrics for replica in self.replicas}}

    def _command(
        self, name: str, module: str, options: tuple[str, ...], coordinator: str, node_ip: str, num_threads: int
    ) -> ServiceCommand:
        # In a cluster of this machine alone frames go past TCP (rpc/lane.py).
        listen = f"{node_ip}:0" if self.share.address else self._socket(name)
        membership = ("--coordinator", coordinator, "--replica-id", name)
        return ServiceCommand(name, ("-m", module, "--listen", listen, *options, *membership), num_threads, (), self.spec.environment)

    def _replica(self, command: ServiceCommand, node: str) -> ReplicaSpec:
        is_drafter = command.name.startswith("drafter-")
        cpus = self.share.drafter_cpus if is_drafter else self.share.verifier_cpus
        gpus = self.share.drafter_gpus if is_drafter else self.share.verifier_gpus
        resources = self.share.drafter_resources if is_drafter else self.share.verifier_resources
        return ReplicaSpec(command, num_cpus=cpus, num_gpus=gpus, resources=dict(resources), node=node)

    def _claimed_cpus(self) -> float:
        """What a cluster started here says it has: the cores there are, or more where its replicas are to be given more."""
        claimed = self.share.num_verifiers * self.share.verifier_cpus + self.share.num_drafters * self.share.drafter_cpus
        return max(claimed, float(len(usable_cores())))

    def _metrics_address(self, place: int, node_ip: str) -> MetricsAddress:
        """Where the process of this place is scraped: where other machines of the fleet reach it, or on loopback where there are none."""
        if self.spec.metrics_port is None:
            return NOWHERE
        return MetricsAddress(node_ip if self.share.address else DEFAULT_HOST, self.spec.metrics_port + place)

    def _metrics_options(self, place: int, node_ip: str) -> tuple[str, ...]:
        address = self._metrics_address(place, node_ip)
        return () if address.port is None else ("--metrics-port", str(address.port), "--metrics-host", address.host)

    def _socket(self, name: str) -> str:
        return f"unix:{self.folder / name}.sock"
