"""The transformers baseline in its own process: every setting answers, assistants change no token, errors are sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

from outrider_bench.baseline import (
    ASSISTANTS,
    LOOKUPS,
    PLAIN_CANDIDATES,
    GenerateSettings,
    Lookup,
    TransformersBaseline,
    generate_candidates,
)
from outrider_bench.baseline_worker import Generator, missing_device

PROMPT = (5, 6, 7, 8, 9, 10)
NUM_TOKENS = 12


def save_model(folder: Path, num_layers: int) -> str:
    torch.manual_seed(num_layers)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=64,
        eos_token_id=63,
        pad_token_id=62,
        bos_token_id=61,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersBaseline]:
    target = save_model(tmp_path_factory.mktemp("target"), 2)
    draft = save_model(tmp_path_factory.mktemp("draft"), 1)
    with TransformersBaseline(target, draft, "float32", num_threads=1) as started:
        yield started


@pytest.mark.parametrize("settings", PLAIN_CANDIDATES, ids=lambda settings: settings.name)
def test_every_cache_and_attention_gives_the_same_tokens(baseline: TransformersBaseline, settings: GenerateSettings) -> None:
    truth = baseline.answer(PROMPT, NUM_TOKENS, 0.0, 1, GenerateSettings())
    answer = baseline.answer(PROMPT, NUM_TOKENS, 0.0, 1, settings)
    assert answer.tokens == truth.tokens
    assert 0 < answer.first_token_ms <= answer.total_ms


@pytest.mark.parametrize("assistant", ASSISTANTS[:3])
def test_assisted_generation_gives_generates_tokens(baseline: TransformersBaseline, assistant: object) -> None:
    truth = baseline.answer(PROMPT, NUM_TOKENS, 0.0, 1, GenerateSettings())
    assert baseline.answer(PROMPT, NUM_TOKENS, 0.0, 1, GenerateSettings(assistant=assistant)).tokens == truth.tokens  # type: ignore[arg-type]


@pytest.mark.parametrize("lookup", [LOOKUPS[0], LOOKUPS[-1]])
def test_prompt_lookup_gives_generates_tokens(baseline: TransformersBaseline, lookup: Lookup) -> None:
    truth = baseline.answer(PROMPT * 2, NUM_TOKENS, 0.0, 1, GenerateSettings())
    assert baseline.answer(PROMPT * 2, NUM_TOKENS, 0.0, 1, GenerateSettings(lookup=lookup, num_threads=1)).tokens == truth.tokens


def test_a_batch_has_every_prompts_own_answer(baseline: TransformersBaseline) -> None:
    prompts = [PROMPT, PROMPT[::-1]]
    alone = [baseline.answer(prompt, NUM_TOKENS, 0.0, 1, GenerateSettings()).tokens for prompt in prompts]
    together = baseline.answer_together(prompts, NUM_TOKENS, 0.0, 1, GenerateSettings())
    assert [answer.tokens for answer in together] == alone
    assert len({answer.total_ms for answer in together}) == 1


def test_settings_for_a_card_are_understood_beside_it(baseline: TransformersBaseline) -> None:
    """transformers compiles on cards only: here the same options leave the same steps uncompiled."""
    truth = baseline.answer(PROMPT, NUM_TOKENS, 0.0, 1, GenerateSettings())
    compiled = [settings for settings in generate_candidates("cuda") if settings.compiled]
    assert compiled
    assert not [settings for settings in generate_candidates("cpu") if settings.compiled]
    for settings in compiled:
        assert baseline.answer(PROMPT, NUM_TOKENS, 0.0, 1, settings).tokens == truth.tokens


@pytest.mark.slow
def test_a_compiled_static_cache_has_the_same_tokens_and_is_compiled_once_for_many_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the compiler that a card would have: it counts, and leaves the operations as they are."""
    graphs: list[int] = []

    def keep(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(len(inputs))
        return module.forward

    everywhere = CompileConfig(backend=keep, mode=None)
    everywhere._compile_all_devices = True
    own = Generator._cache

    def cache(generator: Generator, settings: dict[str, object], num_tokens: int) -> dict[str, object]:
        return own(generator, settings, num_tokens) | ({"compile_config": everywhere} if settings["compiled"] else {})

    monkeypatch.setattr(Generator, "_cache", cache)
    generator = Generator(save_model(tmp_path, 2), "", torch.float32, 1, "cpu")

    def tokens(prompt: tuple[int, ...], settings: GenerateSettings) -> list[int]:
        request = {"prompts": [prompt], "max_tokens": NUM_TOKENS, "temperature": 0.0, "seed": 1, "settings": asdict(settings)}
        answer: dict[str, list[int]] = generator.answer(request)["answers"][0]
        return answer["tokens"]

    compiled = GenerateSettings(cache="static", compiled=True)
    with torch.inference_mode():
        assert tokens(PROMPT, compiled) == tokens(PROMPT, GenerateSettings())
        num_graphs = len(graphs)
        assert num_graphs > 0
        for longer in (PROMPT[:3], PROMPT * 2, PROMPT * 5):
            assert tokens(longer, compiled) == tokens(longer, GenerateSettings())
    assert len(graphs) == num_graphs


def test_a_device_that_is_not_there_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    target = save_model(tmp_path, 1)
    with pytest.raises(RuntimeError, match=r"transformers refused: no CUDA card: torch .* sees none"):
        TransformersBaseline(target, None, "float32", 1, "cuda")


def test_a_device_that_is_none_is_refused() -> None:
    assert missing_device("abacus") == "device 'abacus' is neither cpu nor cuda"


def test_a_seed_repeats_a_sample(baseline: TransformersBaseline) -> None:
    samples = [baseline.answer(PROMPT, NUM_TOKENS, 0.8, seed, GenerateSettings()).tokens for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]


def test_what_transformers_refuses_is_a_sentence_and_the_worker_lives_on(baseline: TransformersBaseline) -> None:
    with pytest.raises(RuntimeError, match="transformers refused"):
        baseline.answer(PROMPT, NUM_TOKENS, -1.0, 1, GenerateSettings())
    assert baseline.answer(PROMPT, 1, 0.0, 1, GenerateSettings()).tokens
