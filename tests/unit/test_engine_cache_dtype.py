"""Keys and values of a bfloat16 model beside thin products: of bfloat16, as wherever it is served, so that twice as many fit and half as
much is read; but of float32 where keys have biases, or rows are rounded less.

Run: pytest tests/unit/test_engine_cache_dtype.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import fakes_models
from outrider.engine.config import DType, EngineConfig, EngineKind, WeightFormat
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray
from outrider_kernels.thin_team import multiplies_bytes, prefers_fixed16, takes_bfloat16

NONE: IntArray = np.empty(0, np.int32)
PROMPT = np.random.default_rng(3).integers(0, fakes_models.VOCAB, 41).astype(np.int32)
BUDGET_MIB = 1

pytestmark = pytest.mark.skipif(not takes_bfloat16(), reason="bfloat16 is torch's here, and so is the cache")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def load(directory: Path, **changes: object) -> PagedEngine:
    asked = EngineConfig(str(directory), kind=EngineKind.LEAN, dtype=DType.BFLOAT16, block_len=16, kv_budget_mib=BUDGET_MIB)
    engine = load_engine(replace(asked, **changes))  # type: ignore[arg-type]
    assert isinstance(engine, PagedEngine)
    return engine


def stored(engine: PagedEngine) -> torch.dtype:
    return engine._cache.pools[0].dtype


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
def test_a_bfloat16_model_has_a_cache_of_bfloat16_and_room_for_twice_as_many(name: str, tmp_path: Path) -> None:
    fakes_models.make_model(name, tmp_path, torch.bfloat16, hidden_size=64)
    half, whole = load(tmp_path), load(tmp_path, dtype=DType.FLOAT32)
    assert (stored(half), stored(whole)) == (torch.bfloat16, torch.float32)
    assert half.limits.num_blocks == 2 * whole.limits.num_blocks


def test_keys_with_biases_are_kept_as_they_are(tmp_path: Path) -> None:
    fakes_models.make_model("qwen2", tmp_path, torch.bfloat16, hidden_size=64)
    assert stored(load(tmp_path)) == torch.float32


@pytest.mark.skipif(not (multiplies_bytes() or prefers_fixed16()), reason="guesses have the model's own weights here")
def test_weights_of_int8_multiply_rows_that_are_rounded_less(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path, torch.bfloat16, hidden_size=64)
    assert stored(load(tmp_path, weights=WeightFormat.QUICK)) == torch.float32


def test_who_stores_otherwise_has_another_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model("llama", tmp_path, torch.bfloat16, hidden_size=64)
    half = load(tmp_path).identity.fingerprint
    monkeypatch.setattr("outrider.engine.lean_engine._cache_dtype", lambda *_: torch.float32)
    assert load(tmp_path).identity.fingerprint != half


def keys_of(directory: Path) -> torch.Tensor:
    """Of transformers' own first layer, in float32. [kv_heads, tokens, dim], rotary halves apart."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        keys: torch.Tensor = model(torch.tensor(PROMPT[None].tolist()), use_cache=True).past_key_values.layers[0].keys[0]
    return keys


def test_what_is_stored_is_what_the_model_makes_of_it_rounded_once(tmp_path: Path) -> None:
    """Within a step of bfloat16, rows that are rounded for the product before it included."""
    fakes_models.make_model("llama", tmp_path, torch.bfloat16, hidden_size=64)
    engine = load(tmp_path)
    engine.open(1, SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(0), len(PROMPT), 60, 0))
    engine.step(StepPlan((SequenceRows(1, PROMPT, NONE, NONE),)))
    slots = engine._sequences.states[1].table.slots[: len(PROMPT)].tolist()
    theirs = keys_of(tmp_path)
    ours = engine._cache.pools[0][0][:, slots].float().view(*theirs.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)  # pairs to halves
    assert (ours - theirs).abs().max() < 2**-6 * theirs.abs().max()
