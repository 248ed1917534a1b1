"""Thin products of float16 numbers: against what their chains are said to be, bit for bit, and from one number of rows to another; at the
ends of the range, with outliers, and with rows that are no numbers; and nearer to the definition than rows rounded to bfloat16.

Where the processor does not multiply float16 numbers, the packing is checked, and that products are refused.
Run: pytest tests/kernels/test_thin_float16.py
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from fakes_thin import FloatArray, bfloat16, product, some_rows, weights, with_outliers
from outrider_kernels import thin_product
from outrider_kernels.thin_matrix import PanelFormat, ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct, reference_product
from outrider_kernels.thin_team import ThinTeam, multiplies_bfloat16, multiplies_float16

SHAPES = [
    (1, 1),
    (5, 3),
    (16, 16),
    (17, 40),
    (64, 33),
    (65, 48),
    (384, 100),
    (96, 1040),
    (130, 113),
]  # chains, panels, groups that end early
MOST = 19
CHAIN = 32  # of inputs of one parity, as in thin/float16.c
ONLY_HERE = [True] if multiplies_float16() else []
BOTH_HERE = [True] if multiplies_float16() and multiplies_bfloat16() else []


def powers_of(values: FloatArray) -> npt.NDArray[np.float64]:
    """[n, 1]: of each row, the power of two that its largest magnitude is one to two times of."""
    most = np.abs(values).max(axis=1, keepdims=True).astype(np.float64)
    return np.exp2(np.floor(np.log2(np.where(most > 0, most, 1.0))))


def as_chains(rows: FloatArray, weight: FloatArray) -> FloatArray:
    """What thin/float16.c says it does. A product of two float16 numbers and its sum with a third are exact in float64 here."""
    row_powers, column_powers = powers_of(rows), powers_of(weight) / 256.0
    y, w = (rows / row_powers).astype(np.float16).astype(np.float64), weight / column_powers
    parities = []
    for parity in (0, 1):
        factors, columns = y[:, parity::2], w[:, parity::2]
        sums = np.zeros((len(rows), len(weight)), np.float32)
        for begin in range(0, factors.shape[1], CHAIN):
            chain = np.zeros(sums.shape, np.float16)
            for at in range(begin, min(begin + CHAIN, factors.shape[1])):
                chain = (np.outer(factors[:, at], columns[:, at]) + chain).astype(np.float16)
            sums += chain.astype(np.float32)
        parities.append(sums)
    return ((parities[0] + parities[1]) * row_powers * column_powers.T).astype(np.float32)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_bfloat16_weights_stay_the_numbers_they_are_at_two_bytes_each(inputs: int, outputs: int) -> None:
    weight = weights(inputs, outputs)
    matrix = ThinMatrix.pack_float16(weight)
    assert matrix.format is PanelFormat.FLOAT16
    np.testing.assert_array_equal(matrix.unpacked(), weight.T)
    assert matrix.panels.nbytes == 2 * (inputs + inputs % 2) * ((outputs + 15) // 16 * 16)


def test_columns_of_any_size_keep_their_numbers() -> None:
    """The largest and the smallest that a float has, zeros, and numbers far below their column's largest."""
    weight = bfloat16(some_rows(9, 40, 7))
    weight[0] *= np.float32(2.0**120) / np.abs(weight[0]).max()
    weight[1] *= np.float32(2.0**-115) / np.abs(weight[1]).max()
    weight = bfloat16(weight)
    weight[2] = 0.0
    weight[3] = np.float32(2.0**-149)
    weight[4, 0], weight[4, 1] = 3.0, 3.0 * 2.0**-24
    weight[5, 0], weight[5, 1] = 1.0, 1.59375 * 2.0**-28
    unpacked = ThinMatrix.pack_float16(weight).unpacked().T
    np.testing.assert_array_equal(np.delete(unpacked, (3, 5), 0), np.delete(weight, (3, 5), 0))
    assert np.abs(unpacked[5] - weight[5]).max() <= 2.0**-33, "and what is lost is far below a bfloat16 number's own step"


