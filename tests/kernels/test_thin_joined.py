"""A matrix packed part by part is the one that was packed at once, in every form; what is no whole is refused.

Run: pytest tests/kernels/test_thin_joined.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fakes_thin import FloatArray, bfloat16, some_rows
from outrider_kernels.cache_lines import LINE_LEN
from outrider_kernels.int8_weight import Int8Weight
from outrider_kernels.thin_matrix import PANEL, PanelFormat, ThinMatrix

INPUTS, OUTPUTS = 37, 2 * PANEL + 77


def _of_int8(weight: FloatArray, form: PanelFormat) -> ThinMatrix:
    int8 = Int8Weight.of(torch.from_numpy(weight))
    pack = {PanelFormat.BYTES: ThinMatrix.pack_int8, PanelFormat.QUADS: ThinMatrix.pack_quads, PanelFormat.FIXED8: ThinMatrix.pack_fixed8}
    return pack[form](int8.values.numpy(), int8.scale.numpy())


def packed(weight: FloatArray, form: PanelFormat) -> ThinMatrix:
    """Whatever this processor multiplies: packing takes none of it."""
    match form:
        case PanelFormat.PAIRS:
            return ThinMatrix.pack_pairs(weight)
        case PanelFormat.FLOAT16:
            return ThinMatrix.pack_float16(weight)
        case PanelFormat.FIXED16:
            return ThinMatrix.pack_fixed16(weight)
        case PanelFormat.FLOATS | PanelFormat.HALVES:
            return ThinMatrix.pack(weight if form is PanelFormat.FLOATS else bfloat16(weight))
        case _:
            return _of_int8(weight, form)


@pytest.mark.parametrize("cuts", [[], [PANEL], [2 * PANEL, 5 * PANEL], [PANEL, 2 * PANEL, 3 * PANEL]])
@pytest.mark.parametrize("form", list(PanelFormat))
def test_parts_make_the_whole(form: PanelFormat, cuts: list[int]) -> None:
    weight = some_rows(OUTPUTS, INPUTS)
    whole, found = packed(weight, form), ThinMatrix.joined([packed(part, form) for part in np.split(weight, cuts)])
    assert (found.format, found.num_inputs, found.num_outputs) == (form, INPUTS, OUTPUTS)
    np.testing.assert_array_equal(found.panels, whole.panels)
    assert (found.column_scale is None) == (whole.column_scale is None)
    if whole.column_scale is not None and found.column_scale is not None:
        np.testing.assert_array_equal(found.column_scale, whole.column_scale)
    assert found.panels.ctypes.data % LINE_LEN == 0


@pytest.mark.parametrize("first_is_half", [True, False])
def test_a_part_that_happens_to_be_of_bfloat16_numbers_joins_floats(first_is_half: bool) -> None:
    weight = some_rows(OUTPUTS, INPUTS)
    half = slice(None, PANEL) if first_is_half else slice(PANEL, None)
    weight[half] = bfloat16(weight[half])
    parts = [ThinMatrix.pack(part) for part in np.split(weight, [PANEL])]
    assert {part.format for part in parts} == {PanelFormat.FLOATS, PanelFormat.HALVES}
    found = ThinMatrix.joined(parts)
    assert found.format is PanelFormat.FLOATS
    np.testing.assert_array_equal(found.unpacked(), weight.T)


@pytest.mark.parametrize("others", [(PANEL, INPUTS + 1, PanelFormat.FLOATS), (PANEL, INPUTS, PanelFormat.PAIRS)])
def test_parts_of_other_inputs_or_forms_are_refused(others: tuple[int, int, PanelFormat]) -> None:
    outputs, inputs, form = others
    with pytest.raises(ValueError, match="the same inputs and form"):
        ThinMatrix.joined([packed(some_rows(PANEL, INPUTS), PanelFormat.FLOATS), packed(some_rows(outputs, inputs), form)])


def test_only_the_last_part_ends_within_a_panel() -> None:
    parts = [packed(some_rows(outputs, INPUTS), PanelFormat.FLOATS) for outputs in (PANEL + 1, PANEL)]
    with pytest.raises(ValueError, match="end with a panel"):
        ThinMatrix.joined(parts)
    assert ThinMatrix.joined(parts[::-1]).num_outputs == 2 * PANEL + 1
