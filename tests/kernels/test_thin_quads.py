"""Thin products of int8 matrices with rows that are rounded to 16 bits: against the definition on what both are rounded to, bit for bit
from one number of rows to another, at the largest sums there can be, and with rows that are no numbers.

Where the processor does not multiply bytes, the packing is checked, and that products are refused.
Run: pytest tests/kernels/test_thin_quads.py
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from outrider_kernels import thin_product
from outrider_kernels.int8_weight import Int8Weight
from outrider_kernels.thin_matrix import MOST_QUAD_INPUTS, PanelFormat, ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct, reference_product
from outrider_kernels.thin_team import ThinTeam, multiplies_bytes

FloatArray = npt.NDArray[np.float32]
SHAPES = [(1, 1), (5, 3), (16, 16), (17, 40), (384, 100), (96, 1040), (33, 7), (130, 113)]  # quads, panels and groups that end early
MOST = 13
LARGEST = 32639  # as in thin/quads.c
ONLY_HERE = [True] if multiplies_bytes() else []


def some_rows(num_rows: int, inputs: int, seed: int = 1) -> FloatArray:
    """Rows of very different sizes."""
    generator = np.random.default_rng(seed)
    sizes = np.exp(3.0 * generator.standard_normal((num_rows, 1)))
    return (generator.standard_normal((num_rows, inputs)) * sizes).astype(np.float32)


def rounded(rows: FloatArray) -> npt.NDArray[np.float64]:
    """What a row is multiplied as."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    steps = np.where(largest > 0, largest / np.float32(LARGEST), np.float32(1.0)).astype(np.float64)
    wholes: npt.NDArray[np.float64] = np.rint(rows.astype(np.float64) / steps) * steps
    return wholes


def quantised(inputs: int, outputs: int, seed: int = 0) -> tuple[ThinMatrix, FloatArray]:
    """The packed matrix, and the float32 matrix that it is."""
    generator = np.random.default_rng(seed)
    weight = generator.standard_normal((outputs, inputs)) * np.exp(generator.standard_normal((outputs, 1)))
    int8 = Int8Weight.of(torch.from_numpy(weight.astype(np.float32)))
    return ThinMatrix.pack_quads(int8.values.numpy(), int8.scale.numpy()), int8.dequantised().numpy()


def product(
    matrix: ThinMatrix, rows: FloatArray, *, threads: int = 1, bias: FloatArray | None = None, norm: RowNorm | None = None
) -> FloatArray:
    out = np.full((len(rows), matrix.num_outputs), np.nan, np.float32)
    ThinProduct(ThinTeam(threads), matrix, rows, out, bias=bias, norm=norm).run(len(rows))
    return out


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_it_is_the_matrix_a_byte_a_weight(inputs: int, outputs: int) -> None:
    matrix, dequantised = quantised(inputs, outputs)
    assert matrix.format is PanelFormat.QUADS
    np.testing.assert_array_equal(matrix.unpacked(), dequantised.T)
    assert matrix.panels.nbytes == (inputs + 3) // 4 * 4 * ((outputs + 15) // 16 * 16)


@pytest.mark.parametrize("_", ONLY_HERE)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_products_are_the_definition_on_what_is_rounded(_: bool, inputs: int, outputs: int, threads: int) -> None:
    matrix, dequantised = quantised(inputs, outputs)
    bias = some_rows(1, outputs, 2)[0]
    for num_rows in range(1, MOST + 1):
        rows = some_rows(num_rows, inputs)
        exact = rounded(rows) @ dequantised.astype(np.float64).T + bias
        # a value half-way between two steps may be rounded to either: a step of one input, and float32's own
        step = np.abs(rows).max(axis=1, keepdims=True) / LARGEST * np.abs(dequantised).max(axis=1)
        ours = product(matrix, rows, threads=threads, bias=bias)
        assert (np.abs(ours - exact) <= 1.01 * step + 1e-6 * (np.abs(exact) + np.abs(bias))).all()


@pytest.mark.parametrize("_", ONLY_HERE)
def test_rows_keep_sixteen_bits_of_their_largest(_: bool) -> None:
    matrix = ThinMatrix.pack_quads(np.eye(256, dtype=np.int8), np.ones(256, np.float32))
    rows = some_rows(5, 256)
    errors = np.abs(product(matrix, rows) - rows).max(axis=1) * LARGEST / np.abs(rows).max(axis=1)
    assert (errors <= 0.51).all()
    assert (errors > 0.4).all(), "finer steps than 16 bits have"


@pytest.mark.parametrize("_", ONLY_HERE)
@pytest.mark.parametrize("value", [1.0, -1.0, -128 / LARGEST, 127 / LARGEST])
@pytest.mark.parametrize("weight", [127, -127])
def test_the_largest_sums_stay_within_their_bits(_: bool, value: float, weight: int) -> None:
    rows = np.full((3, MOST_QUAD_INPUTS), value, np.float32)
    rows[:, 0] = 1.0
    matrix = ThinMatrix.pack_quads(np.full((20, MOST_QUAD_INPUTS), weight, np.int8), np.ones(20, np.float32))
    expected = weight * rounded(rows).sum(axis=1)
    np.testing.assert_allclose(product(matrix, rows), np.repeat(expected[:, None], 20, 1), rtol=1e-6)


@pytest.mark.parametrize("_", ONLY_HERE)
def test_it_adds_to_what_is_there_and_norms_before(_: bool) -> None:
    matrix, dequantised = quantised(33, 50)
    rows, bias, sums = some_rows(9, 33), some_rows(1, 50, 5)[0], some_rows(9, 50, 4)
    norm = RowNorm(some_rows(1, 33, 3)[0], 1e-5)
    normed = reference_product(rows, np.eye(33, dtype=np.float32), norm)
    exact = sums + bias + rounded(normed) @ dequantised.astype(np.float64).T
    step = np.abs(normed).max(axis=1, keepdims=True) / LARGEST * np.abs(dequantised).max(axis=1)
    ThinProduct(ThinTeam(2), matrix, rows, sums, bias=bias, norm=norm, adds=True).run(9)
    assert (np.abs(sums - exact) <= 1.01 * step + 1e-6 * np.abs(exact)).all()


@pytest.mark.parametrize("_", ONLY_HERE)
def test_rows_of_zeros_give_the_bias_and_what_is_no_number_gives_none(_: bool) -> None:
    matrix, _dequantised = quantised(40, 30)
    rows, bias = some_rows(4, 40), some_rows(1, 30, 2)[0]
    rows[0], rows[1, 7], rows[2, 39] = 0.0, np.nan, np.inf
    out = product(matrix, rows, bias=bias)
    np.testing.assert_array_equal(out[0], bias)
    assert not np.isfinite(out[1:3]).any()
    np.testing.assert_array_equal(out[3], product(matrix, rows[3:], bias=bias)[0])


def test_longer_sums_than_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="may leave 32 bits"):
        ThinMatrix.pack_quads(np.zeros((1, MOST_QUAD_INPUTS + 1), np.int8), np.ones(1, np.float32))
    with pytest.raises(ValueError, match="for each output"):
        ThinMatrix.pack_quads(np.zeros((4, 3), np.int8), np.ones(3, np.float32))


def test_quads_are_for_processors_that_multiply_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thin_product, "multiplies_bytes", lambda: False)
    with pytest.raises(ValueError, match="multiply bytes"):
        ThinProduct(ThinTeam(1), quantised(20, 30)[0], some_rows(8, 20), np.empty((8, 30), np.float32))
