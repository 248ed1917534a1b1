"""A matrix is packed a part at a time, whole panels each, and is the one that was packed at once.

Run: pytest tests/unit/test_engine_matrix_layout.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from outrider.engine import matrix_layout
from outrider.engine.config import WeightFormat
from outrider.engine.matrix_layout import MatrixLayout, ThinRows
from outrider_kernels.thin_matrix import PANEL, ThinMatrix

INPUTS, OUTPUTS = 100, 3 * PANEL + 5


@pytest.mark.parametrize("thin", [ThinRows.FLOAT32, ThinRows.FIXED16])
@pytest.mark.parametrize("weights", [WeightFormat.FULL, WeightFormat.QUICK])
@pytest.mark.parametrize(("numbers", "parts"), [
    (1, [PANEL, PANEL, PANEL, 5]),
    (INPUTS * (PANEL + 4), [PANEL, PANEL, PANEL, 5]),
    (INPUTS * OUTPUTS, [3 * PANEL, 5]),
])  # fmt: skip
def test_parts_are_whole_panels(
    weights: WeightFormat, thin: ThinRows, numbers: int, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if weights is WeightFormat.QUICK and thin is ThinRows.FLOAT32:
        thin = ThinRows.DIGITS
    weight = torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(3)).bfloat16()
    layout = MatrixLayout(weights, False, thin)
    whole, joined, seen = layout.place(weight).thin, ThinMatrix.joined, list[int]()

    def spy(of: Sequence[ThinMatrix]) -> ThinMatrix:
        seen.extend(part.num_outputs for part in of)
        return joined(of)

    monkeypatch.setattr(ThinMatrix, "joined", spy)
    monkeypatch.setattr(matrix_layout, "_PART_NUMBERS", numbers)
    found = layout.place(weight).thin
    assert seen == parts
    assert whole is not None
    assert found is not None
    np.testing.assert_array_equal(found.panels, whole.panels)
