"""Weights kept as int8: the thin way, torch's way and transformers' modules with rounded weights are one model; it has an identity of its
own; what cannot have it is refused by name. Twins with a neighbour's scale show that the load-time probe would notice.

Run: pytest tests/unit/test_engine_int8.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file

import fakes_models
from outrider.engine.config import DType, EngineConfig, EngineKind, WeightFormat
from outrider.engine.int8_projection import Int8Projection
from outrider.engine.int8_reference import round_to_int8
from outrider.engine.lean_forward import LeanForward
from outrider.engine.lean_projection import Projection
from outrider.engine.lean_thin import LeanThin
from outrider.engine.load import load_engine
from outrider.engine.model_files import find_model
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.panel_projection import PanelProjection
from outrider.engine.transformers_engine import load_model, own_logits
from outrider.errors import InvalidRequest, ModelRefused
from outrider.types.identity import incompatibility
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray
from outrider_kernels.int8_weight import Int8Weight
from outrider_kernels.thin_matrix import ThinMatrix

NONE: IntArray = np.empty(0, np.int32)
PROMPT = np.random.default_rng(3).integers(0, fakes_models.VOCAB, 29).astype(np.int32)
TOP = 8


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def config(directory: Path) -> EngineConfig:
    return EngineConfig(str(directory), num_blocks=8, block_len=16, weights=WeightFormat.INT8)


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


def reference_logprobs(asked: EngineConfig, *, rounded: bool) -> torch.Tensor:
    """[num_logits] of transformers' own modules."""
    model = load_model(find_model(asked.model), asked)
    if rounded:
        round_to_int8(model)
    with torch.no_grad():
        return own_logits(model)(PROMPT.tolist())[-1].float().log_softmax(0)


@pytest.mark.parametrize("name", fakes_models.LEAN_ARCHITECTURES)
def test_all_ways_to_compute_it_are_one_model(name: str, tmp_path: Path) -> None:
    fakes_models.make_model(name, tmp_path, hidden_size=64)
    asked = config(tmp_path)
    thin, torch_way = load(asked), load(replace(asked, thin_products=False))
    assert isinstance(thin._arrays, LeanThin)
    assert torch_way._arrays is None
    rounded, full = (reference_logprobs(asked, rounded=rounded) for rounded in (True, False))
    for engine in (thin, torch_way):
        found = top_logprobs(engine)
        ids = list(found)
        values = torch.tensor([found[token] for token in ids])
        torch.testing.assert_close(values, rounded[ids], rtol=0.0, atol=1e-4)
        assert float((values - full[ids]).abs().max()) > 1e-3, "the rounding is to be seen, or this compares nothing"


@pytest.mark.parametrize(("dtype", "tolerance"), [(DType.BFLOAT16, 0.1), (DType.FLOAT16, 0.02)])
def test_narrow_types_compute_the_same_model_within_their_own_rounding(dtype: DType, tolerance: float, tmp_path: Path) -> None:
    fakes_models.make_model("qwen2", tmp_path, torch.bfloat16)
    found = top_logprobs(load(replace(config(tmp_path), dtype=dtype)))
    rounded = reference_logprobs(config(tmp_path), rounded=True)
    ids = list(found)
    torch.testing.assert_close(torch.tensor([found[token] for token in ids]), rounded[ids], rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (5, 3), (17, 40), (96, 101)])
