"""Verifier and drafter in one thread, on tiny random models: every policy's tokens are those of plain decoding, whatever was accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from drafter_service.drafting_thread import LoadedDrafter
from drafter_service.loading import load_drafter
from drafter_service.settings import parse_settings as drafter_settings
from fakes_models import make_model, worn
from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.errors import InvalidRequest, ModelRefused
from outrider.v1 import generation_pb2, sampling_pb2
from outrider_bench.contestants import DraftWishes
from outrider_bench.in_turns import PairInTurns
from outrider_bench.one_process_worker import Answering
from outrider_bench.worker import Worker, answer_of
from verifier_service.settings import parse_settings as verifier_settings

PROMPTS = ((5, 6, 7, 8, 9, 10), tuple(range(20, 60)))
NUM_TOKENS = 32
DRAFT_LEN = 5  # given, as a length found from measured times would differ from run to run


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """The services' command lines for a target and a draft that is right often and wrong often."""
    target = tmp_path_factory.mktemp("target")
    make_model("llama", target)
    draft = worn(target, tmp_path_factory.mktemp("draft"), 0.05)
    common = ["--numerics", "invariant", "--threads", "1", "--kv-mib", "16"]
    return ["--model", str(target), "--pacing", "serial", "--listen", "unix:nowhere", *common], ["--model", str(draft), *common]


@pytest.fixture(scope="module")
def answering(options: tuple[list[str], list[str]]) -> Iterator[Answering]:
    verifier, drafter = verifier_settings(options[0]), drafter_settings(options[1], serves=False)

    def load_draft() -> LoadedDrafter:
        return load_drafter(drafter)

    def load() -> Engine:
        return load_engine(verifier.engine)

    with PairInTurns(load_draft, load, DRAFT_LEN) as pair:
        yield Answering(verifier, pair)


def request(prompt: tuple[int, ...], temperature: float, wishes: DraftWishes, seed: int = 3) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=prompt),
        sampling=sampling_pb2.SamplingParams(temperature=temperature, seed=seed),
        max_tokens=NUM_TOKENS,
        draft=wishes.to_proto(),
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "wishes",
    [
        DraftWishes("serial"),
        DraftWishes("serial", 4, 0.0),
        DraftWishes("adaptive"),
        DraftWishes("pearl", 6, 0.0),
        DraftWishes("serial", 6, 0.0, 3),
    ],
    ids=lambda wishes: wishes.text,
)
def test_every_policy_in_turns_gives_the_plain_tokens_with_drafts_accepted_and_rejected(
    answering: Answering, wishes: DraftWishes, temperature: float
) -> None:
    num_drafted = num_accepted = 0
    for prompt in PROMPTS:
        plain = answer_of(answering.answer(request(prompt, temperature, DraftWishes("off"))))
        drafted = answer_of(answering.answer(request(prompt, temperature, wishes)))
        assert drafted.tokens == plain.tokens
        assert len(drafted.tokens) == NUM_TOKENS
        assert 0.0 < drafted.first_token_ms <= drafted.total_ms
        assert plain.draft is not None
        assert drafted.draft is not None
        assert plain.draft.num_drafted == 0
        num_drafted += drafted.draft.num_drafted
        num_accepted += drafted.draft.num_accepted
    # How much `adaptive` drafts depends on what this machine is measured to gain by it.
    assert num_accepted <= num_drafted if wishes.pacing == "adaptive" else 0 < num_accepted < num_drafted


def test_what_the_services_refuse_is_refused_and_the_next_request_is_answered(answering: Answering) -> None:
    wrong = request(PROMPTS[0], 0.0, DraftWishes("no such policy"))
    with pytest.raises(InvalidRequest, match=r"draft\.pacing"):
        answering.answer(wrong)
    assert answer_of(answering.answer(request(PROMPTS[0], 0.0, DraftWishes("serial")))).tokens


def test_what_cannot_be_loaded_is_said_by_whoever_starts_it() -> None:
    def load_draft() -> LoadedDrafter:
        raise ModelRefused("no such weights")

    def load() -> Engine:
        raise AssertionError("the target is loaded last")

    with pytest.raises(ModelRefused, match="no such weights"):
        PairInTurns(load_draft, load)


@pytest.mark.slow
def test_the_worker_takes_the_services_command_lines(options: tuple[list[str], list[str]]) -> None:
    with Worker("the one process", "outrider_bench.one_process_worker", [json.dumps([*options[0], "--", *options[1]])], 1, {}) as worker:
        asked = [
            worker.ask({"request": request(PROMPTS[0], 0.0, wishes).SerializeToString().hex()})
            for wishes in (DraftWishes("off"), DraftWishes("serial"))
        ]
        assert asked[0].tokens == asked[1].tokens
        assert asked[1].draft is not None
        assert asked[1].draft.num_drafted > 0
        with pytest.raises(RuntimeError, match="the one process refused: max_tokens"):
            worker.ask(
                {
                    "request": generation_pb2.GenerateRequest(token_ids=generation_pb2.TokenIds(ids=[1]), max_tokens=0)
                    .SerializeToString()
                    .hex()
                }
            )
