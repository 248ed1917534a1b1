"""Weights of an engine whose answers are guesses (`auto`): int8, the head's too, where the processor multiplies bytes, or whole numbers
quicker than floats, and full elsewhere.

Its logits are those of transformers' modules with rounded weights, a chain in one call is the chain step by step, and twins show what would
be noticed. Run: pytest tests/unit/test_engine_quick_weights.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import fakes_models
from outrider.engine import lean_engine, matrix_layout
from outrider.engine.config import DType, EngineConfig, EngineKind, WeightFormat
from outrider.engine.int8_reference import round_to_int8
from outrider.engine.lean_config import LeanSizes
from outrider.engine.load import load_engine
from outrider.engine.matrix_layout import ThinRows
from outrider.engine.model_files import find_model
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.transformers_engine import load_model, own_logits
from outrider.errors import ModelRefused
from outrider.types.identity import incompatibility
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import Follow, SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray
from outrider_kernels.native_library import find_compiler
from outrider_kernels.thin_matrix import MOST_QUAD_INPUTS, PanelFormat, ThinMatrix
from outrider_kernels.thin_team import multiplies_bytes, prefers_fixed16, takes_bfloat16

NONE: IntArray = np.empty(0, np.int32)
PROMPT = np.random.default_rng(3).integers(0, fakes_models.VOCAB, 29).astype(np.int32)
TOP, NUM_MORE = 8, 9
SIZES = LeanSizes(1, 1, 1, 1, 1, 1, 1e-6, 8, (None,))
HERE = [True] if multiplies_bytes() or prefers_fixed16() else []
DTYPES = [DType.FLOAT32, *([DType.BFLOAT16] if takes_bfloat16() else [])]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def config(directory: Path, dtype: DType = DType.FLOAT32) -> EngineConfig:
    return EngineConfig(str(directory), dtype=dtype, num_blocks=16, block_len=16, weights=WeightFormat.QUICK)


def load(asked: EngineConfig) -> PagedEngine:
    engine = load_engine(asked)
    assert isinstance(engine, PagedEngine)
    return engine


def top_logprobs(engine: PagedEngine) -> dict[int, float]:
    """The most probable tokens after the prompt."""
    engine.open(1, SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(0), len(PROMPT), 60, 0))
    scored = engine.step(StepPlan((SequenceRows(1, PROMPT, NONE, NONE, top_logprobs=TOP),))).results[0].logprobs
    assert scored is not None
    return dict(zip(scored.top_ids[0].tolist(), scored.top[0].tolist(), strict=True))


def reference_logprobs(asked: EngineConfig, *, rounded: bool, with_head: bool = True) -> torch.Tensor:
    """[num_logits] of transformers' own modules, in float32."""
    model = load_model(find_model(asked.model), replace(asked, dtype=DType.FLOAT32))
    if rounded:
        round_to_int8(model, with_head=with_head)
    with torch.no_grad():
        return own_logits(model)(PROMPT.tolist())[-1].float().log_softmax(0)


