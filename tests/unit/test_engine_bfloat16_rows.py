"""Which numbers bfloat16 models are multiplied as: by tiles where there are such, else as float16 where the processor has that, and where
it multiplies no bfloat16, as whole numbers; each is another fingerprint of the same weights.

Run: pytest tests/unit/test_engine_bfloat16_rows.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

import fakes_models
from outrider.engine import lean_engine
from outrider.engine.config import DType, EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider_kernels.thin_matrix import PanelFormat
from outrider_kernels.thin_team import multiplies_bfloat16, multiplies_fixed16, multiplies_float16

HERE = [True] if multiplies_bfloat16() and multiplies_float16() else []
WHOLE_HERE = [True] if multiplies_fixed16() else []


def load(folder: Path, monkeypatch: pytest.MonkeyPatch, *, float16: bool, tiles: bool, dtype: DType = DType.BFLOAT16) -> PagedEngine:
    """The model on a processor that has these."""
    with monkeypatch.context() as patch:
        patch.setattr(lean_engine, "multiplies_float16", lambda: float16)
        patch.setattr(lean_engine, "multiplies_tiles", lambda: tiles)
        engine = load_engine(EngineConfig(str(folder), kind=EngineKind.LEAN, dtype=dtype, num_blocks=4, probe=True))
    assert isinstance(engine, PagedEngine)
    return engine


def formats(engine: PagedEngine) -> set[PanelFormat]:
    weights = engine._forward._weights  # type: ignore[attr-defined]
    return {matrix.format for layer in weights.layers for matrix in (layer.thin.qkv, layer.thin.down)} | {weights.thin_head.format}


@pytest.mark.parametrize("_", HERE)
def test_tiles_come_first_then_float16_then_bfloat16(_: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    ours = load(tmp_path, monkeypatch, float16=True, tiles=False)
    both = load(tmp_path, monkeypatch, float16=True, tiles=True)
    neither = load(tmp_path, monkeypatch, float16=False, tiles=False)
    assert (formats(ours), formats(both), formats(neither)) == ({PanelFormat.FLOAT16}, {PanelFormat.PAIRS}, {PanelFormat.PAIRS})
    assert len({engine.identity.fingerprint for engine in (ours, both, neither)}) == 3
    assert len({engine.identity.weights_hash for engine in (ours, both, neither)}) == 1
    assert formats(load(tmp_path, monkeypatch, float16=True, tiles=False, dtype=DType.FLOAT32)) <= {PanelFormat.FLOATS, PanelFormat.HALVES}


def load_without_bfloat16(folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: DType, threads: int = 1) -> PagedEngine:
    """The model on a processor that multiplies whole numbers and no bfloat16."""
    with monkeypatch.context() as patch:
        patch.setattr(lean_engine, "multiplies_bfloat16", lambda: False)
        patch.setattr(lean_engine, "takes_bfloat16", lambda: True)
        engine = load_engine(EngineConfig(str(folder), kind=EngineKind.LEAN, dtype=dtype, num_blocks=4, num_threads=threads, probe=True))
    assert isinstance(engine, PagedEngine)
    return engine


@pytest.mark.parametrize("_", WHOLE_HERE)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_without_bfloat16_whole_numbers_are_multiplied(_: bool, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe, which every engine of these has passed, compares them with transformers."""
    fakes_models.make_model(family, tmp_path, hidden_size=64)
    ours = load_without_bfloat16(tmp_path, monkeypatch, DType.BFLOAT16)
    plain = load_without_bfloat16(tmp_path, monkeypatch, DType.FLOAT32)
    assert formats(ours) == {PanelFormat.FIXED16}
    assert formats(plain) <= {PanelFormat.FLOATS, PanelFormat.HALVES}
    assert ours.identity.weights_hash == plain.identity.weights_hash
    assert ours.identity.fingerprint != plain.identity.fingerprint
