"""The reference pair under `outrider up --ray`, as real processes: a verifier and the coordinator killed in mid-answer, and README's two
commands on each of two machines (nodes at loopback addresses of their own).

Needs the extra `ray`, which `make test-all` installs; minutes on a busy machine:

    pytest -m slow tests/integration/test_ray_end_to_end.py
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from outrider.cli import scale
from outrider.cli.connection import CollectedAnswer, Connection
from outrider.coordinator.cluster import LOCAL_NODE_IP
from outrider.coordinator.cluster_door import MODE
from outrider.coordinator.ray_deployment import RayDeployment
from outrider.coordinator.replica_plan import RayShare
from outrider.errors import OutriderError
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2, scaling_pb2
from outrider_models.paths import model_dir
from ray_nodes import HEAD_IP, SECOND_IP, ray_head, ray_node

pytestmark = pytest.mark.slow
WAIT_S, STOP_S, POLL_S = 240.0, 90.0, 0.05
NUM_TOKENS, HURT_AFTER = 200, 24
PROMPT = "Copy this list without smooth summer:\n- hollow story\n- brave flower\n- smooth summer\n- black judge\n- hollow meadow"


def request(*, drafts: bool = True) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=PROMPT)]),
        sampling=sampling_pb2.SamplingParams(temperature=0.8, seed=5),
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
        draft=pb.DraftOptions(off=not drafts),
    )


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what}: not within {WAIT_S:g} s"
        time.sleep(POLL_S)


def free_port(ip: str) -> int:
    with socket.create_server((ip, 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def _without_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE, "disabled")  # on loopback for the test's time only


def ask(gateway: Connection, hurt: Callable[[], None] | None = None) -> list[int]:
    """The tokens of one answer; `hurt` is called once HURT_AFTER of them have come."""
    answer = CollectedAnswer()
    for event in gateway.stream(request()):
        answer.add(event, 0.0)
        if hurt is not None and answer.num_tokens >= HURT_AFTER:
            hurt()
            hurt = None
    assert hurt is None, "it was to be hurt in its midst"
    return answer.first.token_ids


def serving(deployment: RayDeployment) -> str:
    """The replica that holds the one session there is."""
    for name, address in deployment.addresses.items():
        if name.startswith("verifier"):
            with Connection(address) as verifier:
                if verifier.verifier_info().live.sessions:
                    return name
    raise AssertionError("nobody serves")


@pytest.mark.usefixtures("_without_tokens")
def test_no_token_changes_when_the_verifier_or_the_coordinator_is_killed_or_a_verifier_replaced_in_mid_answer() -> None:
    models = str(model_dir("ref-large")), str(model_dir("ref-small"))
    spec = DeploymentSpec(*models, "serial", ThreadPlan(1, 1), numerics="invariant", gateway_extra=("--failover-timeout-s", "100"))
    share = RayShare(num_verifiers=2, num_drafters=1, fleet_port=free_port(LOCAL_NODE_IP))
    with RayDeployment(spec, share, WAIT_S) as deployment, Connection(deployment.gateway) as gateway:
        truth = gateway.ask(request(drafts=False)).first.token_ids
        by_name = {replica.replica_id: replica for replica in deployment.replicas}
        killed: list[str] = []

        def kill_verifier() -> None:
            killed.append(serving(deployment))
            os.kill(by_name[killed[0]].report().pid, signal.SIGKILL)

        assert ask(gateway, kill_verifier) == truth
        assert by_name[killed[0]].wait_ready(WAIT_S, num_starts=2) == deployment.addresses[killed[0]]

        ray, fleet = deployment._cluster.ray, deployment._cluster.fleet
        epoch, pid = ray.get([fleet.epoch.remote(), fleet.pid.remote()])
        held: list[str] = []

        def kill_coordinator() -> None:
            held.append(serving(deployment))
            os.kill(pid, signal.SIGKILL)

        assert ask(gateway, kill_coordinator) == truth
        assert [replica.report().num_starts for name, replica in by_name.items() if name != killed[0]] == [1, 1]
        until(lambda: bool(ray.get(fleet.epoch.remote(), timeout=WAIT_S) > epoch), "another coordinator")
        assert ask(gateway) == truth

        drained: list[str] = []

        def drain_verifier() -> None:
            drained.append(serving(deployment))
            os.kill(by_name[drained[0]].report().pid, signal.SIGTERM)

        assert ask(gateway, drain_verifier) == truth, "an upgrade costs no token either"
        until(lambda: by_name[drained[0]].report().has_ended, "the end of a drain")
        assert by_name[drained[0]].report().exit_codes[-1] == 0
        now = scale.ask(deployment.scaling, scaling_pb2.ScaleRequest(num_verifiers=2)).replicas
        assert len({one.replica_id for one in now} - {drained[0]}) == 3, "another verifier in its place, and the drafter"
        assert ask(gateway) == truth


@pytest.mark.usefixtures("_without_tokens")
def test_in_a_joined_fleet_drafters_draft_on_while_no_coordinator_answers(tmp_path: Path) -> None:
    models = str(model_dir("ref-large")), str(model_dir("ref-small"))
    spec = DeploymentSpec(*models, "serial", ThreadPlan(1, 1), numerics="invariant")
    with ray_head(tmp_path / "head.log") as head:
        share = RayShare(address=head, node_ip=HEAD_IP, fleet_port=free_port(HEAD_IP))
        with RayDeployment(spec, share, WAIT_S) as deployment, Connection(deployment.gateway) as gateway:
            truth = gateway.ask(request(drafts=False)).first.token_ids
            pid = deployment._cluster.ray.get(deployment._cluster.fleet.pid.remote())

            def drafts() -> bool:
                answer = gateway.ask(request()).first
                assert answer.token_ids == truth
                return answer.finished.statistics.num_accepted > 0

            def drafts_alone() -> bool:
                os.kill(pid, signal.SIGSTOP)
                try:
                    return drafts()
                finally:
                    os.kill(pid, signal.SIGCONT)

            assert not drafts_alone(), "the verifier has no drafter of its own, and the gateway has heard of no pair yet"
            until(drafts, "a placement with a drafter")
            until(drafts_alone, "drafts, once the gateway was told of the pair")


@dataclass
class Machine:
    """`outrider up --ray` on one node. log: what a person reads."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def gateway(self) -> str:
        """Empty until it is up."""
        found = re.search(r"--gateway (\S+)", self.log.read_text())
        return found[1] if found else ""

    def until_up(self) -> str:
        until(lambda: bool(self.gateway) or self.process.poll() is not None, "it is up")
        assert self.process.poll() is None, self.log.read_text()
        return self.gateway


