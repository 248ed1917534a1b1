"""Thin products with int8 matrices: against the definition on the dequantised weights, bit for bit from one number of rows to another, and
the quantisation itself against its bound. A twin with the neighbouring channel's scale shows that the comparison would notice.

Run: pytest tests/kernels/test_thin_int8.py
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from outrider_kernels.int8_weight import LARGEST, Int8Weight
from outrider_kernels.thin_matrix import PanelFormat, ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct, reference_product
from outrider_kernels.thin_team import ThinTeam

FloatArray = npt.NDArray[np.float32]
SHAPES = [(1, 1), (5, 3), (16, 16), (17, 40), (384, 100), (96, 1040), (33, 7)]  # inputs, outputs: panels and lanes that end early
MOST = 23


@pytest.fixture(scope="module", params=[1, 2, 3])
def team(request: pytest.FixtureRequest) -> ThinTeam:
    """Teams of several sizes, more threads than cores among them."""
    return ThinTeam(request.param)


def uneven(inputs: int, outputs: int, seed: int = 0) -> FloatArray:
    """Random weights whose channels differ in size, as a trained model's do."""
    generator = np.random.default_rng(seed)
    sizes = np.exp(generator.standard_normal((outputs, 1)))
    return (generator.standard_normal((outputs, inputs)) * sizes).astype(np.float32)


def some_rows(num_rows: int, inputs: int, seed: int = 1) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((num_rows, inputs)).astype(np.float32)


def quantised(weight: FloatArray) -> tuple[ThinMatrix, FloatArray]:
    """The packed matrix, and the float32 matrix that it is."""
    int8 = Int8Weight.of(torch.from_numpy(weight))
    return ThinMatrix.pack_int8(int8.values.numpy(), int8.scale.numpy()), int8.dequantised().numpy()


def product(
    team: ThinTeam, matrix: ThinMatrix, rows: FloatArray, bias: FloatArray | None = None, norm: RowNorm | None = None
) -> FloatArray:
    out = np.full((len(rows), matrix.num_outputs), np.nan, np.float32)
    ThinProduct(team, matrix, rows, out, bias=bias, norm=norm).run(len(rows))
    return out


def is_the_definition(team: ThinTeam, matrix: ThinMatrix, weight: FloatArray) -> bool:
    """Whether products with the matrix are the definition's with this weight, within what float32 sums may lose, column by column."""
    inputs, outputs = matrix.num_inputs, matrix.num_outputs
    bias, norm = some_rows(1, outputs, 2)[0], RowNorm(some_rows(1, inputs, 3)[0], 1e-5)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, MOST):
        rows = some_rows(num_rows, inputs)
        tolerance = 1e-6 + 2e-6 * np.sqrt(inputs) * np.abs(rows).max() * np.abs(weight).max(axis=1)
        plain = np.abs(product(team, matrix, rows, bias) - (reference_product(rows, weight) + bias))
        normed = np.abs(product(team, matrix, rows, None, norm) - reference_product(rows, weight, norm))
        if (plain > tolerance).any() or (normed > 10 * tolerance).any():
            return False
    return True


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products_are_the_definition_on_the_dequantised_weights(team: ThinTeam, inputs: int, outputs: int) -> None:
    matrix, dequantised = quantised(uneven(inputs, outputs))
    assert matrix.format is PanelFormat.BYTES
    assert is_the_definition(team, matrix, dequantised)


def test_the_scale_of_the_neighbouring_channel_would_be_noticed(team: ThinTeam) -> None:
    matrix, dequantised = quantised(uneven(96, 40))
    assert matrix.column_scale is not None
    twin = ThinMatrix(matrix.panels, matrix.num_inputs, matrix.num_outputs, np.roll(matrix.column_scale, 1))
    assert not is_the_definition(team, twin, dequantised)


def test_every_value_that_int8_has_is_widened_right(team: ThinTeam) -> None:
    values = np.tile(np.arange(-128, 128, dtype=np.int8), (19, 1))
    matrix, rows = ThinMatrix.pack_int8(values, np.ones(19, np.float32)), np.eye(256, dtype=np.float32)
    np.testing.assert_array_equal(product(team, matrix, rows), values.T.astype(np.float32))


def test_it_adds_to_what_is_there(team: ThinTeam) -> None:
    matrix, dequantised = quantised(uneven(33, 50))
    rows, bias, sums = some_rows(9, 33), some_rows(1, 50, 5)[0], some_rows(9, 50, 4)
    expected = sums + bias + reference_product(rows, dequantised)
    ThinProduct(team, matrix, rows, sums, bias=bias, adds=True).run(9)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_is_off_by_half_a_step_of_its_own_channel_at_most(dtype: torch.dtype) -> None:
    weight = torch.from_numpy(uneven(300, 64)).to(dtype)
    int8 = Int8Weight.of(weight)
    largest = weight.float().abs().amax(dim=1)
    torch.testing.assert_close(int8.scale, largest / LARGEST)
    errors = (int8.dequantised() - weight.float()).abs().amax(dim=1)
    assert bool((errors <= 0.5001 * int8.scale).all())
    assert bool((errors > 0.3 * int8.scale).all()), "a finer step than int8 has"
    assert int(int8.values.abs().amax()) == LARGEST


def test_a_matrix_and_its_negative_and_one_of_zeros_quantise_alike() -> None:
    weight = torch.from_numpy(uneven(40, 5))
    weight[2] = 0.0
    weight[3] = 1e-44  # whose step would be nothing
    up, down = Int8Weight.of(weight), Int8Weight.of(-weight)
    assert torch.equal(up.values, -down.values)
    assert torch.equal(up.scale, down.scale)
    assert not up.dequantised()[2:4].any()


def test_what_is_no_number_is_refused() -> None:
    for wrong in (torch.inf, torch.nan):
        weight = torch.ones(3, 4)
        weight[1, 2] = wrong
        with pytest.raises(ValueError, match="no number"):
            Int8Weight.of(weight)


def test_scales_that_do_not_fit_are_refused() -> None:
    values = np.ones((4, 3), np.int8)
    for scale in (np.ones(3, np.float32), np.ones(4, np.float64)):
        with pytest.raises(ValueError, match="for each output"):
            ThinMatrix.pack_int8(values, scale)  # type: ignore[arg-type]


def test_int8_takes_half_the_bytes_of_bfloat16() -> None:
    weight = (uneven(256, 512).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    half = ThinMatrix.pack(weight)
    assert half.is_half
    assert quantised(weight)[0].num_bytes == half.num_bytes // 2 + 4 * 512
