"""A tree may fill the context to its last position and not one more; a plan that tries changes nothing.

Run: pytest tests/unit/test_engine_context.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fakes_models
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.errors import InvalidRequest
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray

CONTEXT = 32
NONE: IntArray = np.empty(0, np.int32)


def chain(*tokens: int) -> tuple[IntArray, IntArray]:
    return np.asarray(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32)


@pytest.mark.parametrize("numerics", list(Numerics))
@pytest.mark.parametrize("kind", [EngineKind.LEAN, EngineKind.TRANSFORMERS])
def test_a_tree_beyond_the_context_is_refused_before_anything_is_touched(kind: EngineKind, numerics: Numerics, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    fakes_models.make_model("llama", tmp_path, max_position_embeddings=CONTEXT)
    engine = load_engine(EngineConfig(str(tmp_path), kind=kind, numerics=numerics, num_blocks=8, block_len=16, probe=False))
    prompt = np.arange(CONTEXT - 4, dtype=np.int32)
    for sequence in (1, 2):
        engine.open(sequence, SequenceSpec(SamplingParams(), NoiseAddress(1), len(prompt), CONTEXT, 8))
    neighbour = SequenceRows(2, prompt[:3], *chain(5))
    with pytest.raises(InvalidRequest, match="beyond the context of 32"):
        engine.step(StepPlan((neighbour, SequenceRows(1, prompt, *chain(1, 2, 3, 4, 5)))))
    assert engine.cached_len(1) == engine.cached_len(2) == 0
    fed = engine.step(StepPlan((neighbour, SequenceRows(1, prompt, *chain(1, 2, 3))))).results[1]
    last = engine.step(StepPlan((SequenceRows(1, NONE, np.array([4], np.int32), np.array([2], np.int32)),))).results[0]
    assert (len(fed.picks), len(last.picks)) == (4, 1)
    with pytest.raises(InvalidRequest, match="beyond the context of 32"):
        engine.step(StepPlan((SequenceRows(1, NONE, np.array([5], np.int32), np.array([3], np.int32)),)))
    engine.keep(1, (0, 1, 2, 3))
    assert engine.cached_len(1) == CONTEXT
