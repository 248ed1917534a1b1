"""Whose matrices are taken to come from memory: those of a model that no cache keeps, all of them, and its answers stay the same.

Run: pytest tests/unit/test_engine_streamed.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fakes_models
from outrider.engine import lean_thin
from outrider.engine.config import DType, EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray
from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_team import takes_bfloat16

NONE: IntArray = np.empty(0, np.int32)
NUM_MATRICES = 2 * 4 + 1  # of the made model's two layers, and the head


def picks(directory: Path, dtype: DType) -> list[int]:
    """Of eleven rows of a prompt and as many nodes, which meet the matrices in several tiles."""
    engine = load_engine(EngineConfig(str(directory), EngineKind.LEAN, dtype, num_blocks=20, block_len=16, num_threads=1, probe=False))
    engine.open(1, SequenceSpec(SamplingParams(temperature=0.8), NoiseAddress(4), 0, 60, 20))
    tokens, parents = np.arange(11, dtype=np.int32), np.arange(-1, 10, dtype=np.int32)
    (result,) = engine.step(StepPlan((SequenceRows(1, tokens, tokens + 20, parents),))).results
    return [int(pick) for pick in result.picks]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, *([DType.BFLOAT16] if takes_bfloat16() else [])])
def test_all_matrices_of_a_large_model_are_streamed_and_none_of_a_small_one(
    dtype: DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    streamed: list[ThinProduct] = []
    original = ThinProduct.stream

    def stream(product: ThinProduct) -> None:
        streamed.append(product)
        original(product)

    monkeypatch.setattr(ThinProduct, "stream", stream)
    small = picks(tmp_path, dtype)
    assert not streamed
    monkeypatch.setattr(lean_thin, "CACHED_BYTES", 1)
    assert picks(tmp_path, dtype) == small
    assert len(set(map(id, streamed))) == len(streamed) == NUM_MATRICES
