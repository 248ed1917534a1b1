"""A head that stays in 16 bits on a card: which may, and that its logits are the widened head's. On a CPU, where torch has no product of
16-bit numbers with an answer in float32, that product is stood in for; on a card, where there is one, it is torch's own.

Run: pytest tests/unit/test_engine_narrow_head.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes_models import make_model
from outrider.engine import lean_weights
from outrider.engine.lean_config import LeanConfig, read_lean_config
from outrider.engine.lean_forward import LeanForward
from outrider.engine.lean_projection import NarrowHead, can_narrow
from outrider.engine.lean_weights import LeanWeights, read_lean_weights
from outrider.engine.model_files import find_model
from outrider.types.identity import Numerics

DEVICES = ("cpu", *(["cuda"] if torch.cuda.is_available() else []))


PLAIN_MM = torch.mm


def widened_mm(rows: Tensor, matrix: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """torch.mm, whose out_dtype is of cards."""
    return PLAIN_MM(rows, matrix) if out_dtype is None else PLAIN_MM(rows.to(out_dtype), matrix.to(out_dtype))


def weights_of(folder: str, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch, *, narrow: bool) -> LeanWeights:
    monkeypatch.setattr(lean_weights, "can_narrow", lambda *_: narrow)
    files = find_model(folder, "")
    config = read_lean_config(files)
    assert isinstance(config, LeanConfig)
    return read_lean_weights(files, config, dtype, device, Numerics.FAST)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])  # a head of its own, and the embedding
def test_logits_are_those_of_the_widened_head(
    architecture: str, dtype: torch.dtype, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path)
    make_model(architecture, tmp_path)
    if device == "cpu":
        monkeypatch.setattr(torch, "mm", widened_mm)
    wide, narrow = (weights_of(folder, dtype, device, monkeypatch, narrow=narrow) for narrow in (False, True))
    assert isinstance(narrow.head, NarrowHead)
    assert not isinstance(wide.head, NarrowHead)
    assert narrow.head.matrix.dtype == dtype
    hidden = torch.randn(5, narrow.sizes.hidden_len, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    got, expected = LeanForward(narrow).logits(hidden), LeanForward(wide).logits(hidden)
    assert got.dtype == torch.float32
    assert float((got - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    rounded = got.to(dtype).float()
    assert float((rounded - expected).abs().max()) > 1e-4 * float(expected.abs().max())  # what answers in 16 bits would be off by


CARD: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda:0", "numerics": Numerics.FAST, "capability": (9, 0), "hip": None}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({}, True),
        ({"dtype": torch.float16, "capability": (8, 0)}, True),
        ({"dtype": torch.float32}, False),
        ({"device": "cpu"}, False),
        ({"numerics": Numerics.INVARIANT}, False),
        ({"capability": (7, 5)}, False),
        ({"hip": "6.4"}, False),
    ],
)
def test_which_heads_stay_narrow(other: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = CARD | other
    monkeypatch.setattr(torch.version, "hip", asked["hip"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: asked["capability"])
    assert can_narrow(asked["dtype"], asked["device"], asked["numerics"]) is expected
