"""`outrider up` as the services of the reference pair die under it: the only verifier in the midst of an answer, then the gateway.

pytest tests/integration/test_up_restarts.py
"""

from __future__ import annotations

import contextlib
import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from rich.console import Console

from forked_services import ForkedDeployment
from outrider.cli.connection import CollectedAnswer, Connection
from outrider.cli.restarts import RestartLimits, Restarts
from outrider.cli.starting import await_pair
from outrider.cli.up import watch
from outrider.errors import OutriderError, Unavailable
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2
from outrider_models.paths import model_dir

NUM_TOKENS, HURT_AFTER = 96, 16
WAIT_S, POLL_S = 120.0, 0.05
# A machine that is busy with other things takes its time to start a verifier; the answer waits for it so long.
PATIENT = ("--failover-timeout-s", "100")


@dataclass
class Watched:
    """A deployment that is watched as `outrider up` does. told: what a person reads of it."""

    deployment: Deployment
    told: io.StringIO
    is_lost: threading.Event

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{what}: not within {WAIT_S:g} s; {self.told.getvalue()}"
            time.sleep(POLL_S)


@contextlib.contextmanager
def watched(spec: DeploymentSpec, restarts: Restarts | None = None) -> Iterator[Watched]:
    told, stopping, is_lost = io.StringIO(), threading.Event(), threading.Event()
    with ForkedDeployment(spec) as deployment:
        await_pair(deployment)

        def run() -> None:
            if watch(deployment, stopping, Console(file=told), restarts):
                is_lost.set()

        watching = threading.Thread(target=run)
        watching.start()
        try:
            yield Watched(deployment, told, is_lost)
        finally:
            stopping.set()
            watching.join(WAIT_S)


def spec(*, gateway_inside: bool = False) -> DeploymentSpec:
    models = str(model_dir("ref-large")), str(model_dir("ref-small"))
    return DeploymentSpec(
        *models,
        "serial",
        ThreadPlan(1, 1),
        numerics="invariant",
        listen="127.0.0.1:0",
        together=gateway_inside,
        gateway_inside=gateway_inside,
        gateway_extra=PATIENT,
    )


def request() -> pb.GenerateRequest:
    return pb.GenerateRequest(
        chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="Copy this list: hollow story, brave flower, smooth summer")]),
        sampling=sampling_pb2.SamplingParams(temperature=0.8, seed=11),
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
    )


def ask_and_hurt(gateway: Connection, hurt: Callable[[], None]) -> list[int]:
    """The tokens of one answer; `hurt` is called once HURT_AFTER of them have come."""
    answer, is_hurt = CollectedAnswer(), False
    for event in gateway.stream(request()):
        answer.add(event, 0.0)
        if not is_hurt and answer.num_tokens >= HURT_AFTER:
            is_hurt = True
            hurt()
    assert is_hurt
    return answer.first.token_ids


def answers(address: str) -> list[int]:
    """No tokens of a gateway that is not there yet."""
    with Connection(address) as gateway, contextlib.suppress(OutriderError):
        return gateway.ask(request()).first.token_ids
    return []


def test_an_answer_outlives_the_only_verifier_and_another_gateway_is_where_the_first_was() -> None:
    with watched(spec()) as up:
        deployment, address = up.deployment, up.deployment.gateway
        verifier, gateway_process = deployment.processes["verifier"], deployment.processes["gateway"]
        with Connection(address) as gateway:
            truth = gateway.ask(request()).first.token_ids
            assert ask_and_hurt(gateway, lambda: verifier.signal(signal.SIGKILL)) == truth
        assert deployment.processes["verifier"].pid != verifier.pid
        gateway_process.signal(signal.SIGKILL)
        up.until(lambda: answers(address) == truth, "an answer of another gateway at the same address")
        assert deployment.processes["gateway"].pid != gateway_process.pid
        assert deployment.gateway == address
        told = up.told.getvalue()
    assert "answers under way wait for it" in told
    assert "starting the gateway again (1 of 3)" in told


def test_where_the_gateway_is_part_of_the_verifier_clients_ask_again_at_the_same_address() -> None:
    with watched(spec(gateway_inside=True)) as up:
        address, process = up.deployment.gateway, up.deployment.processes["verifier"]
        with Connection(address) as gateway:
            truth = gateway.ask(request()).first.token_ids
            with pytest.raises(Unavailable):
                ask_and_hurt(gateway, lambda: process.signal(signal.SIGKILL))
        up.until(lambda: answers(address) == truth, "the same answer, asked for again")
        told = up.told.getvalue()
    assert "clients lose their streams" in told


def test_a_service_that_never_lasts_ends_the_deployment() -> None:
    with watched(spec(), Restarts(RestartLimits(max_restarts=1))) as up:
        first = up.deployment.processes["drafter"]
        first.signal(signal.SIGKILL)
        up.until(lambda: up.deployment.processes["drafter"].pid != first.pid, "another drafter")
        assert not up.is_lost.is_set()
        up.deployment.processes["drafter"].signal(signal.SIGKILL)
        up.until(up.is_lost.is_set, "giving up")