@pytest.mark.parametrize("_", HERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", fakes_models.LEAN_ARCHITECTURES)
def test_it_is_the_rounded_model_head_and_all(_: bool, name: str, dtype: DType, tmp_path: Path) -> None:
    fakes_models.make_model(name, tmp_path, torch.bfloat16 if dtype is DType.BFLOAT16 else torch.float32, hidden_size=64)
    asked = config(tmp_path, dtype)
    found = top_logprobs(load(asked))
    ids, values = list(found), torch.tensor(list(found.values()))
    error = float((values - reference_logprobs(asked, rounded=True)[ids]).abs().max())
    assert error < 1e-3, "what 16 bits lose"
    for other in (reference_logprobs(asked, rounded=False), reference_logprobs(asked, rounded=True, with_head=False)):
        assert float((values - other[ids]).abs().max()) > 3 * error, "the rounding is to be seen, or this compares nothing"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chain_in_one_call_is_the_chain_step_by_step(dtype: DType, temperature: float, tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path, torch.bfloat16, hidden_size=64)
    engine = load(config(tmp_path, dtype))
    spec = SequenceSpec(SamplingParams(temperature=temperature), NoiseAddress(5), len(PROMPT), 60, 0)
    engine.open(1, spec)
    engine.open(2, replace(spec, max_nodes=NUM_MORE + 1))
    rows = SequenceRows(2, PROMPT, NONE, NONE, pick_probs=True, follow=Follow(NUM_MORE, 0.0))
    followed = engine.step(StepPlan((rows,))).results[0].picks.tolist()
    single = engine.step(StepPlan((SequenceRows(1, PROMPT, NONE, NONE),))).results[0].picks.tolist()
    while len(single) < len(followed):
        newest = np.array(single[-1:], np.int32)
        single += engine.step(StepPlan((SequenceRows(1, newest, NONE, NONE),))).results[0].picks.tolist()
    assert followed == single
    assert len(followed) > 1


@pytest.mark.parametrize("_", HERE)
def test_it_is_another_model_that_pairs_with_the_same_ones(_: bool, tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    asked = replace(config(tmp_path), probe=False)
    kinds = WeightFormat.QUICK, WeightFormat.INT8, WeightFormat.FULL
    quick, int8, full = (load(replace(asked, weights=weights)).identity for weights in kinds)
    assert len({identity.fingerprint for identity in (quick, int8, full)}) == 3
    assert len({identity.weights_hash for identity in (quick, int8, full)}) == 3
    assert quick.dtype == "float32, int8 weights and 16-bit rows"
    assert incompatibility(quick, full) is None


def test_where_it_would_not_be_quick_it_is_the_full_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    asked = replace(config(tmp_path), probe=False)
    full = load(replace(asked, weights=WeightFormat.FULL)).identity
    assert load(replace(asked, thin_products=False)).identity.dtype == "float32"
    assert load(replace(asked, kind=EngineKind.TRANSFORMERS)).identity.weights_hash == full.weights_hash
    monkeypatch.setattr(lean_engine, "multiplies_bytes", lambda: False)
    monkeypatch.setattr(lean_engine, "prefers_fixed16", lambda: False)
    assert load(asked).identity == full


@pytest.mark.parametrize(("has_bytes", "has_wholes", "longest", "rows"), [
    (True, False, MOST_QUAD_INPUTS, ThinRows.DIGITS),
    (True, False, MOST_QUAD_INPUTS + 1, None),
    (True, True, MOST_QUAD_INPUTS, ThinRows.DIGITS),
    (False, True, MOST_QUAD_INPUTS + 1, ThinRows.FIXED16),
    (False, False, 64, None),
])  # fmt: skip
def test_digits_come_first_then_blocks(
    monkeypatch: pytest.MonkeyPatch, has_bytes: bool, has_wholes: bool, longest: int, rows: ThinRows | None
) -> None:
    monkeypatch.setattr(lean_engine, "multiplies_bytes", lambda: has_bytes)
    monkeypatch.setattr(lean_engine, "prefers_fixed16", lambda: has_wholes)
    for name in ("hidden_len", "mlp_len", "num_heads"):
        assert lean_engine._quick_rows(replace(SIZES, **{name: longest})) is rows  # type: ignore[arg-type]


@pytest.mark.parametrize("_", HERE)
def test_the_probe_refuses_a_neighbours_scale(_: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    packs = dict(matrix_layout._QUICK_PACKS)

    def pack_wrongly(rows: ThinRows, values: npt.NDArray[np.int8], scale: npt.NDArray[np.float32]) -> ThinMatrix:
        return packs[rows](values, np.roll(scale, 1))

    for rows in packs:
        monkeypatch.setitem(matrix_layout._QUICK_PACKS, rows, partial(pack_wrongly, rows))
    with pytest.raises(ModelRefused, match="one by one"):
        load_engine(replace(config(tmp_path), kind=EngineKind.LEAN))


@pytest.mark.parametrize("_", HERE)
def test_a_matrix_is_in_memory_once_and_a_byte_a_weight(_: bool, tmp_path: Path) -> None:
    assert find_compiler() is not None
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    weights = load(replace(config(tmp_path), probe=False))._forward._weights  # type: ignore[attr-defined]
    for layer in weights.layers:
        for name in ("qkv", "output", "gate_up", "down"):
            assert getattr(layer, name)._thin is getattr(layer.thin, name)
            assert getattr(layer.thin, name).panels.dtype.itemsize == 1
            assert getattr(layer.thin, name).format in (PanelFormat.QUADS, PanelFormat.FIXED8), "rows are rounded too"
    assert weights.head._thin is weights.thin_head
