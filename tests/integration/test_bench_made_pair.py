"""Pairs made on the spot: served by the engine they are meant for, right often and wrong often, and with the plain tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drafter_service.drafting_thread import LoadedDrafter
from drafter_service.loading import load_drafter
from drafter_service.settings import parse_settings as drafter_settings
from outrider.cli.bench import MADE_FAMILIES
from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.errors import Unavailable
from outrider.v1 import generation_pb2, sampling_pb2
from outrider_bench.contestants import DraftWishes
from outrider_bench.in_turns import PairInTurns
from outrider_bench.made_pair import FAMILIES, NUM_LAYERS, WRITERS, make
from outrider_bench.one_process_worker import Answering
from outrider_bench.worker import answer_of
from verifier_service.settings import parse_settings as verifier_settings

NUM_TOKENS = 40
PROMPTS = (tuple(range(20, 50)),)


def test_the_command_line_knows_every_family() -> None:
    assert set(MADE_FAMILIES) == {*FAMILIES, *WRITERS}


def test_a_family_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no pair of the family 'frog'"):
        make("frog", tmp_path)


def answer(answering: Answering, prompt: tuple[int, ...], temperature: float, wishes: DraftWishes) -> dict[str, object]:
    return answering.answer(
        generation_pb2.GenerateRequest(
            token_ids=generation_pb2.TokenIds(ids=prompt),
            sampling=sampling_pb2.SamplingParams(temperature=temperature, seed=1),
            max_tokens=NUM_TOKENS,
            draft=wishes.to_proto(),
        )
    )


@pytest.mark.parametrize("family", ["qwen3", pytest.param("gpt_neox", marks=pytest.mark.slow)])
def test_a_made_pair_is_worth_drafting_with_and_keeps_the_plain_tokens(family: str, tmp_path: Path) -> None:
    target, draft = make(family, tmp_path)
    sizes = [json.loads(Path(folder, "config.json").read_text())["num_hidden_layers"] for folder in (target, draft)]
    assert sizes == [NUM_LAYERS, 1]
    kind = "lean" if family in ("qwen3", "mistral") else "transformers"
    common = ["--engine", kind, "--numerics", "invariant", "--threads", "1", "--kv-mib", "32", "--listen", "unix:nowhere"]
    verifier = verifier_settings(["--model", target, "--pacing", "serial", *common])
    drafter = drafter_settings(["--model", draft, *common])

    def load_draft() -> LoadedDrafter:
        return load_drafter(drafter)

    def load() -> Engine:
        return load_engine(verifier.engine)

    num_drafted = num_accepted = 0
    with PairInTurns(load_draft, load) as pair:
        answering = Answering(verifier, pair)
        for prompt in PROMPTS:
            for temperature in (0.0, 0.8):
                plain = answer_of(answer(answering, prompt, temperature, DraftWishes("off")))
                drafted = answer_of(answer(answering, prompt, temperature, DraftWishes("serial", 4, 0.0)))
                assert drafted.tokens == plain.tokens
                assert len(drafted.tokens) == NUM_TOKENS
                assert drafted.draft is not None
                num_drafted += drafted.draft.num_drafted
                num_accepted += drafted.draft.num_accepted
    assert 0.4 < num_accepted / num_drafted < 0.97
