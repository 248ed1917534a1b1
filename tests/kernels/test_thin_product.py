"""Thin products against their definition, and bit for bit from one number of rows to another; the gate beside them.

Run: pytest tests/kernels/test_thin_product.py
"""

from __future__ import annotations

import threading
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from outrider_kernels import thin_product
from outrider_kernels.int8_weight import Int8Weight
from outrider_kernels.thin_gate import ThinGate, reference_gate
from outrider_kernels.thin_matrix import PanelFormat, ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct, reference_product
from outrider_kernels.thin_team import ThinTeam, multiplies_bfloat16, multiplies_tiles

FloatArray = npt.NDArray[np.float32]
SHAPES = [(1, 1), (5, 3), (16, 16), (17, 40), (384, 100), (96, 1040), (2, 33)]  # inputs, outputs: panels and lanes that end early
MOST = 23
# how a matrix may be packed on this machine
PACKINGS = ["floats", "halves", *(["pairs"] if multiplies_bfloat16() else [])]


@pytest.fixture(scope="module", params=[1, 2, 3])
def team(request: pytest.FixtureRequest) -> ThinTeam:
    """Teams of several sizes, more threads than cores among them."""
    return ThinTeam(request.param)


def weights(inputs: int, outputs: int, half: bool, seed: int = 0) -> FloatArray:
    """Random weights, bfloat16 numbers if wanted."""
    weight = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)
    return (weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if half else weight


def packed(weight: FloatArray, packing: str) -> ThinMatrix:
    """The matrix in one of PACKINGS."""
    matrix = ThinMatrix.pack_pairs(weight) if packing == "pairs" else ThinMatrix.pack(weight)
    assert matrix.format is PanelFormat[packing.upper()]
    return matrix


def rounded(values: FloatArray) -> FloatArray:
    """To bfloat16 numbers, as torch does it."""
    return cast(FloatArray, torch.from_numpy(values).bfloat16().float().numpy())


def some_rows(num_rows: int, inputs: int, seed: int = 1) -> FloatArray:
    """Random rows."""
    return np.random.default_rng(seed).standard_normal((num_rows, inputs)).astype(np.float32)


def product(
    team: ThinTeam, matrix: ThinMatrix, rows: FloatArray, bias: FloatArray | None = None, norm: RowNorm | None = None
) -> FloatArray:
    """A product through buffers of its own."""
    out = np.full((len(rows), matrix.num_outputs), np.nan, np.float32)
    ThinProduct(team, matrix, rows, out, bias=bias, norm=norm).run(len(rows))
    return out


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products_are_the_definition(team: ThinTeam, inputs: int, outputs: int, packing: str) -> None:
    """Of pairs the definition of what is rounded: odd numbers of inputs too, whose last pair has nothing behind it."""
    weight, as_read = weights(inputs, outputs, packing == "halves"), rounded if packing == "pairs" else np.asarray
    matrix = packed(weight, packing)
    bias, norm = some_rows(1, outputs, 2)[0], RowNorm(some_rows(1, inputs, 3)[0], 1e-5)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, MOST):
        rows = some_rows(num_rows, inputs)
        tolerance = 2e-6 * np.sqrt(inputs) * np.abs(rows).max() * np.abs(weight).max() + 1e-6
        expected = reference_product(as_read(rows), as_read(weight)) + bias
        np.testing.assert_allclose(product(team, matrix, rows, bias), expected, rtol=1e-5, atol=tolerance)
        if packing != "pairs":  # a normed number between two bfloat16 numbers may be rounded to either
            expected = reference_product(rows, weight, norm)
            np.testing.assert_allclose(product(team, matrix, rows, None, norm), expected, rtol=1e-4, atol=3 * tolerance)


