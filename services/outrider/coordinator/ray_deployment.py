"""A deployment whose replicas Ray keeps running: this machine's share of a fleet, its coordinator if there is none yet, and a gateway.

Knows who is started when, and how the share grows and shrinks. Must not know Ray itself (cluster.py) or terminals. The gateway is no actor:
clients know this machine's address, so it is kept running here.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from outrider.coordinator.cluster import Cluster, ClusterOptions, ReplicaHandle
from outrider.coordinator.replica_actor import ReplicaSpec
from outrider.coordinator.replica_plan import (
    COORDINATOR_METRICS,
    GATEWAY_METRICS,
    NodePlace,
    RayShare,
    ReplicaPlan,
    metrics_address,
    metrics_options,
)
from outrider.coordinator.replica_supervisor import ReplicaSupervisor, SupervisionLimits, SupervisionReport
from outrider.coordinator.scaling_door import ScalingDoor
from outrider.errors import InvalidRequest, Overloaded, Unavailable
from outrider.launch.deployment import START_DEADLINE_S, DeploymentSpec
from outrider.launch.process import ServiceCommand, StartFailed
from outrider.launch.threads import usable_cores
from outrider.types.fleet import Role

# A gateway that does not last is given up sooner than a replica: nobody else serves this machine's clients, so an operator must hear of it.
GATEWAY_LIMITS = SupervisionLimits(max_failures=4, start_s=START_DEADLINE_S)
MAX_REPLICAS = 256  # of each role on this node
_NODE_NAME_LEN = 8


class RayDeployment:
    """Running once constructed; use as a context manager, from a thread that lives as long as it should. Raises StartFailed and RayMissing;
    nothing of ours is left running then. replicas: those that were not taken away; a new list after every change."""

    def __init__(self, spec: DeploymentSpec, share: RayShare, deadline_s: float = START_DEADLINE_S) -> None:
        self.spec = spec
        self.share = share
        self.replicas: list[ReplicaHandle] = []
        self.addresses: dict[str, str] = {}
        self.metrics: dict[str, str] = {}  # where each process is scraped, by its name
        self.gateway = self.coordinator = self.scaling = ""  # addresses
        self._gateway: ReplicaSupervisor | None = None
        self._door: ScalingDoor | None = None
        self._scaling = threading.Lock()
        self._cluster = Cluster(ClusterOptions(share.address, share.node_ip, self._claimed_cpus()))
        started = time.monotonic()
        self._cluster.__enter__()
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="outrider-ray-"))
            self._start(started + deadline_s)
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - started

    def stop(self) -> None:
        """Drain the gateway first, then what it needs; logs are kept. Safe to call again."""
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.stop()
        cluster, self._cluster = self._cluster, Cluster()
        if cluster.ray is not None:
            cluster.__exit__(None, None, None)
        if self._door is not None:
            self._door.close()  # now, for a replica that was being waited for has ended

    def __enter__(self) -> RayDeployment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def gateway_report(self) -> SupervisionReport:
        """What became of the gateway so far."""
        assert self._gateway is not None, "it runs until stop"
        return self._gateway.report()

    @property
    def is_cut_off(self) -> bool:
        """Whether the cluster went on without this node: its replicas are gone, and none can be started here until Ray is."""
        return self._cluster.is_left_without(self._node)

    def scale(self, num_verifiers: int | None = None, num_drafters: int | None = None) -> dict[str, str]:
        """Change how many replicas this node has (None: as it is): those that do not serve at the moment go first, then the newest, which
        drain; new ones are started; those that have ended for good (drained, given up) are forgotten and do not count. Returns addresses by
        name, once all are ready.

        Raises InvalidRequest, Overloaded while another change is under way, Unavailable after `stop`, and StartFailed: what could not be
        started is taken away again.
        """
        wanted = {Role.DRAFTER: num_drafters, Role.VERIFIER: num_verifiers}
        self._check(wanted)
        if not self._scaling.acquire(blocking=False):
            raise Overloaded("another change of the number of replicas is under way", retry_after_s=1.0)
        try:
            if self._gateway is None:
                raise Unavailable("this deployment is being stopped")
            for role, number in wanted.items():
                if number is not None:
                    self._shrink(role, number)
            missing = {role: 0 if number is None else number - len(self._of(role)) for role, number in wanted.items()}
            self._grow(missing, time.monotonic() + START_DEADLINE_S)
        finally:
            self._scaling.release()
        return {replica.replica_id: self.addresses[replica.replica_id] for replica in self.replicas}

    def _check(self, wanted: Mapping[Role, int | None]) -> None:
        for role, number in wanted.items():
            if number is not None and not 0 <= number <= MAX_REPLICAS:
                raise InvalidRequest(f"num_{role.value}s", f"must be in [0, {MAX_REPLICAS}], got {number}")
        if wanted[Role.VERIFIER] == 0 and not self.share.address:
            raise InvalidRequest("num_verifiers", "is 0, and a fleet of this machine alone has no others")
        if wanted[Role.DRAFTER] and self.spec.draft is None:
            raise InvalidRequest("num_drafters", "there is no draft model to start one with")

    def _of(self, role: Role) -> list[ReplicaHandle]:
        """Oldest first."""
        return [replica for replica in self.replicas if replica.replica_id.startswith(f"{role.value}-")]

    def _shrink(self, role: Role, number: int) -> None:
        """Take away those of a role that have ended for good, and while there are more than so many, one that is being started again before
        one that serves, else the newest."""
        reports = {replica: _report_of(replica) for replica in self._of(role)}
        # Where one is restarted somebody else may have had its port.
        self.addresses.update({replica.replica_id: report.address for replica, report in reports.items() if report and report.address})
        gone = [replica for replica, report in reports.items() if report is None]
        serving = [replica for replica, report in reports.items() if report is not None and report.address]
        starting = [replica for replica, report in reports.items() if report is not None and not report.address]
        self._take_away([*gone, *[*serving, *starting][number:]])

    def _take_away(self, replicas: list[ReplicaHandle]) -> None:
        """Drain these and forget them."""
        self._cluster.end_replicas(replicas)
        self.replicas = [replica for replica in self.replicas if replica not in replicas]
        for replica in replicas:
            self.addresses.pop(replica.replica_id, None)
            self.metrics.pop(replica.replica_id, None)
            self._plan.freed(replica.replica_id)

    def _grow(self, missing: Mapping[Role, int], deadline_s: float) -> None:
        """Start so many more, and wait until they are ready; none of them is left when one is not."""
        before = list(self.replicas)
        try:
            self._ask_for(missing)
            self._await_ready(deadline_s)
        except BaseException:
            self._take_away([replica for replica in self.replicas if replica not in before])
            raise

    def _ask_for(self, missing: Mapping[Role, int]) -> None:
        """Start so many more; whoever cannot be started at all is not asked for, and keeps no port of metrics."""
        specs: list[ReplicaSpec] = []
        try:
            specs.extend(self._plan.drafter() for _ in range(missing[Role.DRAFTER]))
            drafters = [replica.replica_id for replica in self._of(Role.DRAFTER)] + [spec.command.name for spec in specs]
            specs.extend(self._plan.verifier(drafters) for _ in range(missing[Role.VERIFIER]))
            self._cluster.check_demands([*(replica.spec for replica in self.replicas), *specs])
            while specs:
                self.replicas = [*self.replicas, self._cluster.start_replica(specs[0])]
                specs.pop(0)
        finally:
            for spec in specs:
                self._plan.freed(spec.command.name)

    def _await_ready(self, deadline_s: float) -> None:
        """All those whose address is not known yet."""
        for replica in self.replicas:
            if replica.replica_id not in self.addresses:
                self.addresses[replica.replica_id] = replica.wait_ready(max(0.0, deadline_s - time.monotonic()))
                if self.spec.metrics_port is not None:
                    self.metrics[replica.replica_id] = replica.report().metrics

    def _start(self, deadline_s: float) -> None:
        cluster, spec, share = self._cluster, self.spec, self.share
        metrics = metrics_address(spec, share, COORDINATOR_METRICS, cluster.node_ip)
        self.coordinator = cluster.start_fleet(f"{cluster.node_ip}:{share.fleet_port}", metrics=metrics)
        self._node = cluster.node_id
        place = NodePlace(self.coordinator, self._node, self._node[:_NODE_NAME_LEN], cluster.node_ip)
        self._plan = ReplicaPlan(spec, share, self.folder, place)
        self._ask_for({Role.DRAFTER: share.num_drafters if spec.draft is not None else 0, Role.VERIFIER: share.num_verifiers})
        self._gateway = ReplicaSupervisor(self._gateway_command(), self.folder / "gateway.log", GATEWAY_LIMITS, final_codes=())
        self._gateway.start()
        self._await_ready(deadline_s)
        self.gateway = self._gateway.wait_ready(max(0.0, deadline_s - time.monotonic()))
        if spec.metrics_port is not None:
            self.metrics = {"coordinator": cluster.fleet_metrics(), "gateway": self.gateway_report.metrics, **self.metrics}
        self._door = ScalingDoor(share.scaling_listen or f"unix:{self.folder / 'scaling'}.sock", self.scale)
        self.scaling = self._door.address

    def _gateway_command(self) -> ServiceCommand:
        spec = self.spec
        listen = spec.listen or f"unix:{self.folder / 'gateway'}.sock"
        options: tuple[str, ...] = ("--coordinator", self.coordinator, "--listen", listen, "--verifier-timeout-s", str(START_DEADLINE_S))
        if Path(spec.target).is_dir():
            options += ("--model-dir", spec.target)
        metrics = metrics_options(metrics_address(spec, self.share, GATEWAY_METRICS, self._cluster.node_ip))
        arguments = ("-m", "outrider.gateway", *options, *metrics, *spec.gateway_extra)
        return ServiceCommand("gateway", arguments, 1, (), spec.environment)

    def _claimed_cpus(self) -> float:
        """What a cluster started here says it has: the cores there are, or more where its replicas are to be given more."""
        claimed = self.share.num_verifiers * self.share.verifier_cpus + self.share.num_drafters * self.share.drafter_cpus
        return max(claimed, float(len(usable_cores())))


def _report_of(replica: ReplicaHandle) -> SupervisionReport | None:
    """None of one that has ended for good. Also when its actor does not answer: whoever does not is replaced."""
    try:
        report = replica.report()
    except StartFailed:
        return None
    return None if report.has_ended else report
