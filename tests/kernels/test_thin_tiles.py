"""Many rows by tiles: rows of many inputs a part at a time, rows in blocks, products that are gated before they are written, and tiles that
somebody else has used meanwhile.

Every way is compared bit for bit with one that goes without it: few rows, or product and gate each by itself. Where there are no tiles
the same holds of what is there instead.
Run: pytest tests/kernels/test_thin_tiles.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import outrider_kernels
from outrider_kernels.thin_gate import ThinGate
from outrider_kernels.thin_matrix import PanelFormat, ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct, reference_product
from outrider_kernels.thin_program import ThinProgram
from outrider_kernels.thin_team import ThinTeam, multiplies_bfloat16, multiplies_tiles

FloatArray = npt.NDArray[np.float32]
FEW = 16  # rows that are multiplied whole
pytestmark = pytest.mark.skipif(not multiplies_bfloat16(), reason="this processor does not multiply bfloat16 numbers")


@pytest.fixture(scope="module", params=[1, 2])
def team(request: pytest.FixtureRequest) -> ThinTeam:
    """One thread, and one that shares out groups of columns."""
    return ThinTeam(request.param)


def some(num_rows: int, length: int, seed: int = 0) -> FloatArray:
    """Numbers that bfloat16 holds."""
    values = np.random.default_rng(seed).standard_normal((num_rows, length)).astype(np.float32)
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def in_parts(team: ThinTeam, matrix: ThinMatrix, rows: FloatArray, bias: FloatArray | None, start: FloatArray | None) -> FloatArray:
    """The product of FEW rows at a time, one after another."""
    out = np.zeros((len(rows), matrix.num_outputs), np.float32) if start is None else start.copy()
    for begin in range(0, len(rows), FEW):
        end = min(begin + FEW, len(rows))
        some_out = out[begin:end].copy()
        ThinProduct(team, matrix, rows[begin:end].copy(), some_out, bias=bias, adds=start is not None).run(end - begin)
        out[begin:end] = some_out
    return out


# 3,072 inputs are multiplied whole, 3,104 in parts of 2,048; 2,048 inputs are 256 rows at a time; 20,000 are no whole tiles
@pytest.mark.parametrize("inputs", [384, 2048, 3072, 3104, 6176, 20000, 20032])
@pytest.mark.parametrize("num_rows", [33, 48, 64, 65, 300])
def test_many_rows_have_the_bits_of_few(team: ThinTeam, inputs: int, num_rows: int) -> None:
    """Columns: whole groups, a panel alone, and one that ends early; more groups than sums of parts are kept of."""
    rows, weight = some(num_rows, inputs, 1), some(2 * 16 * 11 + 16 + 5, inputs, 2)
    matrix, bias, start = ThinMatrix.pack_pairs(weight), some(1, len(weight), 3)[0], some(num_rows, len(weight), 4)
    assert matrix.format is PanelFormat.PAIRS
    for added, begun in ((None, None), (bias, start)):
        expected = in_parts(ThinTeam(1), matrix, rows, added, begun)
        out = np.full_like(expected, np.nan) if begun is None else begun.copy()
        ThinProduct(team, matrix, rows, out, bias=added, adds=begun is not None).run(num_rows)
        np.testing.assert_array_equal(out, expected)
    np.testing.assert_allclose(expected, bias + start + reference_product(rows, weight), atol=4e-6 * inputs + 1e-3)


def test_what_lies_behind_the_last_row_decides_nothing(team: ThinTeam) -> None:
    """What the buffer holds beyond the rows asked for is no number; with an odd tile of rows a pair of them is not filled."""
    rows, matrix = np.full((96, 4096), np.nan, np.float32), ThinMatrix.pack_pairs(some(64, 4096))
    rows[:41] = some(41, 4096, 1)
    out = np.full((96, 64), 7.0, np.float32)
    ThinProduct(team, matrix, rows, out).run(41)
    assert np.isfinite(out[:41]).all()
    assert (out[41:] == 7.0).all()


# lengths: of whole panels with rows that are a multiple of a kilobyte apart and not, of rows that are multiplied by parts, of panels that
# end early, of half a tile at the end, and an odd one
@pytest.mark.parametrize("length", [512, 896, 1024, 3232, 100, 48, 33])
@pytest.mark.parametrize("num_rows", [1, 16, 32, 33, 40, 64, 300])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_that_is_gated_at_once_hands_on_what_it_would_by_itself(
    team: ThinTeam, length: int, num_rows: int, has_bias: bool
) -> None:
    """To the bit, for any number of rows, with a norm before it. The gates' own buffer is nobody's business afterwards."""
    hidden = 384
    first, second = ThinMatrix.pack_pairs(some(2 * length, hidden, 1)), ThinMatrix.pack_pairs(some(hidden, length, 2))
    norm = RowNorm(some(1, hidden, 3)[0], 1e-5)
    rows, results = some(num_rows, hidden, 4), []
    for together in (True, False):
        gate_up, gated, out = (np.zeros((num_rows, each), np.float32) for each in (2 * length, length, hidden))
        up = ThinProduct(team, first, rows, gate_up, norm=norm, bias=some(1, 2 * length, 5)[0] if has_bias else None)
        down = ThinProduct(team, second, gated, out)
        gate = ThinGate(team, gate_up, gated, down)
        if together:
            ThinProgram(team, [up, gate, down]).run(num_rows, [])
        else:
            for part in (up, gate, down):
                part.run(num_rows)
        results.append(out)
    np.testing.assert_array_equal(results[0], results[1])


def test_a_product_of_other_gated_rows_finds_its_own(team: ThinTeam) -> None:
    """Behind a gate whose rows another product takes."""
    hidden, length, num_rows = 64, 96, 70
    layers, results = [], []
    for at in range(2):
        rows, gate_up, gated, out = (some(num_rows, each, at) for each in (hidden, 2 * length, length, hidden))
        up, down = (ThinMatrix.pack_pairs(some(*shape, 2 + at)) for shape in ((2 * length, hidden), (hidden, length)))
        product = ThinProduct(team, down, gated, out)
        layers.append((ThinProduct(team, up, rows, gate_up), ThinGate(team, gate_up, gated, product), product))
        results.append(out)
    for layer in layers:
        ThinProgram(team, layer).run(num_rows, [])
    expected = [out.copy() for out in results]
    first, second = layers
    ThinProgram(team, second[:2]).run(num_rows, [])
    for out in results:
        out[...] = np.nan
    ThinProgram(team, [*first[:2], second[2], first[2]]).run(num_rows, [])
    np.testing.assert_array_equal(results, expected)


def test_a_product_is_written_where_others_read_it(team: ThinTeam) -> None:
    """One whose gates go on as floats is not gated at once."""
    hidden, length, num_rows = 64, 32, 20
    matrix, rows = ThinMatrix.pack_pairs(some(2 * length, hidden, 1)), some(num_rows, hidden, 2)
    gate_up, gated = np.zeros((num_rows, 2 * length), np.float32), np.zeros((num_rows, length), np.float32)
    ThinProgram(team, [ThinProduct(team, matrix, rows, gate_up), ThinGate(team, gate_up, gated)]).run(num_rows, [])
    expected = np.zeros_like(gate_up)
    ThinProduct(team, matrix, rows, expected).run(num_rows)
    np.testing.assert_array_equal(gate_up, expected)
    assert gated.any()


BETWEEN = """
import numpy as np, torch
from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_program import ThinProgram
from outrider_kernels.thin_team import ThinTeam
torch.set_num_threads(1)
team, out = ThinTeam(1), np.zeros((16, 64), np.float32)
product = ThinProduct(team, ThinMatrix.pack_pairs(np.ones((64, 64), np.float32)), np.ones((16, 64), np.float32), out)
program = ThinProgram(team, [product])
for run in (lambda: product.run(16), lambda: program.run(16, [])) * 2:
    run()
    torch.nn.functional.linear(torch.ones(64, 256).bfloat16(), torch.ones(256, 256).bfloat16())
assert (out == 64.0).all()
"""


@pytest.mark.skipif(not multiplies_tiles(), reason="this processor has no tiles, or may not use them")
def test_another_library_may_multiply_tiles_on_the_same_thread() -> None:
    """torch leaves the thread's tiles in no shape at all; ours are no illegal instruction then. In a process that may die of it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(outrider_kernels.__file__).parents[1])}
    ended = subprocess.run([sys.executable, "-c", BETWEEN], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