@pytest.mark.parametrize("packing", PACKINGS[1:])
def test_a_norm_comes_before_the_rounding(team: ThinTeam, packing: str) -> None:
    """Rows whose root mean square is one, and scales that are powers of two: the norm changes no number's place between two others."""
    rows = np.sign(some_rows(9, 40))
    scale = np.exp2(np.arange(40) % 5).astype(np.float32)
    scale[3] = 1.0 + 2.0**-9  # no bfloat16 number
    weight = weights(40, 50, half=True)
    exact, after = (reference_product(normed, weight) for normed in (rows * scale, rounded(rows * scale)))
    assert np.abs(exact - after).max() > 1e-3, "what is not rounded would be seen"
    got = product(team, packed(weight, packing), rows, None, RowNorm(scale, 0.0))
    np.testing.assert_allclose(got, after if packing == "pairs" else exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("inputs", [33, 64])
@pytest.mark.parametrize("packing", PACKINGS)
def test_it_adds_to_what_is_there(team: ThinTeam, packing: str, inputs: int) -> None:
    """64: whole tiles, where there are tiles."""
    weight, rows = weights(inputs, 50, half=packing != "floats"), rounded(some_rows(MOST, inputs))
    sums, bias = some_rows(MOST, 50, 4), some_rows(1, 50, 5)[0]
    expected = sums + bias + reference_product(rows, weight)
    ThinProduct(team, packed(weight, packing), rows, sums, adds=True, bias=bias).run(MOST)
    np.testing.assert_allclose(sums, expected, atol=1e-4)


@pytest.mark.parametrize(("inputs", "most"), [(130, MOST), (128, 2 * MOST)])
@pytest.mark.parametrize("packing", PACKINGS)
def test_a_rows_bits_depend_on_nothing_but_the_row_and_the_matrix(packing: str, inputs: int, most: int) -> None:
    """128 inputs fill whole tiles, and 46 rows three of them."""
    weight, rows, norm = weights(inputs, 77, packing != "floats"), some_rows(most, inputs), RowNorm(some_rows(1, inputs, 3)[0], 1e-5)
    matrix = packed(weight, packing)
    alone = [product(ThinTeam(1), matrix, rows[at : at + 1], None, norm)[0] for at in range(most)]
    for num_threads in (1, 2, 3):
        team = ThinTeam(num_threads)
        for num_rows in range(1, most + 1):
            for begin in (0, most - num_rows):
                for place, bits in enumerate(product(team, matrix, rows[begin : begin + num_rows].copy(), None, norm)):
                    np.testing.assert_array_equal(bits, alone[begin + place])


def by_tiles(rows: FloatArray, weight: FloatArray) -> FloatArray:
    """What the processor's manual says of tiles: of 32 inputs the even and the odd ones are a chain of multiply-adds each; their
    sum is added. A product of two bfloat16 numbers is exact in float32, and its sum with one in float64."""
    even, odd = slice(0, None, 2), slice(1, None, 2)
    sums = np.zeros((len(rows), len(weight)), np.float32)
    for begin in range(0, rows.shape[1], 32):
        chains = []
        for half in (even, odd):
            chain = np.zeros_like(sums)
            for values, factors in zip(rows[:, begin : begin + 32][:, half].T, weight[:, begin : begin + 32][:, half].T, strict=True):
                chain = (chain.astype(np.float64) + np.outer(values, factors)).astype(np.float32)
            chains.append(chain)
        sums += chains[0] + chains[1]
    return sums


@pytest.mark.skipif(not multiplies_tiles(), reason="this processor has no tiles, or may not use them")
@pytest.mark.parametrize("num_rows", [1, 5, 16, 17, 40])
def test_whole_tiles_are_multiplied_as_the_processors_manual_says(team: ThinTeam, num_rows: int) -> None:
    """Bit for bit, which the products of other inputs are not."""
    for inputs, has_tiles in ((96, True), (94, False)):
        weight, rows = weights(inputs, 70, half=True), rounded(some_rows(num_rows, inputs))
        filled = [np.pad(each, ((0, 0), (0, 96 - inputs))) for each in (rows, weight)]
        assert (product(team, ThinMatrix.pack_pairs(weight), rows) == by_tiles(*filled)).all() == has_tiles


def test_pairs_are_for_processors_that_multiply_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thin_product, "multiplies_bfloat16", lambda: False)
    with pytest.raises(ValueError, match="bfloat16"):
        ThinProduct(ThinTeam(1), ThinMatrix.pack_pairs(weights(20, 30, half=True)), some_rows(8, 20), np.empty((8, 30), np.float32))