@contextlib.contextmanager
def up(log: Path, head: str, ip: str, *options: str) -> Iterator[Machine]:
    address = ("--ray-address", head, "--ray-node-ip", ip, "--listen", f"{ip}:0", "--numerics", "invariant")
    threads = ("--verifier-threads", "1", "--drafter-threads", "1", "--lent-threads", "0")
    paths = os.pathsep.join(path for path in sys.path if path)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "outrider.cli", "up", "--ray", *address, *threads, *options],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"},
        )  # fmt: skip
    try:
        yield Machine(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        finally:
            process.kill()
            process.wait()


def answer_of(address: str) -> list[int]:
    """No tokens when it does not answer."""
    with Connection(address) as gateway, contextlib.suppress(OutriderError):
        return ask(gateway)
    return []


@pytest.mark.usefixtures("_without_tokens")
def test_the_readmes_commands_make_one_fleet_of_two_machines_and_either_leaves_in_peace(tmp_path: Path) -> None:
    fleet_port = ("--fleet-port", str(free_port(HEAD_IP)))
    with contextlib.ExitStack() as stack:
        head = stack.enter_context(ray_head(tmp_path / "head.log"))
        stack.enter_context(ray_node(tmp_path / "second.log", head))
        first = stack.enter_context(up(tmp_path / "first.txt", head, HEAD_IP, "--verifiers", "1", "--drafters", "0", *fleet_port))
        gateway = first.until_up()
        truth = answer_of(gateway)
        assert len(truth) == NUM_TOKENS
        with up(tmp_path / "other.txt", head, SECOND_IP, "--verifiers", "1", "--drafters", "1") as second:
            assert answer_of(second.until_up()) == truth
            text = second.log.read_text()
            assert f"{HEAD_IP}:{fleet_port[1]}" in text, "it found the coordinator of the first"
            assert answer_of(gateway) == truth
        assert second.process.returncode == 0, second.log.read_text()
        assert answer_of(gateway) == truth
        assert first.process.poll() is None, first.log.read_text()


@pytest.mark.usefixtures("_without_tokens")
def test_a_machine_whose_ray_has_ended_leaves_the_fleet_and_says_what_to_do(tmp_path: Path) -> None:
    fleet_port = ("--fleet-port", str(free_port(HEAD_IP)))
    with contextlib.ExitStack() as stack:
        head = stack.enter_context(ray_head(tmp_path / "head.log"))
        node = stack.enter_context(contextlib.ExitStack())
        node.enter_context(ray_node(tmp_path / "second.log", head))
        first = stack.enter_context(up(tmp_path / "first.txt", head, HEAD_IP, "--verifiers", "1", "--drafters", "0", *fleet_port))
        second = stack.enter_context(up(tmp_path / "other.txt", head, SECOND_IP, "--verifiers", "0", "--drafters", "1"))
        truth = answer_of(first.until_up())
        assert len(truth) == NUM_TOKENS
        second.until_up()
        node.close()
        until(lambda: second.process.poll() is not None, "the second machine's share has ended")
        text = second.log.read_text()
        assert second.process.returncode == 1, text
        assert "ray start --address" in text
        assert answer_of(first.gateway) == truth
        assert first.process.poll() is None, first.log.read_text()
