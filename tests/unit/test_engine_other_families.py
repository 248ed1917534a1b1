"""Families that the project has no example of: any decoder that passes the load-time probe is served, and decodes as transformers does.

Run: pytest -m '' tests/unit/test_engine_other_families.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

import fakes_models
from outrider.engine.config import EngineConfig
from outrider.engine.load import load_engine
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray

NUM_TOKENS, MAX_CONTEXT = 24, 256
NOTHING: IntArray = np.empty(0, np.int32)
SIZES: dict[str, Any] = {**fakes_models.TINY_SIZES, "hidden_size": 64, "max_position_embeddings": MAX_CONTEXT, "pad_token_id": 0}
AS_THEY_ARE = (
    *("apertus", "arcee", "biogpt", "bitnet", "cohere", "ernie4_5", "exaone4", "granite", "hyperclovax", "jais2", "nanochat"),
    *("olmo", "olmo2", "olmo3", "persimmon", "phi", "smollm3", "starcoder2"),
)
WITH_HEADS_OF_16 = ("gemma", "glm", "glm4", "helium", "seed_oss")
PICTURES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14}
GEMMA4: dict[str, Any] = {  # wider heads where a layer attends to all, the last two layers with the keys of those before them
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 32,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": fakes_models.VOCAB,
}
FAMILIES: dict[str, dict[str, Any]] = {
    **{name: {} for name in AS_THEY_ARE},
    **{name: {"head_dim": 16} for name in WITH_HEADS_OF_16},
    "cohere2": {"sliding_window": 32},
    "gemma3": {  # pictures and text, of which it is only asked for the latter
        "text_config": {**SIZES, "head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16},
        "vision_config": {**PICTURES, "image_size": 28},
        "mm_tokens_per_image": 4,
    },
    "gemma4": {"text_config": {**SIZES, **GEMMA4}, "vision_config": {**PICTURES, "num_key_value_heads": 2, "head_dim": 16}},
    "gemma4_text": GEMMA4,
    "gpt_bigcode": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": MAX_CONTEXT, "n_inner": 128},
    "vaultgemma": {"head_dim": 16, "query_pre_attn_scalar": 16},
}

_TWO_OF_FOUR: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
EXPERTS: dict[str, dict[str, Any]] = {
    "afmoe": {**_TWO_OF_FOUR, "num_experts": 4, "head_dim": 16, "sliding_window": 32},
    "deepseek_v3": {  # of latent attention
        **_TWO_OF_FOUR,
        **{"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4},
        **{"kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12},
    },
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2},
    "flex_olmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "gemma4_text": {**GEMMA4, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "glm4_moe": {**_TWO_OF_FOUR, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "head_dim": 16},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 32},  # whose attention has sinks
    "granitemoe": {"num_local_experts": 4},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2, "head_dim": 16},
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "mixtral": {"num_local_experts": 4, "output_router_logits": True},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "phimoe": {"num_local_experts": 4},
    "qwen2_moe": {**_TWO_OF_FOUR, "num_experts": 4, "shared_expert_intermediate_size": 32},
    "qwen3_moe": {**_TWO_OF_FOUR, "num_experts": 4, "head_dim": 16},
}
BY_DEFAULT = ("gemma3", "gemma4", "mixtral")  # whose heads ask their base model for more than hidden states


def slow_but_some(families: Iterable[str]) -> list[Any]:
    """As parameters."""
    return [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in families]


def decoded(directory: Path, prompt: IntArray, numerics: Numerics = Numerics.FAST) -> list[int]:
    """Token by token, at temperature 0."""
    engine = load_engine(EngineConfig(str(directory), num_threads=1, num_blocks=8, max_rows=64, numerics=numerics))
    engine.open(1, SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(0), len(prompt), len(prompt) + NUM_TOKENS, 0))
    tokens: list[int] = []
    for _ in range(NUM_TOKENS):
        committed = np.asarray(tokens[-1:], np.int32) if tokens else prompt
        (result,) = engine.step(StepPlan((SequenceRows(1, committed, NOTHING, NOTHING, acceptance="coupled"),))).results
        assert result.verdict is not None
        tokens.append(int(result.verdict.emitted))
    return tokens


def decoded_by_transformers(model: PreTrainedModel, prompt: IntArray) -> list[int]:
    """All from the beginning for each token, without a cache."""
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(prompt) :].tolist()


def checked(family: str, settings: dict[str, Any], directory: Path, numerics: Numerics) -> None:
    torch.set_num_threads(1)
    model = fakes_models.write_model(AutoConfig.for_model(family, **{**SIZES, **settings}), directory)
    prompt = np.random.default_rng(3).integers(1, fakes_models.VOCAB, 40).astype(np.int32)
    expected = decoded_by_transformers(model, prompt)
    assert len(set(expected)) > 1
    assert decoded(directory, prompt, numerics) == expected


@pytest.mark.parametrize("family", slow_but_some(FAMILIES))
def test_a_family_without_an_example_decodes_as_transformers_does(family: str, tmp_path: Path) -> None:
    checked(family, FAMILIES[family], tmp_path, Numerics.FAST)


@pytest.mark.parametrize("numerics", list(Numerics))
@pytest.mark.parametrize("family", slow_but_some(EXPERTS))
def test_a_mixture_of_experts_decodes_as_transformers_does(family: str, numerics: Numerics, tmp_path: Path) -> None:
    """In `invariant` the probe refuses it where a row's bits depend on what others chose."""
    checked(family, EXPERTS[family], tmp_path, numerics)
