"""Verifier and drafter as one process behind a gateway: the plain tokens, drafts accepted and rejected, everything freed."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from forked_services import ForkedDeployment
from merged_deployments import NUM_TOKENS, Together, check_plain_tokens, deployed, exit_code_of, held, request
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider_models.paths import model_dir
from verifier_service.resident import RESIDENT


@pytest.fixture(scope="module")
def together() -> Iterator[Together]:
    target, draft = str(model_dir("ref-large")), str(model_dir("ref-small"))
    with deployed(DeploymentSpec(target, draft, "serial", ThreadPlan(1, 1), numerics="invariant", together=True), ForkedDeployment) as up:
        yield up


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("pacing", ["serial", "pearl", "adaptive"])
def test_every_policy_gives_the_plain_tokens(together: Together, pacing: str, temperature: float) -> None:
    check_plain_tokens(together, pacing, temperature)


def test_the_drafter_is_one_of_the_verifiers_pairs(together: Together) -> None:
    (pair,) = together.verifier.verifier_info().pairs
    assert (pair.endpoint, pair.connected, pair.problem) == (RESIDENT, True, "")
    assert pair.identity.vocab_size == together.verifier.verifier_info().identity.vocab_size
    assert together.deployment.drafter is None
    assert set(together.deployment.processes) == {"verifier", "gateway"}


def test_a_client_that_leaves_leaves_nothing_behind(together: Together) -> None:
    for _ in range(3):
        stream = together.gateway.stream(request("serial", 0.8))
        for event in stream:
            if event.HasField("delta"):
                break
        stream.cancel()
    answer = together.gateway.ask(request("serial", 0.8))
    assert len(answer.first.token_ids) == NUM_TOKENS
    for _ in range(100):  # each look is a round trip: what was cancelled is freed between two steps
        if held(together.verifier.verifier_info()) == (0, 0):
            break
    assert held(together.verifier.verifier_info()) == (0, 0)


def test_a_client_can_ask_for_the_entropy_stop(together: Together) -> None:
    """Any uncertainty is more than it allows: each draft ends behind its first guess, and the tokens are the plain ones."""
    plain = together.gateway.ask(request("off", 0.8)).first
    wish = request("serial", 0.8)
    wish.draft.svip_threshold = 1e-6
    stopped = together.gateway.ask(wish).first
    statistics = stopped.finished.statistics
    assert stopped.token_ids == plain.token_ids
    assert statistics.num_drafted > 0
    assert len(statistics.drafted_by_depth) == 1


def test_it_drains_on_sigterm(together: Together) -> None:
    """Last in this file: nothing answers afterwards."""
    process = together.deployment.processes["verifier"]
    process.signal(signal.SIGTERM)
    assert exit_code_of(process) == 0
