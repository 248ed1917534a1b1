"""Ray, started or joined, and the actors on it: the only module that talks to Ray.

Knows Ray's traps (docs/architecture.md section 2b). Ray is imported when a cluster is entered, not before. Must not know what services do:
commands are handed in. A cluster that was started here ends with its block; one that was joined is left as it was, without our actors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from outrider.coordinator.cluster_door import prepare_to_join
from outrider.coordinator.demands import demand_of, problem_with, told
from outrider.coordinator.fleet_actor import ACTOR_NAME, FleetActor
from outrider.coordinator.free_port import await_free
from outrider.coordinator.replica_actor import ReplicaActor, ReplicaSpec
from outrider.coordinator.replica_supervisor import SupervisionReport
from outrider.coordinator.state import FleetState, new_fleet
from outrider.errors import OutriderError
from outrider.exposition.options import NOWHERE, MetricsAddress
from outrider.launch.grace import drain_deadline_s
from outrider.launch.process import StartFailed

NAMESPACE = "outrider"
# Ray takes no less; nothing of ours goes through its object store.
OBJECT_STORE_BYTES = 78_643_200
# Not 127.0.0.1, which Ray replaces by the machine's outward address.
LOCAL_NODE_IP = "127.0.0.2"
ACTOR_TIMEOUT_S = 60.0
STOP_MARGIN_S = 15.0  # of an actor, beyond what its service may take to drain


class RayMissing(OutriderError):
    """Ray is not installed here."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """address: of a running cluster (host:port of its head); empty: start one on this machine, for the block's time. node_ip: of this
    machine in a running cluster, where Ray would guess another. num_cpus: that the started one says it has; 0: as many as there are."""

    address: str = ""
    node_ip: str = ""
    num_cpus: float = 0.0


class ReplicaHandle:
    """One replica's actor. Calls raise StartFailed when the actor does not answer in time."""

    def __init__(self, ray: Any, spec: ReplicaSpec, actor: Any) -> None:
        self.ray = ray
        self.replica_id = spec.command.name
        self.actor = actor
        self.spec = spec

    def wait_ready(self, timeout_s: float, num_starts: int = 1) -> str:
        """The service's address. Raises StartFailed, also when what it asks for does not become free within ACTOR_TIMEOUT_S."""
        self._wait_placed()
        return str(_answer(self.ray, self.actor.wait_ready.remote(timeout_s, num_starts), timeout_s + ACTOR_TIMEOUT_S, self.replica_id))

    def _wait_placed(self) -> None:
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            self.ray.get(self.actor.pid.remote(), timeout=ACTOR_TIMEOUT_S)
        except GetTimeoutError as error:
            demand, free = demand_of(self.spec), self.ray.available_resources()
            asked = f"{self.replica_id} asks for {told(demand)}, and was given no place within {ACTOR_TIMEOUT_S:g} s"
            raise StartFailed(f"{asked}: free in the cluster are {told({name: free.get(name, 0.0) for name in demand})}") from error
        except RayActorError as error:
            raise StartFailed(f"{self.replica_id}: {error}") from error

    def report(self, timeout_s: float = ACTOR_TIMEOUT_S) -> SupervisionReport:
        """What became of the service so far."""
        report: SupervisionReport = _answer(self.ray, self.actor.report.remote(), timeout_s, self.replica_id)
        return report


