"""What a machine gives to a fleet under Ray, as command lines; nothing is started.

pytest tests/unit/test_ray_deployment.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drafter_service.settings import parse_settings as drafter_settings
from outrider.cli import deployment_options, up, up_ray
from outrider.cli.__main__ import main
from outrider.cli.up_ray import endpoints, ray_spec, resources_from
from outrider.coordinator.cluster import RayMissing
from outrider.coordinator.demands import demand_of
from outrider.coordinator.ray_deployment import RayDeployment
from outrider.coordinator.replica_actor import ReplicaSpec
from outrider.coordinator.replica_plan import NodePlace, RayShare, ReplicaPlan
from outrider.errors import InvalidRequest
from outrider.exposition.options import NOWHERE, MetricsAddress
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.threads import ThreadPlan
from verifier_service.settings import parse_settings as verifier_settings

COORDINATOR, COORDINATOR_HERE = "10.0.0.1:7069", "127.0.0.2:7069"  # of several machines, and of this one alone
SPEC = DeploymentSpec("target", "draft", "serial", ThreadPlan(verifier=2, drafter=1), listen="127.0.0.1:7070")


def plan(share: RayShare, spec: DeploymentSpec = SPEC) -> ReplicaPlan:
    return ReplicaPlan(spec, share, Path("/tmp/o"), _place(share))


def _place(share: RayShare) -> NodePlace:
    return NodePlace(COORDINATOR, "node-id", "n", "10.0.0.2") if share.address else NodePlace(COORDINATOR_HERE, "node-id", "n", "127.0.0.2")


def specs(share: RayShare, spec: DeploymentSpec = SPEC) -> list[ReplicaSpec]:
    """In the order in which a deployment asks for them."""
    replicas = plan(share, spec)
    drafters = [replicas.drafter() for _ in range(share.num_drafters)]
    names = [drafter.command.name for drafter in drafters]
    return drafters + [replicas.verifier(names) for _ in range(share.num_verifiers)]


def planned(share: RayShare, spec: DeploymentSpec = SPEC) -> dict[str, tuple[str, ...]]:
    """The services' own arguments by name, as RayDeployment would start them on node `n`."""
    return {replica.command.name: replica.command.arguments[2:] for replica in specs(share, spec)}


