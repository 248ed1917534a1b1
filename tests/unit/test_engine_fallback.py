"""What AUTO does with a model that the lean forward's family has but whose files it does not know, and how foreign architectures are
refused: by name, with what is missing and what is served.

Run: pytest tests/unit/test_engine_fallback.py
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, MambaConfig

import fakes_models
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.served_families import SERVED_FAMILIES
from outrider.errors import ModelRefused
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan

ATTENTION = "model.layers.0.self_attn."
ADAPTER = {f"{ATTENTION}q_proj.lora_A.weight": torch.ones(4, 48), f"{ATTENTION}q_proj.lora_B.weight": torch.ones(48, 4)}
HALF_OF_THE_BIASES = {f"{ATTENTION}q_proj.bias": torch.ones(48)}
BIASES_THAT_THE_CONFIGURATION_DENIES = {
    f"{ATTENTION}{name}_proj.bias": torch.ones(length) for name, length in (("q", 48), ("k", 24), ("v", 24), ("o", 48))
}
ROTARY_BUFFER = {f"{ATTENTION}rotary_emb.inv_freq": torch.ones(6)}


def load(directory: Path, kind: EngineKind = EngineKind.AUTO) -> PagedEngine:
    torch.set_num_threads(1)
    engine = load_engine(EngineConfig(str(directory), kind=kind, num_blocks=4))
    assert isinstance(engine, PagedEngine)
    return engine


def add_tensors(directory: Path, extra: dict[str, torch.Tensor]) -> None:
    path = directory / "model.safetensors"
    save_file(load_file(path) | extra, path, metadata={"format": "pt"})


def picks(engine: PagedEngine) -> list[int]:
    engine.open(1, SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(1), 5, 32, 0))
    empty = np.empty(0, np.int32)
    tokens, committed = [], np.asarray([5, 9, 2, 40, 7], np.int32)
    for _ in range(6):
        committed = engine.step(StepPlan((SequenceRows(1, committed, empty, empty),))).results[0].picks
        tokens.append(int(committed[0]))
    return tokens


@pytest.mark.parametrize("extra", [ADAPTER, HALF_OF_THE_BIASES, BIASES_THAT_THE_CONFIGURATION_DENIES], ids=["adapter", "half", "denied"])
def test_tensors_that_lean_does_not_know_leave_the_model_to_transformers(
    extra: dict[str, torch.Tensor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fakes_models.make_model("llama", tmp_path)
    untouched = picks(load(tmp_path, EngineKind.TRANSFORMERS))
    add_tensors(tmp_path, extra)
    with caplog.at_level(logging.WARNING):
        engine = load(tmp_path)
    assert engine.identity.fingerprint == load(tmp_path, EngineKind.TRANSFORMERS).identity.fingerprint
    assert picks(engine) == untouched, "to transformers, these tensors are no part of the model"
    assert "falling back to the transformers engine" in caplog.text
    assert f"transformers ignores {len(extra)} tensors" in caplog.text
    assert min(extra) in caplog.text
    with pytest.raises(ModelRefused):
        load(tmp_path, EngineKind.LEAN)


def test_a_rotary_buffer_is_no_reason_to_fall_back(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    add_tensors(tmp_path, ROTARY_BUFFER)
    assert load(tmp_path).identity.fingerprint == load(tmp_path, EngineKind.LEAN).identity.fingerprint


def test_what_neither_engine_can_run_is_refused_with_both_reasons(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    add_tensors(tmp_path, ADAPTER | {"model.layers.0.mlp.down_proj.weight": torch.ones(48, 79)})
    with pytest.raises(ModelRefused, match=r"no engine can run .* The lean one: the down matrix .* The transformers one: .*mismatch"):
        load(tmp_path)


@pytest.mark.parametrize(
    "config", [{}, {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}], ids=["silent", "named"]
)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_weights_whose_scales_transformers_ignores_are_refused(dtype: torch.dtype, config: dict[str, Any], tmp_path: Path) -> None:
    """It would take their numbers for weights, and compare ours with that."""
    fakes_models.make_model("llama", tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"
    weight = load_file(tmp_path / "model.safetensors")[name]
    scale = weight.abs().max() / 100
    add_tensors(tmp_path, {name: (weight / scale).to(dtype), f"{name}_scale": scale})
    (tmp_path / "config.json").write_text(json.dumps(json.loads((tmp_path / "config.json").read_text()) | config))
    with pytest.raises(ModelRefused, match=rf"quantized in a way that transformers does not know: {name} is (F8_E4M3|I8)"):
        load(tmp_path)


def test_heads_that_turn_in_part_are_no_matter_for_the_lean_forward(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0, "partial_rotary_factor": 0.5}
    fakes_models.write_model(LlamaConfig(**fakes_models.TINY_SIZES, head_dim=16, rope_parameters=rope), tmp_path)
    with pytest.raises(ModelRefused, match=r"RoPE turns 8 of the 16 numbers of a head \(partial_rotary_factor\)"):
        load(tmp_path, EngineKind.LEAN)
    with pytest.raises(ModelRefused, match=r"no engine can run .* The lean one: RoPE turns .* The transformers one: "):
        load(tmp_path)


def test_a_foreign_architecture_is_named_with_what_is_missing_and_what_is_served(tmp_path: Path) -> None:
    fakes_models.write_model(MambaConfig(**fakes_models.TINY_SIZES), tmp_path)
    served = ", ".join(SERVED_FAMILIES)
    with pytest.raises(ModelRefused, match=rf"the architecture 'mamba' cannot be served: .*a recurrent state.*; served are .* {served}$"):
        load(tmp_path)


def test_the_families_a_refusal_names_are_those_that_tests_serve(tmp_path: Path) -> None:
    for name in fakes_models.ARCHITECTURES:
        fakes_models.make_model(name, tmp_path / name)
    served = {json.loads((tmp_path / name / "config.json").read_text())["model_type"] for name in fakes_models.ARCHITECTURES}
    assert tuple(sorted(served)) == SERVED_FAMILIES