class Cluster:
    """`with Cluster(options) as cluster:`. One at a time in a process, as Ray has it. ray: the module, once entered."""

    def __init__(self, options: ClusterOptions | None = None) -> None:
        self._options = options or ClusterOptions()
        self._replicas: list[ReplicaHandle] = []
        self._fleet: Any = None
        self._owns_fleet = False
        self.ray: Any = None

    def __enter__(self) -> Cluster:
        if self._options.address:
            prepare_to_join(self._options.address, os.environ)
        self.ray = _import_ray()
        try:
            self.ray.init(**self._init_options())
        except Exception as error:
            raise StartFailed(f"Ray did not start or could not be joined: {error}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.stop_actors()
        finally:
            self.ray.shutdown()

    @property
    def node_ip(self) -> str:
        """This machine's address among the cluster's nodes."""
        return str(self.ray.util.get_node_ip_address())

    @property
    def node_id(self) -> str:
        """Ray's name of this node."""
        return str(self.ray.get_runtime_context().get_node_id())

    def is_left_without(self, node: str) -> bool:
        """Whether the cluster counts a node of this name as dead: Ray was without a word from it for longer than it waits, ends what runs
        there, and lets no node of that name return. False while the cluster does not answer, and nobody can say."""
        from ray.exceptions import RayError

        try:
            return node not in {one["NodeID"] for one in self.ray.nodes() if one["Alive"]}
        except (RayError, RuntimeError):
            return False

    def start_fleet(self, listen: str, make: Callable[[int], FleetState] = new_fleet, metrics: MetricsAddress = NOWHERE) -> str:
        """The address of the cluster's coordinator; started here, for as long as this process lives, unless there is one. make: an empty
        fleet of an epoch. metrics: where one that is started here is scraped. Raises StartFailed."""
        from ray.exceptions import ActorAlreadyExistsError

        try:
            self._fleet = self.ray.get_actor(ACTOR_NAME, namespace=NAMESPACE)
        except ValueError:
            await_free(listen)
            try:
                self._fleet = self._start_fleet(listen, make, metrics)
                self._owns_fleet = True
            except ActorAlreadyExistsError:  # another machine began at the same moment
                self._fleet = self.ray.get_actor(ACTOR_NAME, namespace=NAMESPACE)
        return str(_answer(self.ray, self._fleet.address.remote(), ACTOR_TIMEOUT_S, ACTOR_NAME))

    def fleet_metrics(self) -> str:
        """Where the coordinator is scraped; empty for nowhere. Raises StartFailed when it cannot be scraped where it was to."""
        return str(_answer(self.ray, self.fleet.metrics_url.remote(), ACTOR_TIMEOUT_S, ACTOR_NAME))

    @property
    def fleet(self) -> Any:
        """The coordinator's actor; only after `start_fleet`."""
        assert self._fleet is not None
        return self._fleet

    def check_demands(self, specs: Sequence[ReplicaSpec]) -> None:
        """Raises StartFailed when the cluster's nodes, as they are now, can never run these, whatever becomes free."""
        nodes = {node["NodeID"]: node["Resources"] for node in self.ray.nodes() if node["Alive"]}
        if problem := problem_with(specs, nodes):
            raise StartFailed(problem)

    def start_replica(self, spec: ReplicaSpec) -> ReplicaHandle:
        """Ask for an actor with the replica's resources; it starts the service by itself. Raises StartFailed when its name is taken."""
        options: dict[str, Any] = {
            "name": f"outrider-{spec.command.name}",
            "namespace": NAMESPACE,
            "num_cpus": spec.num_cpus,
            "num_gpus": spec.num_gpus,
            "resources": dict(spec.resources),
            "max_restarts": -1,
            "max_task_retries": -1,
            "max_concurrency": 4,  # whoever waits for readiness must not keep others from asking
        }
        if spec.node:
            options["scheduling_strategy"] = self._on_node(spec.node)
        from ray.exceptions import ActorAlreadyExistsError

        try:
            actor = self.ray.remote(ReplicaActor).options(**options).remote(spec)
        except ActorAlreadyExistsError as error:
            told = f"the cluster has a replica called {spec.command.name}: is another `outrider up` running on this node?"
            raise StartFailed(f"{told} `outrider scale` changes how many replicas that one keeps") from error
        handle = ReplicaHandle(self.ray, spec, actor)
        self._replicas.append(handle)
        return handle

    def end_replicas(self, replicas: Sequence[ReplicaHandle]) -> None:
        """Drain these and end their actors; what does not answer in time ends with its process. Does nothing once the cluster was left."""
        if self.ray is None:
            return
        stopping = [handle.actor.stop.remote() for handle in replicas]
        if stopping:
            self.ray.wait(stopping, num_returns=len(stopping), timeout=stop_timeout_s([handle.spec for handle in replicas]))
        for handle in replicas:
            self.ray.kill(handle.actor)
        self._replicas = [handle for handle in self._replicas if handle not in replicas]

    def stop_actors(self) -> None:
        """As `end_replicas` of all that were started here, and the coordinator where it was."""
        self.end_replicas(self._replicas)
        if self._owns_fleet:
            self.ray.kill(self._fleet)
        self._owns_fleet = False

    def _start_fleet(self, listen: str, make: Callable[[int], FleetState], metrics: MetricsAddress) -> Any:
        options = {
            "name": ACTOR_NAME,
            "namespace": NAMESPACE,
            "num_cpus": 0,
            "max_restarts": -1,
            "max_task_retries": -1,
            "scheduling_strategy": self._on_node(self.node_id),  # the address it listens at is this node's
        }
        return self.ray.remote(FleetActor).options(**options).remote(listen, make, metrics)

    def _on_node(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def _init_options(self) -> dict[str, Any]:
        shared = {"namespace": NAMESPACE, "log_to_driver": False, "configure_logging": False}
        if self._options.address:
            own = {"_node_ip_address": self._options.node_ip} if self._options.node_ip else {}
            return {"address": self._options.address, **own, **shared}
        # What the node's processes get with their environment: this process's import path, for the actors' classes.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
        local = {
            "address": "local",
            "_node_ip_address": LOCAL_NODE_IP,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
        return {**local, **shared, **({"num_cpus": self._options.num_cpus} if self._options.num_cpus else {})}


def stop_timeout_s(specs: Sequence[ReplicaSpec]) -> float:
    """For all of these to drain, side by side."""
    return STOP_MARGIN_S + max(drain_deadline_s(spec.command.arguments, spec.limits.drain_s) for spec in specs)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RayMissing('Ray is not installed: pip install "ray[default]>=2.55"') from error
    return ray


def _answer(ray: Any, reference: Any, timeout_s: float, name: str) -> Any:
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

    try:
        return ray.get(reference, timeout=timeout_s)
    except GetTimeoutError as error:
        raise StartFailed(f"the actor of {name} did not answer within {timeout_s:g} s") from error
    except (RayTaskError, RayActorError) as error:
        raise StartFailed(f"{name}: {sentence_of(error)}") from error


def sentence_of(error: Exception) -> str:
    """What an actor raised on purpose, in its own words; Ray puts a traceback in front of these. Anything else as Ray tells it."""
    cause = getattr(error, "cause", None)
    return str(cause if isinstance(cause, OutriderError) else error)
