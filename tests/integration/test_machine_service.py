"""Verifier, drafter and gateway as one process: the plain tokens, drafts accepted and rejected, everything freed, and a drain that waits
for answers under way."""

from __future__ import annotations

import signal
import urllib.request
from collections.abc import Iterator

import grpc
import pytest

from forked_services import ForkedDeployment
from merged_deployments import NUM_TOKENS, PROMPT, Together, check_plain_tokens, deployed, exit_code_of, nothing_held, request
from outrider.cli.starting import endpoint_table
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider.v1 import sampling_pb2, verifier_pb2
from outrider.v1.verifier_pb2_grpc import VerifierServiceStub
from outrider_bench.loopback import free_address
from outrider_models.paths import model_dir

TARGET, DRAFT = str(model_dir("ref-large")), str(model_dir("ref-small"))


def spec_of(*, together: bool, metrics_port: int | None = None) -> DeploymentSpec:
    plan = ThreadPlan(1, 1)
    return DeploymentSpec(
        TARGET, DRAFT, "serial", plan, numerics="invariant", together=together, gateway_inside=True, metrics_port=metrics_port
    )


@pytest.fixture(scope="module")
def machine() -> Iterator[Together]:
    port = int(free_address("127.0.0.1").rpartition(":")[2])
    with deployed(spec_of(together=True, metrics_port=port), ForkedDeployment) as up:
        yield up


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("pacing", ["serial", "pearl", "adaptive"])
def test_every_policy_gives_the_plain_tokens(machine: Together, pacing: str, temperature: float) -> None:
    check_plain_tokens(machine, pacing, temperature)


def test_other_gateways_get_the_same_from_its_verifier(machine: Together) -> None:
    """It serves them over its address, beside the gateway in its process."""
    start = verifier_pb2.DecodeStart(session_id="other", incarnation=1, prefix=PROMPT, num_prompt_tokens=len(PROMPT), max_tokens=8)
    start.sampling.CopyFrom(sampling_pb2.SamplingParams(temperature=0.0))
    start.draft.off = True
    tokens: list[int] = []
    with grpc.insecure_channel(machine.deployment.verifier) as channel:
        for message in VerifierServiceStub(channel).Decode(iter([verifier_pb2.DecodeRequest(start=start)])):  # type: ignore[no-untyped-call]
            tokens += message.committed.token_ids
    assert tokens == list(machine.gateway.ask(request("off", 0.0, 8)).first.token_ids)


def test_it_is_one_process_that_says_where_each_part_is_scraped(machine: Together) -> None:
    deployment = machine.deployment
    assert set(deployment.processes) == {"verifier"}
    line = deployment.ready["verifier"]
    assert (line["service"], line["address"]) == ("gateway", deployment.gateway)
    for url, metric in ((line["metrics"], b"outrider_live_streams"), (line["verifier_metrics"], b"outrider_kv_blocks_free")):
        with urllib.request.urlopen(str(url), timeout=10.0) as response:
            assert metric in response.read()
    table = endpoint_table(deployment)
    assert list(table.columns[0].cells) == ["verifier", "drafter", "gateway"]
    assert len(set(table.columns[4].cells)) == 1, "one process"


def test_a_client_that_leaves_leaves_nothing_behind(machine: Together) -> None:
    """Nor is its answer decoded to the end, which would free everything too: a step a token, and most are never taken."""
    num_left, num_tokens = 3, 300
    begun = machine.verifier.verifier_info().num_steps
    for _ in range(num_left):
        stream = machine.gateway.stream(request("off", 0.8, num_tokens))
        for event in stream:
            if event.HasField("delta"):
                break
        stream.cancel()
    answer = machine.gateway.ask(request("serial", 0.8))
    assert len(answer.first.token_ids) == NUM_TOKENS
    assert nothing_held(machine)
    assert machine.verifier.verifier_info().num_steps - begun < 0.8 * num_left * num_tokens


def test_it_drains_on_sigterm_and_answers_under_way_end_well(machine: Together) -> None:
    """Last with this machine: nothing answers afterwards."""
    whole = machine.gateway.ask(request("serial", 0.8, 300)).first
    stream = machine.gateway.stream(request("serial", 0.8, 300))
    tokens = list(next(event for event in stream if event.HasField("delta")).delta.token_ids)
    process = machine.deployment.processes["verifier"]
    process.signal(signal.SIGTERM)
    finished = None
    for event in stream:
        tokens += event.delta.token_ids
        finished = event.finished if event.HasField("finished") else finished
    assert tokens == list(whole.token_ids)
    assert finished is not None
    assert exit_code_of(process) == 0


def test_its_drafter_may_be_a_process_of_its_own() -> None:
    with deployed(spec_of(together=False), ForkedDeployment) as up:
        assert set(up.deployment.processes) == {"drafter", "verifier"}
        plain = up.gateway.ask(request("off", 0.8)).first
        drafted = up.gateway.ask(request("serial", 0.8)).first
        assert drafted.token_ids == plain.token_ids
        assert drafted.finished.statistics.num_drafted > 0  # how many of them are in time depends on what else the machine does
