"""A row's bits depend on nothing but the row and the matrix, however that is packed: not on the rows beside it, its place among them, the
number of threads, a bias or what it is added to.

What the bits are is in the tests of each packing; of floats, halves and pairs by tiles, this too (test_thin_product.py).
Run: pytest tests/kernels/test_thin_row_bits.py
"""

from __future__ import annotations

import numpy as np
import pytest

from fakes_thin import PACKINGS, FloatArray, packed, some_rows
from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct
from outrider_kernels.thin_team import ThinTeam

MOST = 19


def bits(
    team: ThinTeam,
    matrix: ThinMatrix,
    rows: FloatArray,
    before: FloatArray,
    *,
    bias: FloatArray | None = None,
    norm: RowNorm | None = None,
    adds: bool = False,
) -> FloatArray:
    """Of rows and matrix, over or added to what was there. before: [rows, outputs]."""
    out = before.copy()
    ThinProduct(team, matrix, rows.copy(), out, bias=bias, norm=norm, adds=adds).run(len(rows))
    return out


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("inputs", [130, 384])
@pytest.mark.parametrize("packing", PACKINGS)
def test_a_rows_bits_depend_on_nothing_but_the_row_and_the_matrix(packing: str, inputs: int, biased: bool, adds: bool) -> None:
    rows, norm, before = some_rows(MOST, inputs), RowNorm(some_rows(1, inputs, 3)[0], 1e-5), some_rows(MOST, 77, 6)
    matrix, bias = packed(some_rows(77, inputs, 4), packing), some_rows(1, 77, 2)[0] if biased else None

    def run(team: ThinTeam, begin: int, end: int) -> FloatArray:
        return bits(team, matrix, rows[begin:end], before[begin:end], bias=bias, norm=norm, adds=adds)

    alone = [run(ThinTeam(1), at, at + 1)[0] for at in range(MOST)]
    for num_threads in (1, 2, 3):
        team = ThinTeam(num_threads)
        for num_rows in range(1, MOST + 1):
            for begin in (0, MOST - num_rows):
                for place, row in enumerate(run(team, begin, begin + num_rows)):
                    np.testing.assert_array_equal(row, alone[begin + place])
