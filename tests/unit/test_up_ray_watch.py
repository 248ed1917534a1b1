"""What a person is told while `outrider up --ray` runs, and when it ends: services are reports that a test writes.

pytest tests/unit/test_up_ray_watch.py
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from rich.console import Console

from outrider.cli import up_ray
from outrider.coordinator.ray_deployment import RayDeployment
from outrider.coordinator.replica_supervisor import SupervisionReport
from outrider.launch.process import StartFailed

RUNS = SupervisionReport(1, "h:1", 1, (), "", has_ended=False)
AGAIN = replace(RUNS, num_starts=2, exit_codes=(-9,))
LOST = SupervisionReport(0, "", 4, (1, 1, 1, 1), "the model folder is gone", has_ended=True)


@dataclass
class Scripted:
    """Reports one after the other, the last one for ever; None: it does not answer."""

    reports: list[SupervisionReport | None]
    replica_id: str = "verifier-n-0"

    def report(self, timeout_s: float = 0.0) -> SupervisionReport:
        now = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        if now is None:
            raise StartFailed(f"the actor of {self.replica_id} did not answer within {timeout_s:g} s")
        return now


@dataclass
class ScriptedDeployment:
    """num_turns: after so many looks at the gateway it is stopped by its user."""

    gateway: Scripted
    replicas: list[Scripted] = field(default_factory=list)
    num_turns: int = 8
    stopping: threading.Event = field(default_factory=threading.Event)
    cut_off_after: int = 100
    num_asked: int = 0

    @property
    def is_cut_off(self) -> bool:
        self.num_asked += 1
        return self.num_asked > self.cut_off_after

    @property
    def gateway_report(self) -> SupervisionReport:
        self.num_turns -= 1
        if not self.num_turns:
            self.stopping.set()
        return self.gateway.report()


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_ray, "WATCH_INTERVAL_S", 0.0)


def watched(deployment: ScriptedDeployment) -> tuple[bool, str]:
    told = io.StringIO()
    is_lost = up_ray.watch(cast(RayDeployment, cast(Any, deployment)), deployment.stopping, Console(file=told, width=200))
    return is_lost, told.getvalue()


def test_a_gateway_that_was_started_again_is_told_once_and_ends_nothing() -> None:
    is_lost, told = watched(ScriptedDeployment(Scripted([RUNS, AGAIN])))
    assert not is_lost
    assert told.splitlines() == ["gateway: started for the 2. time; exit codes -9"]


def test_a_gateway_that_is_given_up_ends_the_deployment_with_the_reason() -> None:
    deployment = ScriptedDeployment(Scripted([RUNS, LOST]))
    is_lost, told = watched(deployment)
    assert is_lost
    assert not deployment.stopping.is_set()
    assert "gateway: ended for good" in told
    assert "the model folder is gone" in told


def test_a_replica_that_is_lost_for_good_or_silent_for_a_while_is_told_and_ends_nothing() -> None:
    replicas = [Scripted([LOST]), Scripted([RUNS, None, RUNS], "drafter-n-0")]
    is_lost, told = watched(ScriptedDeployment(Scripted([RUNS]), replicas))
    assert not is_lost
    assert told.splitlines() == [
        "verifier-n-0: ended for good; exit codes 1, 1, 1, 1",
        "drafter-n-0: the actor of drafter-n-0 did not answer within 10 s",
        "drafter-n-0: is well",
    ]


def test_a_node_that_the_cluster_has_given_up_ends_with_what_to_do() -> None:
    deployment = ScriptedDeployment(Scripted([RUNS]), [Scripted([RUNS, None]), Scripted([RUNS], "drafter-n-0")], cut_off_after=1)
    is_lost, told = watched(deployment)
    assert is_lost
    assert not deployment.stopping.is_set()
    assert "ray start --address" in told
    assert deployment.num_asked == 2, "a replica's silence alone is no reason, nor is a look while all answer"


def test_a_signal_is_heard_between_two_replicas_that_are_silent() -> None:
    deployment = ScriptedDeployment(Scripted([RUNS]))

    class Stops(Scripted):
        def report(self, timeout_s: float = 0.0) -> SupervisionReport:
            deployment.stopping.set()
            return super().report(timeout_s)

    deployment.replicas = [Scripted([None]), Stops([None], "verifier-n-1"), Scripted([None], "verifier-n-2")]
    is_lost, told = watched(deployment)
    assert not is_lost
    assert [line.split(":")[0] for line in told.splitlines()] == ["verifier-n-0", "verifier-n-1"]


def test_a_replica_that_is_added_later_is_watched_too() -> None:
    deployment = ScriptedDeployment(Scripted([RUNS]))

    class Grows(Scripted):
        def report(self, timeout_s: float = 0.0) -> SupervisionReport:
            deployment.replicas = [self, Scripted([AGAIN], "verifier-n-1")]
            return RUNS

    deployment.replicas = [Grows([RUNS])]
    assert watched(deployment)[1].splitlines() == ["verifier-n-1: started for the 2. time; exit codes -9"]
