"""Thin products of int8 matrices with rows that are whole numbers by blocks: against what the blocks are said to be, bit for bit, and from
one number of rows to another; at the ends of the range, and with rows that are no numbers.

How rows become blocks is tested with the matrices of 16 bits that they meet, too (test_thin_fixed16.py).
Where the processor does not multiply such numbers, the packing is checked, and that products are refused.
Run: pytest tests/kernels/test_thin_fixed8.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fakes_thin import BLOCK, FloatArray, product, some_rows, sums_by_blocks, weights
from outrider_kernels import thin_product
from outrider_kernels.int8_weight import Int8Weight
from outrider_kernels.thin_matrix import PanelFormat, ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct, reference_product
from outrider_kernels.thin_team import ThinTeam, multiplies_fixed16

SHAPES = [(1, 1), (5, 3), (16, 16), (17, 40), (32, 33), (64, 7), (65, 48), (384, 100), (96, 1040), (130, 113)]  # blocks, panels, groups
MOST = 19
LARGEST = 32767.0  # as in thin/fixed16.c
ONLY_HERE = [True] if multiplies_fixed16() else []


def int8_of(inputs: int, outputs: int) -> Int8Weight:
    """A matrix whose columns are of different sizes."""
    return Int8Weight.of(torch.from_numpy(weights(inputs, outputs)))


def packed(int8: Int8Weight) -> ThinMatrix:
    """For rows that become blocks."""
    return ThinMatrix.pack_fixed8(int8.values.numpy(), int8.scale.numpy())


def as_blocks(rows: FloatArray, int8: Int8Weight) -> FloatArray:
    """With the scales that the matrix came with."""
    scaled: FloatArray = sums_by_blocks(rows, int8.values.numpy().astype(np.int64), LARGEST) * int8.scale.numpy()
    return scaled


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_it_is_the_matrix_a_byte_a_weight(inputs: int, outputs: int) -> None:
    int8 = int8_of(inputs, outputs)
    matrix = packed(int8)
    assert matrix.format is PanelFormat.FIXED8
    np.testing.assert_array_equal(matrix.unpacked(), int8.dequantised().numpy().T)
    assert matrix.panels.nbytes == (inputs + inputs % 2) * ((outputs + 15) // 16 * 16)


@pytest.mark.parametrize("_", ONLY_HERE)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products_are_these_very_blocks(_: bool, inputs: int, outputs: int) -> None:
    int8, rows = int8_of(inputs, outputs), some_rows(MOST, inputs)
    matrix, expected = packed(int8), as_blocks(rows, int8)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 11, 13, MOST):
        for threads in (1, 3):
            np.testing.assert_array_equal(product(matrix, rows[:num_rows].copy(), threads=threads), expected[:num_rows])


@pytest.mark.parametrize("_", ONLY_HERE)
def test_it_adds_to_what_is_there_and_norms_before(_: bool) -> None:
    int8, rows, sums = int8_of(33, 50), some_rows(9, 33), some_rows(9, 50, 4)
    norm, bias = RowNorm(some_rows(1, 33, 3)[0], 1e-5), some_rows(1, 50, 5)[0]
    weight, before = int8.dequantised().numpy(), sums + bias
    exact = before + reference_product(rows, weight, norm)
    sizes = np.abs(reference_product(rows, np.eye(33, dtype=np.float32), norm)).max(axis=1, keepdims=True) * np.abs(weight).sum(axis=1)
    ThinProduct(ThinTeam(2), packed(int8), rows, sums, bias=bias, norm=norm, adds=True).run(9)
    assert (np.abs(sums - exact) <= 2.0**-15 * sizes + 1e-6 * np.abs(before)).all()


@pytest.mark.parametrize("_", ONLY_HERE)
@pytest.mark.parametrize("largest", [1e30, 1.0, -1.0, 2e-34])
@pytest.mark.parametrize("value", [127, -127])
def test_rows_of_any_size_are_served_and_no_block_leaves_its_bits(_: bool, value: int, largest: float) -> None:
    """All numbers of one sign and of the largest magnitude: the furthest that a block can go."""
    rows = np.full((3, 1024), largest, np.float32)
    matrix = ThinMatrix.pack_fixed8(np.full((20, 1024), value, np.int8), np.ones(20, np.float32))
    np.testing.assert_allclose(product(matrix, rows), largest * value * 1024.0, rtol=1e-6)


@pytest.mark.parametrize("_", ONLY_HERE)
def test_rows_keep_sixteen_bits_of_their_blocks_largest(_: bool) -> None:
    """One of 15 bits would be twice as far off."""
    matrix = ThinMatrix.pack_fixed8(np.eye(256, dtype=np.int8), np.ones(256, np.float32))
    rows = some_rows(5, 256)
    rows[:, 100] *= 1000.0
    largest = np.abs(rows.reshape(5, -1, BLOCK)).max(axis=2).repeat(BLOCK, axis=1)
    errors = (np.abs(product(matrix, rows) - rows) * LARGEST / largest).max(axis=1)
    assert (errors <= 0.51).all()
    assert (errors > 0.4).all(), "finer steps than 16 bits have"


@pytest.mark.parametrize("_", ONLY_HERE)
def test_what_is_too_small_for_a_scale_is_nothing(_: bool) -> None:
    rows = np.full((2, 64), 1e-35, np.float32)
    rows[1, 40:] = 1.0
    out = product(ThinMatrix.pack_fixed8(np.ones((20, 64), np.int8), np.ones(20, np.float32)), rows)
    assert not out[0].any()
    np.testing.assert_allclose(out[1], 24.0, rtol=1e-4)


@pytest.mark.parametrize("_", ONLY_HERE)
def test_rows_of_zeros_give_the_bias_and_what_is_no_number_gives_none(_: bool) -> None:
    matrix = packed(int8_of(40, 30))
    rows, bias = some_rows(4, 40), some_rows(1, 30, 2)[0]
    rows[0], rows[1, 7], rows[2, 39] = 0.0, np.nan, np.inf
    out = product(matrix, rows, bias=bias)
    np.testing.assert_array_equal(out[0], bias)
    assert np.isnan(out[1:3]).all()
    np.testing.assert_array_equal(out[3], product(matrix, rows[3:], bias=bias)[0])


def test_a_scale_is_needed_for_each_column() -> None:
    with pytest.raises(ValueError, match="for each output"):
        ThinMatrix.pack_fixed8(np.zeros((4, 3), np.int8), np.ones(3, np.float32))


def test_they_are_for_processors_that_multiply_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thin_product, "multiplies_fixed16", lambda: False)
    with pytest.raises(ValueError, match="multiply whole numbers of 16 bits"):
        ThinProduct(ThinTeam(1), packed(int8_of(20, 30)), some_rows(8, 20), np.empty((8, 30), np.float32))
