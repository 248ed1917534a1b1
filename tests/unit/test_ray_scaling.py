"""How a machine's share of a fleet grows and shrinks, with a cluster that only remembers what it was asked for.

pytest tests/unit/test_ray_scaling.py
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from outrider.coordinator.ray_deployment import RayDeployment
from outrider.coordinator.replica_actor import ReplicaSpec
from outrider.coordinator.replica_plan import NodePlace, RayShare, ReplicaPlan
from outrider.coordinator.replica_supervisor import SupervisionReport
from outrider.errors import InvalidRequest, Overloaded, Unavailable
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.process import StartFailed
from outrider.launch.threads import ThreadPlan

SPEC = DeploymentSpec("target", "draft", "serial", ThreadPlan(verifier=2, drafter=1), metrics_port=9100)
RUNS = SupervisionReport(1, "a", 1, (), "", has_ended=False, metrics="m")


@dataclass(eq=False)
class FakeHandle:
    spec: ReplicaSpec
    problem: str = ""
    now: SupervisionReport | None = RUNS

    @property
    def replica_id(self) -> str:
        return self.spec.command.name

    def wait_ready(self, timeout_s: float) -> str:
        if self.problem:
            raise StartFailed(self.problem)
        return f"address of {self.replica_id}"

    def report(self) -> SupervisionReport:
        if self.now is None:
            raise StartFailed("the actor does not answer")
        return self.now


@dataclass
class FakeCluster:
    """problems: of those that will not come up, by name. too_many: of replicas, for the node."""

    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    too_many: int = 100

    def check_demands(self, specs: list[ReplicaSpec]) -> None:
        if len(specs) >= self.too_many:
            raise StartFailed("the node has not so much")

    def start_replica(self, spec: ReplicaSpec) -> FakeHandle:
        self.started.append(spec.command.name)
        return FakeHandle(spec, self.problems.get(spec.command.name, ""))

    def end_replicas(self, replicas: list[FakeHandle]) -> None:
        self.ended += [replica.replica_id for replica in replicas]


def deployment(share: RayShare | None = None, spec: DeploymentSpec = SPEC) -> tuple[RayDeployment, FakeCluster]:
    """Two verifiers and a drafter, without Ray or any process."""
    found, cluster = object.__new__(RayDeployment), FakeCluster()
    found.spec, found.share, found.folder = spec, share or RayShare(), Path("/tmp/o")
    found.replicas, found.addresses, found.metrics = [], {}, {}
    found._plan = ReplicaPlan(spec, found.share, found.folder, NodePlace("h:1", "id", "n", "10.0.0.2"))
    found._scaling = threading.Lock()
    found._gateway = cast(Any, "it runs")
    found._cluster = cast(Any, cluster)
    found.scale(2, 1 if spec.draft else 0)
    return found, cluster


def handle_of(share: RayDeployment, name: str) -> FakeHandle:
    return next(cast(FakeHandle, cast(object, one)) for one in share.replicas if one.replica_id == name)


def test_more_are_started_and_the_newest_go_first() -> None:
    share, cluster = deployment()
    assert list(share.addresses) == ["drafter-n-0", "verifier-n-0", "verifier-n-1"]
    found = share.scale(num_verifiers=3)
    assert cluster.started[3:] == ["verifier-n-2"]
    assert found["verifier-n-2"] == "address of verifier-n-2"
    assert "unix:/tmp/o/drafter-n-0.sock" in handle_of(share, "verifier-n-2").spec.command.arguments
    assert set(share.scale(num_verifiers=1)) == {"drafter-n-0", "verifier-n-0"}
    assert cluster.ended == ["verifier-n-1", "verifier-n-2"]
    assert set(share.metrics) == {"drafter-n-0", "verifier-n-0"}
    assert cluster.started[4:] == [], "nobody else was touched"


def test_one_that_does_not_serve_goes_before_those_that_do() -> None:
    """One whose starts fail is kept by its supervisor for a while, and may be the oldest: with it alone, nobody would be answered."""
    share, cluster = deployment()
    share.scale(num_verifiers=3)
    handle_of(share, "verifier-n-0").now = replace(RUNS, pid=0, address="", exit_codes=(1,))
    assert set(share.scale(num_verifiers=2)) == {"drafter-n-0", "verifier-n-1", "verifier-n-2"}
    assert cluster.ended == ["verifier-n-0"]
    assert set(share.scale(num_verifiers=1)) == {"drafter-n-0", "verifier-n-1"}


def test_one_that_was_started_again_elsewhere_is_told_where_it_is_now() -> None:
    share, _ = deployment()
    handle_of(share, "verifier-n-1").now = replace(RUNS, address="moved", num_starts=5)
    assert share.scale(num_verifiers=2)["verifier-n-1"] == "moved"


def test_a_role_that_is_not_named_stays_as_it_is() -> None:
    share, cluster = deployment()
    handle_of(share, "verifier-n-0").now = replace(RUNS, has_ended=True)
    share.scale(num_drafters=2)
    assert (cluster.started[3:], cluster.ended) == (["drafter-n-1"], [])


@pytest.mark.parametrize("now", [replace(RUNS, has_ended=True), None], ids=["drained", "its actor does not answer"])
def test_the_present_number_brings_another_for_one_that_has_ended(now: SupervisionReport | None) -> None:
    share, cluster = deployment()
    handle_of(share, "verifier-n-0").now = now
    assert set(share.scale(num_verifiers=2)) == {"drafter-n-0", "verifier-n-1", "verifier-n-2"}
    assert cluster.ended == ["verifier-n-0"]


def test_what_does_not_come_up_is_taken_away_again_and_its_port_is_free() -> None:
    share, cluster = deployment()
    cluster.problems["verifier-n-3"] = "no such model"
    with pytest.raises(StartFailed, match="no such model"):
        share.scale(num_verifiers=4)
    assert (set(share.addresses), len(share.replicas)) == ({"drafter-n-0", "verifier-n-0", "verifier-n-1"}, 3)
    assert sorted(cluster.ended) == ["verifier-n-2", "verifier-n-3"]
    assert "9105" in (arguments := handle_of_next(share).spec.command.arguments), arguments


def handle_of_next(share: RayDeployment) -> FakeHandle:
    share.scale(num_verifiers=3)
    return cast(FakeHandle, cast(object, share.replicas[-1]))


def test_what_the_node_cannot_hold_is_refused_before_anything_starts() -> None:
    share, cluster = deployment()
    cluster.too_many = 5
    with pytest.raises(StartFailed, match="not so much"):
        share.scale(num_verifiers=4)
    assert (len(cluster.started), cluster.ended) == (3, [])
    assert "9105" in handle_of_next(share).spec.command.arguments, "its port was not lost to those that were refused"


@pytest.mark.parametrize("numbers", [(None, 40), (40, None), (9, 9)])
def test_an_order_that_the_ports_of_metrics_do_not_suffice_for_costs_none_of_them(numbers: tuple[int | None, int | None]) -> None:
    share, cluster = deployment(spec=replace(SPEC, metrics_port=65_520))
    with pytest.raises(InvalidRequest, match="no port above it is left"):
        share.scale(*numbers)
    assert (len(cluster.started), cluster.ended) == (3, [])
    assert len(share.scale(num_drafters=12)) == 14, "all there are, from 65522 on"


@pytest.mark.parametrize(
    ("numbers", "share", "field"),
    [
        ((-1, None), RayShare(), "num_verifiers"),
        ((0, None), RayShare(), "num_verifiers"),
        ((257, None), RayShare(), "num_verifiers"),
        ((None, 257), RayShare(), "num_drafters"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_its_name(numbers: tuple[int | None, int | None], share: RayShare, field: str) -> None:
    found, cluster = deployment(share)
    with pytest.raises(InvalidRequest) as caught:
        found.scale(*numbers)
    assert (caught.value.field, len(cluster.started)) == (field, 3)


def test_a_machine_of_a_larger_fleet_may_give_no_verifier_at_all() -> None:
    share, _ = deployment(RayShare(address="10.0.0.1:6379"))
    assert set(share.scale(num_verifiers=0)) == {"drafter-n-0"}


def test_without_a_draft_model_there_is_no_drafter_to_start() -> None:
    share, _ = deployment(spec=replace(SPEC, draft=None))
    with pytest.raises(InvalidRequest, match="no draft model"):
        share.scale(num_drafters=1)
    assert len(share.scale(num_drafters=0)) == 2


def test_one_change_at_a_time_and_none_after_the_end() -> None:
    share, _ = deployment()
    with share._scaling, pytest.raises(Overloaded, match="under way"):
        share.scale(num_verifiers=3)
    share._gateway = None
    with pytest.raises(Unavailable, match="being stopped"):
        share.scale(num_verifiers=3)
