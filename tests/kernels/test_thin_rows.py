"""What stands between a step's products: rows normed and rounded, gates, heads turned and stored. Shared out over a team or not, every
row is done once, and its bits are those it has alone.

The sizes are such that some calls are shared out and others are not. Run: pytest tests/kernels/test_thin_rows.py
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from fakes_thin import PACKINGS, ROUNDING, packed
from outrider_kernels.thin_attention import HeadSizes, RowKeys, ThinAttention, ThinStep
from outrider_kernels.thin_gate import ThinGate
from outrider_kernels.thin_product import RowNorm, ThinProduct
from outrider_kernels.thin_program import ThinProgram
from outrider_kernels.thin_team import ThinTeam

FloatArray = npt.NDArray[np.float32]

ROW_COUNTS = [1, 2, 3, 4, 5, 7, 16, 17, 25, 30, 53, 67]
MOST = 67
LANES = 8


@pytest.fixture(scope="module", params=[(1, 1), (2, 2), (3, 3), (4, 2)])
def team(request: pytest.FixtureRequest) -> ThinTeam:
    """Threads that a team has, and how many of them it is held to."""
    has, held = request.param
    team = ThinTeam(has)
    team.hold(held)
    return team


def drawn(*shape: int, seed: int = 1) -> FloatArray:
    """Random numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def normed(rows: FloatArray, norm: RowNorm) -> FloatArray:
    """RMSNorm by the very operations of thin/rows.c, each rounded by itself, but for the last ones of odd lengths."""
    inputs = rows.shape[1]
    whole = inputs // LANES * LANES
    sums = np.zeros((len(rows), LANES), np.float32)
    for at in range(0, whole, LANES):
        sums += rows[:, at : at + LANES] * rows[:, at : at + LANES]
    total = np.zeros(len(rows), np.float32)
    for lane in range(LANES):
        total += sums[:, lane]
    for at in range(whole, inputs // 4 * 4):
        total += rows[:, at] * rows[:, at]
    for at in range(inputs // 4 * 4, inputs):
        total = (rows[:, at].astype(np.float64) ** 2 + total).astype(np.float32)
    factors = np.float32(1.0) / np.sqrt(total / np.float32(inputs) + np.float32(norm.epsilon))
    found: FloatArray = rows * factors[:, None] * norm.scale
    return found


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("inputs", [3, 8, 29, 384, 397])
def test_a_norm_is_these_very_operations(team: ThinTeam, inputs: int, packing: str) -> None:
    """Whatever becomes of the rows afterwards."""
    matrix, rows = packed(drawn(20, inputs, seed=3), packing), drawn(MOST, inputs)
    norm = RowNorm(1.0 + 0.2 * drawn(inputs, seed=2), 1e-5)
    expected = np.empty((MOST, 20), np.float32)
    ThinProduct(ThinTeam(1), matrix, normed(rows, norm), expected).run(MOST)
    out = np.empty_like(expected)
    product = ThinProduct(team, matrix, rows, out, norm=norm)
    for num_rows in ROW_COUNTS:
        out[:] = np.nan
        product.run(num_rows)
        np.testing.assert_array_equal(out[:num_rows], expected[:num_rows])
        assert np.isnan(out[num_rows:]).all()


@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("inputs", [29, 384, 401])
def test_a_rows_bits_are_those_it_has_alone(team: ThinTeam, inputs: int, packing: str, has_norm: bool) -> None:
    matrix, rows = packed(drawn(20, inputs, seed=3), packing), drawn(MOST, inputs)
    norm = RowNorm(drawn(inputs, seed=2), 1e-5) if has_norm else None
    one, out = ThinTeam(1), np.empty((MOST, 20), np.float32)
    alone = np.empty_like(out)
    for at in range(MOST):
        ThinProduct(one, matrix, rows[at : at + 1], alone[at : at + 1], norm=norm).run(1)
    for num_rows in ROW_COUNTS:
        product = ThinProduct(team, matrix, rows, out, norm=norm)  # anew, so that nothing of the last time lies there
        product.run(num_rows)
        np.testing.assert_array_equal(out[:num_rows], alone[:num_rows])


@pytest.mark.parametrize("packing", ROUNDING)
def test_what_other_rows_left_behind_is_written_over(team: ThinTeam, packing: str) -> None:
    """The same product for other rows, several times: rows that nobody prepares anew would show."""
    matrix, rows, out = packed(drawn(20, 401, seed=3), packing), drawn(MOST, 401), np.empty((MOST, 20), np.float32)
    product = ThinProduct(team, matrix, rows, out)
    for seed in range(5, 9):
        rows[:] = drawn(MOST, 401, seed=seed)
        product.run(MOST)
        again = np.empty_like(out)
        ThinProduct(ThinTeam(1), matrix, rows, again).run(MOST)
        np.testing.assert_array_equal(out, again)


@pytest.mark.parametrize("length", [1, 7, 16, 127, 128, 129, 400, 1024])
def test_gates_are_gated_once_each_and_as_they_are_alone(team: ThinTeam, length: int) -> None:
    gate_up, alone = 3.0 * drawn(MOST, 2 * length), np.empty((MOST, length), np.float32)
    for at in range(MOST):
        ThinGate(ThinTeam(1), gate_up[at : at + 1], alone[at : at + 1]).run(1)
    out = np.empty_like(alone)
    gate = ThinGate(team, gate_up, out)
    for num_rows in ROW_COUNTS:
        out[:] = np.nan
        gate.run(num_rows)
        np.testing.assert_array_equal(out[:num_rows], alone[:num_rows])
        assert np.isnan(out[num_rows:]).all()


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("length", [1, 7, 129, 400])
def test_a_gate_hands_on_what_the_next_product_takes(team: ThinTeam, length: int, packing: str) -> None:
    """The bits of a product that rounds for itself what lies in between, and only bfloat16 numbers go past it."""
    gate_up, matrix = 3.0 * drawn(MOST, 2 * length), packed(drawn(20, length, seed=3), packing)
    between = np.empty((MOST, length), np.float32)
    ThinGate(team, gate_up, between).run(MOST)
    expected, out = np.empty((2, MOST, 20), np.float32)
    ThinProduct(team, matrix, between, expected).run(MOST)
    between[:] = np.nan
    product = ThinProduct(team, matrix, between, out)
    gate = ThinGate(team, gate_up, between, into=product)
    for num_rows in ROW_COUNTS:
        out[:] = np.nan
        ThinProgram(team, [gate, product]).run(num_rows, [])
        np.testing.assert_array_equal(out[:num_rows], expected[:num_rows])
        assert np.isnan(out[num_rows:]).all()
        assert np.isnan(between).all() == (packing == "pairs")


def test_a_gate_hands_on_nothing_to_a_product_of_other_rows_or_with_a_norm() -> None:
    team, gate_up, between, out = ThinTeam(1), drawn(2, 80), np.zeros((2, 40), np.float32), np.empty((2, 20), np.float32)
    matrix = packed(drawn(20, 40), PACKINGS[-1])
    with pytest.raises(ValueError, match="not the rows"):
        ThinGate(team, gate_up, between, into=ThinProduct(team, matrix, between.copy(), out))
    rounds = packed(drawn(20, 40), "pairs" if "pairs" in PACKINGS else "floats")
    ThinGate(team, gate_up, between, into=ThinProduct(team, rounds, between, out, norm=RowNorm(drawn(40), 0.0))).run(2)
    assert between.all(), "a norm needs the floats"


@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("dim", [8, 64, 72])
def test_heads_are_turned_once_and_stored_where_they_belong(team: ThinTeam, dim: int, has_norm: bool) -> None:
    """Against one row after another, each a step of its own."""
    num_heads, num_kv_heads, num_slots = 6, 2, 90
    qk_scale = drawn(num_heads + num_kv_heads, dim, seed=5) if has_norm else None
    sizes = HeadSizes(num_heads, num_kv_heads, dim, 1e-5, qk_scale)
    rotations, first = drawn(50, dim, seed=6), drawn(MOST, (num_heads + 2 * num_kv_heads) * dim)
    before = drawn(2, num_kv_heads, num_slots, dim, seed=7)
    positions = np.random.default_rng(8).integers(0, 50, MOST)
    slots = np.random.default_rng(9).permutation(num_slots)[:MOST]

    def after(team: ThinTeam, steps: list[int]) -> tuple[FloatArray, FloatArray]:
        heads, pool = first.copy(), before.copy()
        for begin, end in pairwise(steps):
            part = heads[begin:end]
            attended = np.empty((end - begin, num_heads * dim), np.float32)
            step = ThinStep(positions[begin:end].copy(), slots[begin:end].copy(), [])
            ThinAttention(team, sizes, part, attended, pool, rotations).run(step)
        return heads, pool

    for num_rows in ROW_COUNTS:
        for got, expected in zip(after(team, [0, num_rows]), after(ThinTeam(1), [*range(num_rows + 1)]), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_shared_step_sees_the_keys_of_all_its_rows(team: ThinTeam) -> None:
    """What rows attend to is looked up only when every row of the step is stored, whoever stored it."""
    num_heads, num_kv_heads, dim = 4, 2, 64
    first = drawn(MOST, (num_heads + 2 * num_kv_heads) * dim)
    positions = slots = np.arange(MOST)
    mask = np.where(np.tri(MOST, dtype=np.bool_), np.float32(0.0), np.float32(-np.inf))
    found = []
    for one in (ThinTeam(1), team, team, team):
        heads, attended = first.copy(), np.full((MOST, num_heads * dim), np.nan, np.float32)
        pool = np.full((2, num_kv_heads, MOST, dim), np.nan, np.float32)  # what is not stored yet would be seen
        attention = ThinAttention(one, HeadSizes(num_heads, num_kv_heads, dim, 1e-5), heads, attended, pool, drawn(MOST, dim, seed=6))
        attention.run(ThinStep(positions, slots, [RowKeys(0, MOST, ((0, MOST),), mask)]))
        assert np.isfinite(attended).all()
        found.append(attended.tobytes())
    assert len(set(found)) == 1
