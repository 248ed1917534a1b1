"""A row of logits without a finite best has no pick, on any path, and never takes a neighbour's token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outrider.engine.sampling.choices import top_choices
from outrider.engine.sampling.pick import pick
from outrider.engine.sampling.rows import RowSampling
from outrider.engine.sampling.single_pick import pick_single
from outrider.errors import ModelRefused
from outrider.types.sampling import SamplingParams

SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"top_p": 0.9},
    {"min_p": 0.1},
    {"top_k": 5},
    {"frequency_penalty": 0.5},
)


def spoiled(kind: str, row: int) -> torch.Tensor:
    logits = torch.from_numpy(np.random.default_rng(3).standard_normal((4, 60)).astype(np.float32))
    if kind == "all masked":
        logits[row] = -torch.inf
    else:
        logits[row, 7] = float(kind)
    return logits


@pytest.mark.parametrize("row", [0, 2, 3])
@pytest.mark.parametrize("kind", ["nan", "inf", "all masked"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_rows_without_a_finite_best_are_refused(sampling: dict[str, Any], kind: str, row: int) -> None:
    params = SamplingParams(**sampling)
    logits, rows = spoiled(kind, row), [RowSampling(params, 5, np.arange(4))]
    with pytest.raises(ModelRefused, match=f"row {row}"):
        pick(logits, rows)
    with pytest.raises(ModelRefused, match=f"row {row}"):
        top_choices(logits, rows, 3)
    assert pick_single(logits[row].numpy(), params, 5, row, with_prob=True) is None