def test_half_weights_give_the_bits_of_the_floats_they_are(team: ThinTeam) -> None:
    weight, rows = weights(70, 64, half=True), some_rows(11, 70)
    halves = ThinMatrix.pack(weight)
    odd = np.concatenate([weight, np.full((1, 70), np.pi, np.float32)])  # one row that is no bfloat16 number keeps all as floats
    floats = ThinMatrix.pack(odd)
    assert halves.is_half
    assert not floats.is_half
    np.testing.assert_array_equal(product(team, halves, rows), product(team, floats, rows)[:, :64])


@pytest.mark.parametrize("packing", ["floats", "halves", "pairs", "bytes"])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_what_was_packed_can_be_read_again(inputs: int, outputs: int, packing: str) -> None:
    weight = weights(inputs, outputs, half=packing == "halves")
    if packing == "bytes":
        int8 = Int8Weight.of(torch.from_numpy(weight))
        matrix, expected = ThinMatrix.pack_int8(int8.values.numpy(), int8.scale.numpy()), int8.dequantised().numpy()
    else:
        matrix, expected = packed(weight, packing), rounded(weight) if packing == "pairs" else weight
    np.testing.assert_array_equal(matrix.unpacked(), expected.T)


def test_only_the_rows_asked_for_are_written(team: ThinTeam) -> None:
    rows, out = some_rows(8, 20), np.full((8, 30), 7.0, np.float32)
    ThinProduct(team, ThinMatrix.pack(weights(20, 30, half=True)), rows, out).run(3)
    assert (out[3:] == 7.0).all()
    assert (out[:3] != 7.0).all()


def test_what_does_not_fit_is_refused() -> None:
    team, matrix, rows = ThinTeam(1), ThinMatrix.pack(weights(20, 30, half=True)), some_rows(8, 20)
    with pytest.raises(ValueError, match="is not"):
        ThinProduct(team, matrix, rows, np.empty((8, 31), np.float32))
    with pytest.raises(ValueError, match="C order"):
        ThinProduct(team, matrix, np.asfortranarray(rows), np.empty((8, 30), np.float32))
    with pytest.raises(ValueError, match="each column"):
        ThinProduct(team, matrix, rows, np.empty((8, 30), np.float32), bias=np.empty(29, np.float32))


def test_a_team_serves_many_products_in_a_row_and_sleeps_between(team: ThinTeam) -> None:
    """Short products one after another are where a late thread could take part in the wrong one."""
    pairs = [(weights(inputs, outputs, True, inputs), some_rows(4, inputs)) for inputs, outputs in ((8, 640), (9, 16), (40, 33))]
    prepared = []
    for weight, rows in pairs:
        out = np.empty((4, len(weight)), np.float32)
        prepared.append((ThinProduct(team, ThinMatrix.pack(weight), rows, out), out, reference_product(rows, weight)))
    for turn in range(3000):
        one, out, expected = prepared[turn % len(prepared)]
        out[:] = np.nan
        one.run(4)
        np.testing.assert_allclose(out, expected, atol=1e-4)
        if turn % 1000 == 999:
            threading.Event().wait(0.05)  # long enough for the waiting threads to fall asleep


def test_gates_are_the_definition_and_their_place_decides_nothing() -> None:
    team = ThinTeam(1)
    for length in (1, 7, 8, 40, 129):
        gate_up = np.concatenate([some_rows(6, 2 * length) * 5, np.full((1, 2 * length), -100.0), np.full((1, 2 * length), 100.0)])
        gate_up = gate_up.astype(np.float32)
        out = np.full((8, length), np.nan, np.float32)
        ThinGate(team, gate_up, out).run(8)
        np.testing.assert_allclose(out, reference_gate(gate_up), rtol=1e-6, atol=1e-30)
        alone = np.empty((1, length), np.float32)
        ThinGate(team, np.ascontiguousarray(gate_up[3:4]), alone).run(1)
        np.testing.assert_array_equal(alone[0], out[3])
    same = np.full((1, 2 * 13), 1.2345, np.float32)
    out = np.empty((1, 13), np.float32)
    ThinGate(team, same, out).run(1)
    assert len(set(out[0].tolist())) == 1, "the lanes and what is left over after them give the same bits"


def test_a_gate_of_no_number_is_no_number() -> None:
    gate_up, out = np.full((1, 16), np.nan, np.float32), np.zeros((1, 8), np.float32)
    ThinGate(ThinTeam(1), gate_up, out).run(1)
    assert np.isnan(out).all()
