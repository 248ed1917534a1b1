"""Shared prefixes through real processes: samples, repetitions and follow-up turns are not read again, and every token stays what it was.

A deployment that reads every prompt anew gives the truth; both are in `invariant` numerics, drafted and penalised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from forked_services import ForkedDeployment
from outrider.cli.connection import CollectedAnswer, Connection
from outrider.cli.starting import await_pair
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2
from outrider_models.paths import model_dir

BLOCK_LEN = 32  # what services are started with
NUM_SAMPLES = 4
NUM_TOKENS = 40
READ_ALL = ("--no-prefix-cache",)
TURN = "A shop has 12 cups. It sells 5 of them and buys 9 more. Then a child breaks 2. How many cups does the shop have now? "


@dataclass
class Served:
    """A gateway, and its verifier and drafter to ask what they hold."""

    gateway: Connection
    verifier: Connection
    drafter: Connection

    def ask(self, prompt_ids: list[int], *, num_samples: int = 1, cache_salt: str = "") -> CollectedAnswer:
        return self.gateway.ask(
            pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=prompt_ids),
                sampling=sampling_pb2.SamplingParams(temperature=0.9, seed=5, repetition_penalty=1.1, frequency_penalty=0.2),
                max_tokens=NUM_TOKENS,
                ignore_eos=True,
                n=num_samples,
                cache_salt=cache_salt,
            )
        )

    def blocks_used(self) -> int:
        return self.verifier.verifier_info().live.kv_blocks_used + self.drafter.drafter_info().live.kv_blocks_used


def serve(extra: tuple[str, ...]) -> Iterator[Served]:
    models = str(model_dir("ref-medium")), str(model_dir("ref-small"))
    spec = DeploymentSpec(*models, "pearl", ThreadPlan(1, 1), numerics="invariant", drafter_extra=extra, verifier_extra=extra)
    with ForkedDeployment(spec) as deployment, Connection(deployment.gateway) as gateway, Connection(deployment.verifier) as verifier:
        await_pair(deployment)
        assert deployment.drafter is not None
        with Connection(deployment.drafter) as drafter:
            yield Served(gateway, verifier, drafter)


@pytest.fixture(scope="module")
def truth() -> Iterator[Served]:
    yield from serve(READ_ALL)


@pytest.fixture(scope="module")
def sharing() -> Iterator[Served]:
    yield from serve(())


def tokens(answer: CollectedAnswer) -> list[list[int]]:
    return [answer.samples[index].token_ids for index in sorted(answer.samples)]


def found(answer: CollectedAnswer) -> list[int]:
    """Prompt tokens that were not read, by sample."""
    return [answer.samples[index].finished.statistics.num_cached_prompt_tokens for index in sorted(answer.samples)]


def test_samples_repetitions_and_turns_share_and_nothing_else_changes(truth: Served, sharing: Served) -> None:
    prompt = list(sharing.gateway.tokenize(text=TURN * 3))
    whole = (len(prompt) - 1) // BLOCK_LEN * BLOCK_LEN
    assert whole >= 2 * BLOCK_LEN
    expected = truth.ask(prompt, num_samples=NUM_SAMPLES)
    assert found(expected) == [0] * NUM_SAMPLES
    samples = sharing.ask(prompt, num_samples=NUM_SAMPLES)
    assert tokens(samples) == tokens(expected)
    assert found(samples).count(whole) >= NUM_SAMPLES - 1, "one at least was read; the others came early enough to wait, or late enough"
    again = sharing.ask(prompt)
    assert (tokens(again), found(again)) == (tokens(expected)[:1], [whole])
    turn = prompt + tokens(again)[0] + prompt[:BLOCK_LEN]
    follow_up = sharing.ask(turn)
    assert found(follow_up) == [(len(prompt) + NUM_TOKENS - 2) // BLOCK_LEN * BLOCK_LEN], "the answer was shared too, but its newest token"
    assert tokens(follow_up) == tokens(truth.ask(turn))


def test_a_salt_keeps_prompts_apart(truth: Served, sharing: Served) -> None:
    prompt = list(sharing.gateway.tokenize(text="Another text. " + TURN * 3))
    whole = (len(prompt) - 1) // BLOCK_LEN * BLOCK_LEN
    answers = [sharing.ask(prompt, cache_salt=salt) for salt in ("", "a", "b", "", "a")]
    assert [found(answer)[0] for answer in answers] == [0, 0, 0, whole, whole]
    assert all(tokens(answer) == tokens(truth.ask(prompt)) for answer in answers)
    assert sharing.blocks_used() == 0, "what is kept counts as free"