@pytest.mark.parametrize("packed", [False, True])
def test_a_projection_is_the_product_with_the_dequantised_matrix(dtype: torch.dtype, inputs: int, outputs: int, packed: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(outputs, inputs, generator=generator) * torch.randn(outputs, 1, generator=generator).exp()
    int8, bias = Int8Weight.of(weight), torch.randn(outputs, generator=generator).to(dtype)
    thin = ThinMatrix.pack_int8(int8.values.numpy(), int8.scale.numpy()) if packed else None
    projection = Int8Projection(int8, bias, thin)
    assert projection.shape == (inputs, outputs)
    for num_rows in (1, 2, 7):
        rows, states = (torch.randn(num_rows, length, generator=generator).to(dtype) for length in (inputs, outputs))
        expected = rows.double() @ int8.dequantised().double().T + bias.double()
        for got, wanted in ((projection(rows), expected), (projection.add_to(states, rows), expected + states.double())):
            assert got.dtype == dtype
            step = torch.finfo(dtype).eps
            torch.testing.assert_close(got.double(), wanted, rtol=4 * step, atol=4 * step * float(wanted.abs().max()))


def test_float16_sums_do_not_leave_the_range() -> None:
    int8 = Int8Weight.of(torch.full((3, 4096), 0.01))
    product = Int8Projection(int8, None)(torch.full((2, 4096), 4.0, dtype=torch.float16))
    torch.testing.assert_close(product.float(), torch.full((2, 3), 0.01 * 4.0 * 4096), rtol=1e-2, atol=0.0)


def test_a_matrix_is_in_memory_once_and_a_byte_a_weight(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    for thin_products in (True, False):
        forward = load(replace(config(tmp_path), thin_products=thin_products))._forward
        assert isinstance(forward, LeanForward)
        assert isinstance(forward._weights.head, PanelProjection if thin_products else Projection), "the head is kept in full"
        for layer in forward._weights.layers:
            for name in ("qkv", "output", "gate_up", "down"):
                projection = getattr(layer, name)
                assert isinstance(projection, Int8Projection)
                num_inputs, num_outputs = projection.shape
                assert projection.num_bytes <= num_inputs * (num_outputs + 15) + 4 * num_outputs
                if layer.thin is not None:
                    packed: npt.NDArray[np.int8] = getattr(layer.thin, name).panels
                    assert packed.dtype == np.int8
                    assert np.shares_memory(projection._blocks.numpy(), packed)
            assert (layer.thin is not None) == thin_products


def test_where_it_costs_time_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    load(replace(config(tmp_path), probe=False))
    assert "cost time" not in caplog.text
    load(replace(config(tmp_path), probe=False, dtype=DType.BFLOAT16))
    assert "cost time" in caplog.text


def test_it_is_another_model_that_pairs_with_the_same_ones(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    asked = replace(config(tmp_path), probe=False)
    int8, full = (load(replace(asked, weights=weights)).identity for weights in (WeightFormat.INT8, WeightFormat.FULL))
    assert int8.fingerprint != full.fingerprint
    assert int8.weights_hash != full.weights_hash
    assert (int8.dtype, full.dtype) == ("float32, int8 weights", "float32")
    assert load(asked).identity == int8
    assert incompatibility(int8, full) is None
    assert incompatibility(full, int8) is None


@pytest.mark.parametrize("thin_products", [True, False])
def test_the_probe_refuses_a_neighbours_scale(thin_products: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    asked = replace(config(tmp_path), thin_products=thin_products)
    pack, make = ThinMatrix.pack_int8, Int8Projection.__init__

    def pack_wrongly(values: npt.NDArray[np.int8], scale: npt.NDArray[np.float32]) -> ThinMatrix:
        return pack(values, np.roll(scale, 1))

    def make_wrongly(self: Int8Projection, weight: Int8Weight, bias: torch.Tensor | None, thin: ThinMatrix | None = None) -> None:
        make(self, Int8Weight(weight.values, weight.scale.roll(1)), bias, thin)

    if thin_products:
        monkeypatch.setattr(ThinMatrix, "pack_int8", staticmethod(pack_wrongly))
    else:
        monkeypatch.setattr(Int8Projection, "__init__", make_wrongly)
    with pytest.raises(ModelRefused, match="one by one"):
        load_engine(asked)


def test_the_transformers_engine_refuses_it_by_name(tmp_path: Path) -> None:
    fakes_models.make_model("gemma2", tmp_path)
    for kind in (EngineKind.TRANSFORMERS, EngineKind.AUTO):
        with pytest.raises(InvalidRequest, match=r"--weights full") as caught:
            load_engine(replace(config(tmp_path), kind=kind))
        assert caught.value.field == "engine.weights"
    with pytest.raises(ModelRefused, match="gemma2"):
        load_engine(replace(config(tmp_path), kind=EngineKind.LEAN))


def test_files_that_only_transformers_can_read_are_refused_instead_of_served_in_full(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    path = tmp_path / "model.safetensors"
    tensors = load_file(str(path))
    save_file({**tensors, "model.extra.weight": torch.ones(2)}, str(path), metadata={"format": "pt"})
    with pytest.raises(ModelRefused, match=r"model\.extra\.weight"):
        load_engine(config(tmp_path))


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    path = tmp_path / "model.safetensors"
    tensors = load_file(str(path))
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = torch.inf
    save_file(tensors, str(path), metadata={"format": "pt"})
    with pytest.raises(ModelRefused, match="no int8 form"):
        load_engine(config(tmp_path))
