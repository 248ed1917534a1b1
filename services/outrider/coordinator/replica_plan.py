"""This machine's replicas as what Ray is asked for: their names, command lines, addresses, and what is set aside for each.

Knows the services' command lines and which names and ports were given out. Must not know Ray, nor which replicas run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outrider.coordinator.replica_actor import ReplicaSpec
from outrider.errors import InvalidRequest
from outrider.exposition.options import DEFAULT_HOST, MAX_PORT, NOWHERE, MetricsAddress
from outrider.launch.deployment import DeploymentSpec, drafter_options, verifier_options
from outrider.launch.process import ServiceCommand
from outrider.types.fleet import Role

DEFAULT_FLEET_PORT = 7069
PAIRED_DRAFTERS = 2
# From DeploymentSpec.metrics_port on: the gateway, the coordinator where it is started here, then replicas, each the lowest free one.
GATEWAY_METRICS, COORDINATOR_METRICS, FIRST_REPLICA_METRICS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class RayShare:
    """What this machine gives to the fleet. address: of a running cluster, empty: start one here. node_ip: of this machine in it, empty: as
    Ray finds it. num_verifiers, num_drafters: replicas on this node. *_cpus, *_gpus, *_resources (custom ones by name): what Ray sets aside
    for each. fleet_port: of the coordinator, when it is started here. scaling_listen: where the share is told to change its size, empty: a
    unix socket of its own."""

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
    scaling_listen: str = ""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where replicas are placed. coordinator: address they announce themselves to. node: Ray's id of this node; name: the part of it that
    replicas' names hold, so that machines of one fleet never share one. ip: of this node in the cluster."""

    coordinator: str
    node: str
    name: str
    ip: str


class ReplicaPlan:
    """Not for several threads at once. Names are given out once, for Ray may still hold the name of one that has just ended; ports of
    metrics again after `freed`. folder: of sockets and notes, on this machine."""

    def __init__(self, spec: DeploymentSpec, share: RayShare, folder: Path, place: NodePlace) -> None:
        self._spec = spec
        self._share = share
        self._folder = folder
        self._place = place
        self._numbers = {role: itertools.count() for role in Role}
        self._metrics: dict[str, int] = {}  # places by name

    def drafter(self) -> ReplicaSpec:
        """The next one. Raises InvalidRequest when the ports of metrics have run out."""
        assert self._spec.draft is not None, "there is a draft model"
        name = self._name(Role.DRAFTER, next(self._numbers[Role.DRAFTER]))
        options = (*self._replica_metrics(name), *drafter_options(self._spec, self._spec.draft))
        command = self._command(name, "drafter_service", options, self._spec.threads.drafter)
        share = self._share
        return self._replica(command, share.drafter_cpus, share.drafter_gpus, share.drafter_resources)

    def verifier(self, drafters: Sequence[str]) -> ReplicaSpec:
        """The next one, beside these drafters by name. Raises InvalidRequest when the ports of metrics have run out."""
        number = next(self._numbers[Role.VERIFIER])
        name = self._name(Role.VERIFIER, number)
        options = (*self._paired(drafters, number), *self._replica_metrics(name), *verifier_options(self._spec))
        command = self._command(name, "verifier_service", options, self._spec.threads.verifier)
        share = self._share
        return self._replica(command, share.verifier_cpus, share.verifier_gpus, share.verifier_resources)

    def freed(self, name: str) -> None:
        """This replica has ended, and its port of metrics is another's to have."""
        self._metrics.pop(name, None)

    def _name(self, role: Role, number: int) -> str:
        return f"{role.value}-{self._place.name}-{number}"

    def _paired(self, drafters: Sequence[str], number: int) -> tuple[str, ...]:
        """Drafters that a verifier knows without any coordinator, in turn: their pair is measured before the first request is placed, and
        drafts go on while no coordinator answers. Only where addresses are known beforehand."""
        if self._share.address or not drafters:
            return ()
        paired = dict.fromkeys(drafters[(number + place) % len(drafters)] for place in range(PAIRED_DRAFTERS))
        return tuple(option for name in paired for option in ("--drafter", self._socket(name)))

    def _command(self, name: str, module: str, options: tuple[str, ...], num_threads: int) -> ServiceCommand:
        # In a cluster of this machine alone frames go past TCP (rpc/lane.py).
        listen = f"{self._place.ip}:0" if self._share.address else self._socket(name)
        membership = ("--coordinator", self._place.coordinator, "--replica-id", name)
        return ServiceCommand(name, ("-m", module, "--listen", listen, *options, *membership), num_threads, (), self._spec.environment)

    def _replica(self, command: ServiceCommand, cpus: float, gpus: float, resources: Mapping[str, float]) -> ReplicaSpec:
        note = self._folder / f"{command.name}.address"
        return ReplicaSpec(command, num_cpus=cpus, num_gpus=gpus, resources=dict(resources), node=self._place.node, note=note)

    def _replica_metrics(self, name: str) -> tuple[str, ...]:
        taken = set(self._metrics.values())
        place = next(place for place in itertools.count(FIRST_REPLICA_METRICS) if place not in taken)
        options = metrics_options(metrics_address(self._spec, self._share, place, self._place.ip))
        self._metrics[name] = place  # only now, for a port that cannot be is nobody's
        return options

    def _socket(self, name: str) -> str:
        return f"unix:{self._folder / name}.sock"


def metrics_address(spec: DeploymentSpec, share: RayShare, place: int, node_ip: str) -> MetricsAddress:
    """Where the process of this place is scraped: where other machines of the fleet reach it, or on loopback where there are none. Raises
    InvalidRequest for a port that cannot be."""
    if spec.metrics_port is None:
        return NOWHERE
    port = spec.metrics_port + place
    if port > MAX_PORT:
        raise InvalidRequest("--metrics-port", f"is {spec.metrics_port}, and no port above it is left for another process")
    return MetricsAddress(node_ip if share.address else DEFAULT_HOST, port)


def metrics_options(address: MetricsAddress) -> tuple[str, ...]:
    """As a service takes them; nothing for nowhere."""
    return () if address.port is None else ("--metrics-port", str(address.port), "--metrics-host", address.host)