@pytest.mark.parametrize("_", ONLY_HERE)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products_are_these_very_chains(_: bool, inputs: int, outputs: int) -> None:
    weight, rows = weights(inputs, outputs), some_rows(MOST, inputs)
    matrix, expected = ThinMatrix.pack_float16(weight), as_chains(rows, weight)
    for num_rows in (1, 2, 5, 6, 7, 8, 9, 13, MOST):
        for threads in (1, 3):
            np.testing.assert_array_equal(product(matrix, rows[:num_rows].copy(), threads=threads), expected[:num_rows])


@pytest.mark.parametrize("_", ONLY_HERE)
def test_it_adds_to_what_is_there_and_norms_before(_: bool) -> None:
    weight, rows, sums = weights(33, 50), some_rows(9, 33), some_rows(9, 50, 4)
    norm, bias = RowNorm(some_rows(1, 33, 3)[0], 1e-5), some_rows(1, 50, 5)[0]
    before = sums + bias
    exact = before + reference_product(rows, weight, norm)
    sizes = np.abs(reference_product(rows, np.eye(33, dtype=np.float32), norm)) @ np.abs(weight).T
    ThinProduct(ThinTeam(2), ThinMatrix.pack_float16(weight), rows, sums, bias=bias, norm=norm, adds=True).run(9)
    assert (np.abs(sums - exact) <= 2.0**-9 * sizes + 1e-6 * np.abs(before)).all()


@pytest.mark.parametrize("_", ONLY_HERE)
@pytest.mark.parametrize("largest", [3.3e38, 65504.0, 1.0, 6e-8, 2e-38, 1e-42])
def test_rows_of_any_size_are_served_and_no_chain_leaves_the_range(_: bool, largest: float) -> None:
    """All numbers of one sign and of the largest magnitude: the longest way a chain can go."""
    rows = np.full((3, 1024), largest, np.float32)
    weight = np.full((20, 1024), 2.0**-12 * 1.9921875, np.float32)
    expected = reference_product(rows, weight)
    np.testing.assert_allclose(product(ThinMatrix.pack_float16(weight), rows), expected, rtol=2.0**-8, atol=2e-43)


@pytest.mark.parametrize("_", BOTH_HERE)
@pytest.mark.parametrize("outlier", [1.0, 100.0, 10_000.0])
def test_it_is_nearer_to_the_definition_than_bfloat16_rows_are(_: bool, outlier: float) -> None:
    """Of rows as they come, and with a few inputs far above the others, as activations of trained models have."""
    weight = bfloat16(np.random.default_rng(0).standard_normal((200, 1024)).astype(np.float32))
    rows = with_outliers(16, 1024, outlier)
    exact = rows.astype(np.float64) @ weight.astype(np.float64).T
    ours, pairs = (product(pack(weight), rows) - exact for pack in (ThinMatrix.pack_float16, ThinMatrix.pack_pairs))
    assert np.sqrt((ours**2).mean()) < 0.8 * np.sqrt((pairs**2).mean())
    assert np.abs(ours).max() < np.abs(pairs).max()


@pytest.mark.parametrize("_", ONLY_HERE)
def test_rows_of_zeros_give_the_bias_and_what_is_no_number_gives_none(_: bool) -> None:
    matrix = ThinMatrix.pack_float16(weights(40, 30))
    rows, bias = some_rows(4, 40), some_rows(1, 30, 2)[0]
    rows[0], rows[1, 7], rows[2, 39] = 0.0, np.nan, np.inf
    out = product(matrix, rows, bias=bias)
    np.testing.assert_array_equal(out[0], bias)
    assert not np.isfinite(out[1:3]).any()
    np.testing.assert_array_equal(out[3], product(matrix, rows[3:], bias=bias)[0])


@pytest.mark.parametrize("_", ONLY_HERE)
def test_weights_that_are_no_numbers_spoil_their_column_alone(_: bool) -> None:
    weight = weights(40, 30)
    weight[3, 5], weight[4, 39] = np.inf, np.nan
    out = product(ThinMatrix.pack_float16(weight), some_rows(5, 40))
    assert not np.isfinite(out[:, 3:5]).any()
    assert np.isfinite(np.delete(out, (3, 4), 1)).all()


def test_float16_is_for_processors_that_multiply_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thin_product, "multiplies_float16", lambda: False)
    with pytest.raises(ValueError, match="multiply float16 numbers"):
        ThinProduct(ThinTeam(1), ThinMatrix.pack_float16(weights(20, 30)), some_rows(8, 20), np.empty((8, 30), np.float32))
