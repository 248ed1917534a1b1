"""The oracle of identity runs: agrees with its own picks, sees a planted wrong token, and tells a near tie from an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.noise.keys import Purpose, key_of
from outrider.noise.reference_pick import pick_processed, reference_pick, support
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider_bench import oracle as oracle_module
from outrider_bench.identity_cases import sampling_of
from outrider_bench.oracle import Oracle

PROMPT = (3, 1, 4, 1, 5)
ADDRESS = NoiseAddress(99)
VOCAB = 61


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    folder: Path = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=VOCAB
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return Oracle(str(folder))


def answer_of(oracle: Oracle, params: SamplingParams, num_tokens: int = 12) -> list[int]:
    """Token by token, each from a forward of its own."""
    key, answer = key_of(ADDRESS, Purpose.PICK), list[int]()
    for _ in range(num_tokens):
        logits = oracle._logits([*PROMPT, *answer], [0])[0]
        answer.append(reference_pick(logits, params, key, len(PROMPT) + len(answer), PROMPT, answer))
    return answer


@pytest.mark.parametrize("index", range(0, 40, 3))
def test_step_by_step_answers_agree_with_one_forward(oracle: Oracle, index: int) -> None:
    params = sampling_of(index)
    assert oracle.judge(PROMPT, answer_of(oracle, params), params, ADDRESS) == []


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, top_p=0.9)])
def test_a_planted_token_is_seen_where_it_stands_and_is_no_near_tie(oracle: Oracle, params: SamplingParams) -> None:
    answer = answer_of(oracle, params)
    right = answer[5]
    answer[5] = (right + 7) % VOCAB
    first = oracle.judge(PROMPT, answer, params, ADDRESS)[0]
    assert (first.position, first.answer_token, first.oracle_token, first.near_tie) == (len(PROMPT) + 5, answer[5], right, False)
    assert first.gap > oracle_module.NEAR_TIE_GAP


def test_two_equal_logits_are_a_near_tie() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[7], logits[9] = 5.0, 5.0 - 1e-6
    found = oracle_module._disagreement(logits, SamplingParams(temperature=0.0), 0, 0, 9, 7)
    assert found.near_tie
    assert found.gap == pytest.approx(1e-6, rel=0.5)


def test_a_token_at_the_border_of_top_p_is_a_near_tie_and_one_beyond_it_is_not() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2 - 1e-6, 1e-6], np.float32))
    params = SamplingParams(temperature=1.0, top_p=0.799999)
    outside = [token for token in (2, 3) if token not in support(logits, params)]
    assert outside == [2, 3]
    key = next(k for k in range(200) if pick_processed(logits, SamplingParams(temperature=1.0), k, 0) == 2)
    pick = pick_processed(logits, params, key, 0)
    assert oracle_module._disagreement(logits, params, key, 0, 2, pick).near_tie
    assert not oracle_module._disagreement(logits, params, key, 0, 3, pick).near_tie


def test_cases_mix_every_parameter() -> None:
    cases = [sampling_of(index) for index in range(200)]
    assert len(set(cases)) >= 150
    assert sum(case.has_penalties for case in cases) >= 60
    assert any(case.min_p > 0 for case in cases)
    assert any(case.temperature == 0 for case in cases)
