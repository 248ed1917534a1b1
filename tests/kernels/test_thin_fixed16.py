"""Thin products of whole numbers of 16 bits: against what their blocks are said to be, bit for bit, and from one number of rows to
another; at the ends of the range, with outliers, and with rows that are no numbers; and nearer to the definition than rows rounded to
bfloat16.

Where the processor does not multiply such numbers, the packing is checked, and that products are refused.
Run: pytest tests/kernels/test_thin_fixed16.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from broken_c import break_thin
from fakes_thin import FloatArray, bfloat16, product, some_rows, sums_by_blocks, weights, with_outliers
from outrider_kernels import thin_product, thin_team
from outrider_kernels.thin_matrix import PanelFormat, ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct, reference_product
from outrider_kernels.thin_team import ThinTeam, has_short_vectors, multiplies_fixed16, prefers_fixed16, takes_bfloat16

SHAPES = [(1, 1), (5, 3), (16, 16), (17, 40), (32, 33), (64, 7), (65, 48), (384, 100), (96, 1040), (130, 113)]  # blocks, panels, groups
MOST = 19
LARGEST = 4095.0  # as in thin/fixed16.c
ONLY_HERE = [True] if multiplies_fixed16() else []
WIDE_HERE = [True] if prefers_fixed16() and not has_short_vectors() else []
WIDE_BREAKS = {
    "another row's scale": ("fixed16_wide.c", "scales[m * len + at_block]", "scales[at_block]"),
    "a panel in the place of others": ("fixed16_wide.c", "weights + n * stride + k * PANEL", "weights + (n ? stride : 0) + k * PANEL"),
    "a block too long": ("fixed16_wide.c", "min(k + BLOCK_PAIRS, pairs)", "min(k + 2 * BLOCK_PAIRS, pairs)"),
    "half of a block passed over": ("fixed16.c", "_mm512_unpackhi_epi32(of[2 * n]", "_mm512_unpacklo_epi32(of[2 * n]"),
}


def as_blocks(rows: FloatArray, weight: FloatArray) -> FloatArray:
    """With the columns as they are packed."""
    most = np.abs(weight).max(axis=1)
    columns = np.exp2(np.floor(np.log2(np.where(most > 0, most, 1.0))) + 1 - 14).astype(np.float32)
    scaled: FloatArray = sums_by_blocks(rows, np.rint(weight / columns[:, None]).astype(np.int64), LARGEST) * columns
    return scaled


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_weights_are_rounded_to_a_fifteenth_bit_of_their_columns_largest_at_two_bytes_each(inputs: int, outputs: int) -> None:
    weight = weights(inputs, outputs)
    matrix = ThinMatrix.pack_fixed16(weight)
    assert matrix.format is PanelFormat.FIXED16
    off = np.abs(matrix.unpacked() - weight.T)
    assert (off <= 2.0**-14 * np.abs(weight).max(axis=1)).all()
    large = np.abs(weight.T) >= 2.0**-5 * np.abs(weight).max(axis=1)
    assert not off[large].any(), "bfloat16 numbers within 2^-5 of the largest stay what they are"
    assert matrix.panels.nbytes == 2 * (inputs + inputs % 2) * ((outputs + 15) // 16 * 16)


def test_columns_of_any_size_are_kept() -> None:
    """The largest and the smallest that a float has, and zeros; a float just below a power of two, which rounds up to it."""
    weight = bfloat16(some_rows(9, 40, 7))
    weight[0] *= np.float32(2.0**120) / np.abs(weight[0]).max()
    weight[1] *= np.float32(2.0**-100) / np.abs(weight[1]).max()
    weight[2] = 0.0
    weight[3] = np.float32(2.0**-149)
    weight[4] = np.nextafter(np.float32(1.0), np.float32(0.0))
    unpacked = ThinMatrix.pack_fixed16(weight).unpacked().T
    assert (np.abs(unpacked - weight) <= 2.0**-14 * np.abs(weight).max(axis=1, keepdims=True) + 2.0**-127).all()


def check_blocks(inputs: int, outputs: int) -> None:
    weight, rows = weights(inputs, outputs), some_rows(MOST, inputs)
    matrix, expected = ThinMatrix.pack_fixed16(weight), as_blocks(rows, weight)
    for num_rows in range(1, MOST + 1):  # tiles of every height, with 256 bits and 512, one and two of them
        for threads in (1, 3):
            np.testing.assert_array_equal(product(matrix, rows[:num_rows].copy(), threads=threads), expected[:num_rows])


@pytest.mark.parametrize("_", ONLY_HERE)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products_are_these_very_blocks(_: bool, inputs: int, outputs: int) -> None:
    check_blocks(inputs, outputs)


@pytest.mark.parametrize("_", WIDE_HERE)
def test_256_bits_give_the_same_where_there_are_512(_: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_thin(monkeypatch, tmp_path, "fixed16.c", "call->format == FIXED16 && thin_multiplies_fixed16_wide()", "0")
    for inputs, outputs in SHAPES:
        check_blocks(inputs, outputs)


@pytest.mark.parametrize("_", WIDE_HERE)
@pytest.mark.parametrize("broken", list(WIDE_BREAKS))
def test_broken_products_with_512_bits_would_be_noticed(broken: str, _: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_thin(monkeypatch, tmp_path, *WIDE_BREAKS[broken])
    with pytest.raises(AssertionError):
        check_blocks(384, 100)


@pytest.mark.parametrize("_", ONLY_HERE)
def test_it_adds_to_what_is_there_and_norms_before(_: bool) -> None:
    weight, rows, sums = weights(33, 50), some_rows(9, 33), some_rows(9, 50, 4)
    norm, bias = RowNorm(some_rows(1, 33, 3)[0], 1e-5), some_rows(1, 50, 5)[0]
    before = sums + bias
    exact = before + reference_product(rows, weight, norm)
    sizes = np.abs(reference_product(rows, np.eye(33, dtype=np.float32), norm)).max(axis=1, keepdims=True) * np.abs(weight).sum(axis=1)
    ThinProduct(ThinTeam(2), ThinMatrix.pack_fixed16(weight), rows, sums, bias=bias, norm=norm, adds=True).run(9)
    assert (np.abs(sums - exact) <= 2.0**-12 * sizes + 1e-6 * np.abs(before)).all()


@pytest.mark.parametrize("_", ONLY_HERE)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("largest", [1e30, 65504.0, 1.0, 6e-8, 2e-35])
def test_rows_of_any_size_are_served_and_no_block_leaves_32_bits(_: bool, largest: float, sign: float) -> None:
    """All numbers of one sign and of the largest magnitude, weights as near to 2^14 as floats come: the furthest that a block can go."""
    rows = np.full((3, 1024), sign * largest, np.float32)
    weight = np.full((20, 1024), np.nextafter(np.float32(0.5), np.float32(0.0)), np.float32)
    np.testing.assert_allclose(product(ThinMatrix.pack_fixed16(weight), rows), reference_product(rows, weight), rtol=1e-4)


@pytest.mark.parametrize("_", ONLY_HERE)
def test_what_is_too_small_for_a_scale_is_nothing(_: bool) -> None:
    for inputs in (64, 224):  # blocks by themselves, and four together before them
        rows = np.full((2, inputs), 1e-36, np.float32)
        rows[1, inputs - 24 :] = rows[1, : inputs // 4] = 1.0
        out = product(ThinMatrix.pack_fixed16(np.ones((20, inputs), np.float32)), rows)
        assert not out[0].any()
        np.testing.assert_allclose(out[1], 24.0 + inputs // 4, rtol=1e-3)


@pytest.mark.parametrize("_", ONLY_HERE)
@pytest.mark.parametrize("outlier", [1.0, 100.0, 10_000.0])
def test_it_is_nearer_to_the_definition_than_bfloat16_rows_are(_: bool, outlier: float) -> None:
    """Of rows as they come, and with a few inputs far above the others: only their neighbours lose by them. With one scale a row they all
    would, and the second bound is then missed by far."""
    weight = bfloat16(np.random.default_rng(0).standard_normal((200, 1024)).astype(np.float32))
    rows = with_outliers(16, 1024, outlier)
    exact = rows.astype(np.float64) @ weight.astype(np.float64).T
    ours, theirs = product(ThinMatrix.pack_fixed16(weight), rows) - exact, bfloat16(rows).astype(np.float64) @ weight.T - exact
    assert np.sqrt((ours**2).mean()) < 0.5 * np.sqrt((theirs**2).mean())
    whole = np.abs(rows).max(axis=1, keepdims=True) / 4095.0
    coarse = (np.rint(rows / whole) * whole).astype(np.float64) @ weight.T - exact
    assert outlier == 1.0 or np.sqrt((ours**2).mean()) < 0.5 * np.sqrt((coarse**2).mean())


@pytest.mark.parametrize("_", ONLY_HERE)
@pytest.mark.parametrize("inputs", [40, 200])
def test_rows_of_zeros_give_the_bias_and_what_is_no_number_gives_none(_: bool, inputs: int) -> None:
    matrix = ThinMatrix.pack_fixed16(weights(inputs, 30))
    rows, bias = some_rows(4, inputs), some_rows(1, 30, 2)[0]
    rows[0], rows[1, 7], rows[2, 39] = 0.0, np.nan, np.inf
    out = product(matrix, rows, bias=bias)
    np.testing.assert_array_equal(out[0], bias)
    assert np.isnan(out[1:3]).all()
    np.testing.assert_array_equal(out[3], product(matrix, rows[3:], bias=bias)[0])


@pytest.mark.parametrize("_", ONLY_HERE)
def test_weights_that_are_no_numbers_spoil_their_column_alone(_: bool) -> None:
    weight = weights(40, 30)
    weight[3, 5], weight[4, 39] = np.inf, np.nan
    out = product(ThinMatrix.pack_fixed16(weight), some_rows(5, 40))
    assert np.isnan(out[:, 3:5]).all()
    assert np.isfinite(np.delete(out, (3, 4), 1)).all()


def test_whole_numbers_are_for_processors_that_multiply_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thin_product, "multiplies_fixed16", lambda: False)
    with pytest.raises(ValueError, match="multiply whole numbers of 16 bits"):
        ThinProduct(ThinTeam(1), ThinMatrix.pack_fixed16(weights(20, 30)), some_rows(8, 20), np.empty((8, 30), np.float32))


@pytest.mark.parametrize(("can_be", "wide", "vector_len", "bfloat16_too", "preferred"), [
    (1, 0, 8, 0, True),
    (1, 0, 16, 0, False),
    (1, 0, 16, 1, False),
    (1, 1, 16, 0, True),
    (0, 0, 8, 0, False),
])  # fmt: skip
def test_they_are_preferred_where_floats_come_eight_at_a_time_or_whole_numbers_thirty_two(
    monkeypatch: pytest.MonkeyPatch, can_be: int, wide: int, vector_len: int, bfloat16_too: int, preferred: bool
) -> None:
    says = {
        "thin_multiplies_fixed16": can_be,
        "thin_multiplies_fixed16_wide": wide,
        "thin_vector_len": vector_len,
        "thin_multiplies_pairs": bfloat16_too,
    }
    monkeypatch.setattr(thin_team, "_says", says.__getitem__)
    assert prefers_fixed16() == preferred
    assert takes_bfloat16() == (preferred or bool(bfloat16_too))
