"""A matrix that is taken to come from memory is fetched and multiplied in another order, slice by slice, and no bit changes.

Some products of several rows with a matrix that a cache has go by slices as well; a row by itself never does.

Run: pytest tests/kernels/test_thin_streamed.py
"""

from __future__ import annotations

import numpy as np
import pytest

from fakes_thin import PACKINGS, FloatArray, packed, some_rows
from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct
from outrider_kernels.thin_team import ThinTeam

SLICE = 1024  # inputs, or pairs of them, as in thin/thin.h
OUTPUTS = 77  # the last panel ends early
LENGTHS = [40, SLICE, SLICE + 1, 2 * SLICE, 2 * SLICE + 70, 4 * SLICE + 3]
ROWS = (1, 2, 5, 6, 7, 8, 11, 12, 13, 19, 40)  # of one tile, of several, the least and the most in each


def bits(team: ThinTeam, matrix: ThinMatrix, num_rows: int, streamed: bool, panels: tuple[int, ...] = ()) -> FloatArray:
    """Added, with a norm and a bias, to what was there."""
    rows, out = some_rows(num_rows, matrix.num_inputs, 2), some_rows(num_rows, OUTPUTS, 3)
    norm = RowNorm(some_rows(1, matrix.num_inputs, 4)[0], 1e-5)
    product = ThinProduct(team, matrix, rows, out, bias=some_rows(1, OUTPUTS, 5)[0], norm=norm, adds=True)
    if streamed:
        product.stream()
    if panels:
        product.limit_to(np.array(panels, np.int32))
    product.run(num_rows)
    return out


@pytest.mark.parametrize("inputs", LENGTHS)
@pytest.mark.parametrize("packing", PACKINGS)
def test_streaming_changes_no_bit(packing: str, inputs: int) -> None:
    matrix = packed(some_rows(OUTPUTS, inputs, 1), packing)
    for num_threads in (1, 2):
        team = ThinTeam(num_threads)
        for num_rows in ROWS:
            np.testing.assert_array_equal(bits(team, matrix, num_rows, True), bits(team, matrix, num_rows, False))


@pytest.mark.parametrize("inputs", LENGTHS[:4])
@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_together_have_the_bits_of_each_by_itself(packing: str, inputs: int) -> None:
    matrix, team = packed(some_rows(OUTPUTS, inputs, 1), packing), ThinTeam(2)
    for num_rows in (7, 13, 19, 24, 25):  # of two tiles to five
        rows, out = some_rows(num_rows, inputs, 2), some_rows(num_rows, OUTPUTS, 3)
        alone = out.copy()
        ThinProduct(team, matrix, rows, out, adds=True).run(num_rows)
        for at in range(num_rows):
            ThinProduct(team, matrix, rows[at : at + 1], alone[at : at + 1], adds=True).run(1)
        np.testing.assert_array_equal(out, alone)


@pytest.mark.parametrize("packing", PACKINGS)
def test_listed_panels_are_streamed_too_and_the_others_left(packing: str) -> None:
    matrix, team = packed(some_rows(OUTPUTS, 2 * SLICE + 70, 1), packing), ThinTeam(2)
    for panels in ((0,), (1, 2, 4), (4,)):
        for num_rows in (1, 7, 13):
            found = bits(team, matrix, num_rows, True, panels)
            np.testing.assert_array_equal(found, bits(team, matrix, num_rows, False, panels))
            untouched = np.repeat(~np.isin(np.arange(5), panels), 16)[:OUTPUTS]
            np.testing.assert_array_equal(found[:, untouched], some_rows(num_rows, OUTPUTS, 3)[:, untouched])


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_most_rows_and_more_than_are_kept_between_slices(packing: str) -> None:
    matrix, team = packed(some_rows(OUTPUTS, 2 * SLICE + 30, 1), packing), ThinTeam(2)
    for num_rows in (512, 513):
        np.testing.assert_array_equal(bits(team, matrix, num_rows, True), bits(team, matrix, num_rows, False))
