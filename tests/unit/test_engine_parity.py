"""The engines against transformers' own generate and forward, for small random models of many architectures: plain decoding, chains,
trees whose siblings must not evict context from a window, chunked prefill, fragmented caches.

Run: pytest tests/unit/test_engine_parity.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import fakes_models
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray

NONE: IntArray = np.empty(0, np.int32)
PROMPT = np.random.default_rng(3).integers(0, fakes_models.VOCAB, 29).astype(np.int32)  # longer than the window of 12
OUTPUT_LEN = 24
GREEDY = SamplingParams(temperature=0.0)
CASES = [(name, EngineKind.TRANSFORMERS) for name in fakes_models.ARCHITECTURES]
CASES += [(name, EngineKind.LEAN) for name in fakes_models.LEAN_ARCHITECTURES]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].value}")
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, Engine]:
    """A model under transformers, and the same files behind an engine (the load-time probe included)."""
    torch.set_num_threads(1)
    name, kind = request.param
    model = fakes_models.make_model(name, tmp_path)
    return model, load_engine(EngineConfig(str(tmp_path), kind=kind, num_blocks=24, block_len=16, max_rows=64))


def greedy(model: PreTrainedModel) -> list[int]:
    """transformers' own answer; that it is not one token over and over makes the comparison worth something."""
    with torch.no_grad():
        prompt = torch.from_numpy(PROMPT.astype(np.int64))[None]
        answer: list[int] = model.generate(prompt, max_new_tokens=OUTPUT_LEN, do_sample=False)[0, len(PROMPT) :].tolist()
    assert len(set(answer)) > 1
    return answer


def plain(engine: Engine) -> list[int]:
    """Our answer, token by token."""
    engine.open(1, SequenceSpec(GREEDY, NoiseAddress(0), len(PROMPT), 70, 0))
    answer, committed = [], PROMPT
    for _ in range(OUTPUT_LEN):
        committed = engine.step(StepPlan((SequenceRows(1, committed, NONE, NONE),))).results[0].picks
        answer.append(int(committed[0]))
    return answer


def next_token(model: PreTrainedModel, tokens: list[int]) -> int:
    with torch.no_grad():
        return int(model(torch.tensor([tokens])).logits[0, -1].argmax())


def fragment(engine: Engine) -> None:
    """Leave holes of one and two blocks at the front of the pool and a block less than enough behind them."""
    for sequence, num_blocks in ((100, 1), (101, 1), (102, 2), (103, 1), (104, 16)):
        engine.open(sequence, SequenceSpec(GREEDY, NoiseAddress(0), 0, num_blocks * 16, 0))
    for sequence in (100, 102):
        engine.close(sequence)


def test_decoding_and_trees_give_the_text_of_generate(pair: tuple[PreTrainedModel, Engine]) -> None:
    model, engine = pair
    truth = greedy(model)
    fragment(engine)
    engine.open(1, SequenceSpec(GREEDY, NoiseAddress(0), len(PROMPT), 70, 20))
    engine.step(StepPlan((SequenceRows(1, PROMPT[:10], NONE, NONE, wanted=False),)))
    answer: list[int] = []
    committed = PROMPT[10:]
    generator = np.random.default_rng(8)
    for num_right, num_decoys in ((0, 0), (3, 0), (2, 12), (0, 4), (4, 14), (0, 0), (5, 0), (1, 16)):
        upcoming = truth[len(answer) : len(answer) + num_right]
        decoys = generator.integers(0, fakes_models.VOCAB, num_decoys).tolist()
        places = [int(generator.integers(-1, num_right + index)) for index in range(num_decoys)]
        taken = {(index - 1, token) for index, token in enumerate(upcoming)}
        kept = [(token, place) for token, place in zip(decoys, places, strict=True) if (place, token) not in taken and place < num_right]
        tokens = np.asarray([*upcoming, *(token for token, _ in kept)], np.int32)
        parents = np.asarray([*range(-1, num_right - 1), *(place for _, place in kept)], np.int32)
        rows = SequenceRows(1, committed, tokens, parents, acceptance="coupled")
        result = engine.step(StepPlan((rows,))).results[0]
        assert result.verdict is not None
        assert len(result.verdict.path) >= num_right
        prefix = [*PROMPT.tolist(), *answer]
        for node in range(num_right, len(tokens)):
            path = [*tokens[: parents[node] + 1].tolist(), int(tokens[node])]
            assert int(result.picks[1 + node]) == next_token(model, [*prefix, *path])
        engine.keep(1, result.verdict.path)
        answer += [*(int(tokens[node]) for node in result.verdict.path), result.verdict.emitted]
        committed = np.asarray(answer[-1:], np.int32)
    assert answer[:OUTPUT_LEN] == truth[: len(answer)]
    assert len(answer) >= 20


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_invariant_numerics_give_the_text_of_generate(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = fakes_models.make_model(name, tmp_path)
    engine = load_engine(EngineConfig(str(tmp_path), numerics=Numerics.INVARIANT, num_blocks=24, block_len=16))
    assert plain(engine) == greedy(model)


@pytest.mark.parametrize("kind", [EngineKind.LEAN, EngineKind.TRANSFORMERS])
@pytest.mark.parametrize("named", [{}, {"use_sliding_window": True}, {"layer_types": ["full_attention", "sliding_attention"]}])
def test_a_window_that_the_family_does_not_look_at_is_none(kind: EngineKind, named: dict[str, Any], tmp_path: Path) -> None:
    """A checkpoint converted to Llama keeps what its first family's configuration said; the text is longer than any window."""
    torch.set_num_threads(1)
    fakes_models.make_model("llama", tmp_path, num_hidden_layers=2)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sliding_window": 4} | named))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    engine = load_engine(EngineConfig(str(tmp_path), kind=kind, num_blocks=24, block_len=16))
    text = PROMPT.tolist()
    for _ in range(
        OUTPUT_LEN
    ):  # not by `generate`, whose cache keeps as much as the stray window says of a text that is attended to in full
        text.append(next_token(model, text))
    assert plain(engine) == text[len(PROMPT) :]


def test_lean_and_transformers_differ_in_fingerprint_only(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    lean, plain = (
        load_engine(EngineConfig(str(tmp_path), kind=kind, num_blocks=4, probe=False)).identity
        for kind in (EngineKind.LEAN, EngineKind.TRANSFORMERS)
    )
    assert (lean.weights_hash, lean.vocab_hash, lean.vocab_size) == (plain.weights_hash, plain.vocab_hash, plain.vocab_size)
    assert lean.fingerprint != plain.fingerprint