def given(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    up.add_parser(parser.add_subparsers())
    return parser.parse_args(["up", "--ray", *arguments])


def test_every_command_line_is_one_that_its_service_takes() -> None:
    commands = planned(RayShare(num_verifiers=2, num_drafters=3))
    assert list(commands) == ["drafter-n-0", "drafter-n-1", "drafter-n-2", "verifier-n-0", "verifier-n-1"]
    for name, arguments in commands.items():
        settings = (verifier_settings if name.startswith("verifier") else drafter_settings)(list(arguments))
        assert (settings.membership.coordinators, settings.membership.replica_id) == ((COORDINATOR_HERE,), name)
    second = verifier_settings(list(commands["verifier-n-1"]))
    assert second.drafters == ("unix:/tmp/o/drafter-n-1.sock", "unix:/tmp/o/drafter-n-2.sock")
    assert second.listen == "unix:/tmp/o/verifier-n-1.sock"


def test_in_a_cluster_of_several_machines_replicas_listen_where_others_reach_them() -> None:
    commands = planned(RayShare(address="10.0.0.1:6379", num_verifiers=1, num_drafters=1))
    verifier, drafter = verifier_settings(list(commands["verifier-n-0"])), drafter_settings(commands["drafter-n-0"])
    assert (verifier.listen, verifier.drafters, drafter.listen) == ("10.0.0.2:0", (), ("10.0.0.2:0",))
    assert verifier.membership.endpoint("10.0.0.2:4711") == "10.0.0.2:4711"


def test_every_process_is_scraped_at_a_port_of_its_own() -> None:
    commands = planned(RayShare(num_verifiers=2, num_drafters=1), replace(SPEC, metrics_port=9100))
    found = {name: scraped_at(name, arguments) for name, arguments in commands.items()}
    ports = {"drafter-n-0": 9102, "verifier-n-0": 9103, "verifier-n-1": 9104}
    assert found == {name: MetricsAddress("127.0.0.1", port) for name, port in ports.items()}, "9100: the gateway, 9101: the coordinator"
    assert {scraped_at(name, arguments) for name, arguments in planned(RayShare()).items()} == {NOWHERE}


def test_in_a_cluster_of_several_machines_processes_are_scraped_where_others_reach_them() -> None:
    commands = planned(RayShare(address="10.0.0.1:6379"), replace(SPEC, metrics_port=9100))
    assert scraped_at("drafter-n-0", commands["drafter-n-0"]) == MetricsAddress("10.0.0.2", 9102)


def scraped_at(name: str, arguments: tuple[str, ...]) -> MetricsAddress:
    return (verifier_settings if name.startswith("verifier") else drafter_settings)(list(arguments)).metrics


def test_who_listens_where_is_told_with_where_it_is_scraped() -> None:
    addresses = {"coordinator": "h:1", "gateway": "h:2"}
    assert [column.header for column in endpoints(addresses, {}, 1.0).columns] == ["service", "address"]
    scraped = endpoints(addresses, {"gateway": "http://h:3/metrics"}, 1.0).columns[2]
    assert (scraped.header, list(scraped.cells)) == ("metrics", ["", "http://h:3/metrics"])


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--pair", "together"), "--pair"),
        (("--verifiers", "-1"), "--verifiers"),
        (("--verifiers", "0"), "--verifiers"),
        (("--drafters", "257"), "--drafters"),
        (("--fleet-port", "0"), "--fleet-port"),
        (("--scaling-listen", "nowhere"), "--scaling-listen"),
        (("--metrics-port", "0"), "--metrics-port"),
        (("--pin",), "--pin"),
        (("--lent-threads", "1"), "--lent-threads"),
        (("--gateway-process", "together"), "--gateway-process"),
        (("--verifier-cpus", "-1"), "--verifier-cpus"),
        (("--drafter-cpus", "nan"), "--drafter-cpus"),
        (("--verifier-cpus", "inf"), "--verifier-cpus"),
        (("--verifier-gpus", "1.5"), "--verifier-gpus"),
        (("--drafter-gpus", "-1"), "--drafter-gpus"),
        (("--drafter-gpus", "nan"), "--drafter-gpus"),
        (("--verifier-resources", "fast"), "--verifier-resources"),
        (("--verifier-resources", "=1"), "--verifier-resources"),
        (("--verifier-resources", "GPU=1"), "--verifier-resources"),
        (("--drafter-resources", "fast=0"), "--drafter-resources"),
        (("--drafter-resources", "fast=1", "--drafter-resources", "fast=2"), "--drafter-resources"),
        (("--metrics-port", "65500", "--verifiers", "32", "--drafters", "3"), "--metrics-port"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(arguments: tuple[str, ...], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ray_spec(given(*arguments))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "option",
    [
        ("--ray-address", "10.0.0.1:6379"),
        ("--ray-node-ip", "10.0.0.2"),
        ("--verifiers", "3"),
        ("--drafters", "0"),
        ("--verifier-cpus", "nan"),
        ("--drafter-gpus", "8"),
        ("--verifier-resources", "fast=1"),
        ("--fleet-port", "99999999"),
        ("--scaling-listen", "nonsense"),
    ],
)
def test_what_is_ignored_without_ray_is_refused_before_anything_starts(
    option: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "start", None)
    assert main(["up", *option]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"outrider: {option[0]}")
    assert "give --ray too" in told


def test_the_options_of_ray_at_their_defaults_are_none_and_half_a_core_more_is_one() -> None:
    args = given("--verifiers", "1", "--fleet-port", "7069")
    args.ray = False
    up_ray.check_no_ray_options(args)
    assert ray_spec(given("--verifier-cpus", "1.5")).draft is not None


def test_each_role_asks_for_what_is_its_own() -> None:
    args = given(
        "--verifier-gpus", "0.5", "--verifier-resources", "fast=2", "--verifier-resources", "near=0.5", "--drafter-resources", "far=1"
    )
    assert ray_spec(args).target == ray_spec(given()).target
    assert resources_from("--verifier-resources", args.verifier_resources) == {"fast": 2.0, "near": 0.5}
    share = RayShare(verifier_gpus=0.5, verifier_resources={"fast": 2.0}, drafter_resources={"far": 1.0})
    drafter, verifier = specs(share)
    assert (demand_of(verifier), demand_of(drafter)) == ({"GPU": 0.5, "fast": 2.0}, {"far": 1.0})
    assert {verifier.node, drafter.node} == {"node-id"}


def test_a_name_is_given_once_and_a_port_of_metrics_again_when_it_is_free() -> None:
    replicas = plan(RayShare(), replace(SPEC, metrics_port=9100))
    first, second = replicas.verifier(()), replicas.verifier(())
    replicas.freed(first.command.name)
    third, fourth = replicas.verifier(()), replicas.verifier(())
    found = {one.command.name: scraped_at(one.command.name, one.command.arguments[2:]).port for one in (first, second, third, fourth)}
    assert found == {"verifier-n-0": 9102, "verifier-n-1": 9103, "verifier-n-2": 9102, "verifier-n-3": 9104}


def test_ports_of_metrics_that_have_run_out_are_said() -> None:
    replicas = plan(RayShare(), replace(SPEC, metrics_port=65_533))
    replicas.drafter()
    with pytest.raises(InvalidRequest, match="no port above it is left"):
        replicas.drafter()
    assert list(replicas._metrics) == ["drafter-n-0"], "one that cannot be has none"


def test_verifier_and_drafter_are_apart_and_lend_no_cores() -> None:
    spec = ray_spec(given("--verifiers", "2"))
    assert (spec.together, spec.threads.lent) == (False, 0)
    assert ray_spec(given("--verifiers", "0", "--ray-address", "10.0.0.1:6379")).listen == up.DEFAULT_LISTEN


@pytest.mark.parametrize(
    ("arguments", "threads"),
    [
        ((), (12, 4)),
        (("--verifiers", "2"), (6, 4)),
        (("--verifiers", "4", "--drafters", "3"), (3, 1)),
        (("--verifiers", "32", "--drafters", "32"), (1, 1)),
        (("--verifiers", "2", "--drafters", "2", "--verifier-threads", "8"), (8, 2)),
        (("--verifiers", "2", "--drafters", "2", "--drafter-threads", "3"), (6, 3)),
        (("--verifiers", "0", "--drafters", "0", "--ray-address", "10.0.0.1:6379"), (12, 4)),
    ],
)
def test_replicas_share_the_cores_of_the_machine(
    arguments: tuple[str, ...], threads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment_options, "usable_cores", lambda: tuple(range(16)))
    spec = ray_spec(given("--pacing", "pearl", *arguments))
    assert (spec.threads.verifier, spec.threads.drafter, spec.threads.lent) == (*threads, 0)


def test_nothing_of_ray_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, outrider.coordinator.ray_deployment, outrider.cli.up; sys.exit('ray' in sys.modules or 'torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == 0


def test_without_ray_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RayMissing, match="pip install"):
        RayDeployment(SPEC, RayShare())
