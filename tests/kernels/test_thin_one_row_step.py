"""A one-row step that is moved on against a step made anew for the same row: what is stored and what is attended to, bit for bit.

Run: pytest tests/kernels/test_thin_one_row_step.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from outrider_kernels.thin_attention import HeadSizes, OneRowStep, RowKeys, ThinAttention, ThinStep
from outrider_kernels.thin_program import ThinProgram
from outrider_kernels.thin_team import ThinTeam

FloatArray = npt.NDArray[np.float32]
Runs = Sequence[tuple[int, int]]

NUM_SLOTS, NUM_POSITIONS = 96, 64
# position, slot, runs: one run, then ever more of them (the array is outgrown twice), fewer again, a window, and a row alone
PLACES: list[tuple[int, int, Runs]] = [
    (10, 30, ((20, 31),)),
    (11, 50, ((20, 31), (50, 51))),
    (12, 51, ((20, 31), (50, 52))),
    (17, 5, ((20, 31), (50, 52), (80, 84), (5, 6))),
    (24, 95, ((70, 75), (20, 31), (50, 52), (80, 84), (5, 6), (94, 96))),
    (25, 7, ((90, 92), (7, 8))),
    (33, 63, ((54, 64),)),
    (63, 0, ((0, 1),)),
]
SIZES = {
    "grouped heads": HeadSizes(6, 2, 24, 1e-5),
    "a norm of queries and keys": HeadSizes(4, 4, 16, 1e-6, np.random.default_rng(9).standard_normal((8, 16)).astype(np.float32)),
}


class Bench:
    """An attention over buffers of its own; always the same content."""

    def __init__(self, team: ThinTeam, sizes: HeadSizes) -> None:
        draw = np.random.default_rng(4)

        def numbers(*shape: int) -> FloatArray:
            return draw.standard_normal(shape).astype(np.float32)

        self.heads = numbers(3, (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.dim)
        self.attended = np.full((3, sizes.num_heads * sizes.dim), 7.0, np.float32)
        self.pool = numbers(2, sizes.num_kv_heads, NUM_SLOTS, sizes.dim)
        self.attention = ThinAttention(team, sizes, self.heads, self.attended, self.pool, numbers(NUM_POSITIONS, sizes.dim))
        self.fresh = numbers(len(PLACES), self.heads.shape[1])

    def seen(self) -> list[bytes]:
        return [self.heads.tobytes(), self.attended.tobytes(), self.pool.tobytes()]


def made_anew(position: int, slot: int, runs: Runs) -> ThinStep:
    return ThinStep(np.array([position], np.int64), np.array([slot], np.int64), [RowKeys(0, 1, tuple(runs), None)])


def exactly(runs: Runs) -> Runs:
    return runs


def turned(runs: Runs) -> Runs:
    return runs[::-1]


def without_the_last(runs: Runs) -> Runs:
    return runs[:-1] if len(runs) > 1 else runs


def first_difference(team: ThinTeam, sizes: HeadSizes, read: Callable[[Runs], Runs] = exactly) -> int | None:
    """The first of PLACES after which anything differs in any bit; None: nothing ever does. read: which runs the moved step is given."""
    anew, moved, step = Bench(team, sizes), Bench(team, sizes), OneRowStep()
    program = ThinProgram(team, [(moved.attention, 0)])
    address = step.address
    for index, (position, slot, runs) in enumerate(PLACES):
        anew.heads[0] = moved.heads[0] = anew.fresh[index]
        anew.attention.run(made_anew(position, slot, runs))
        step.place(position, slot, read(runs))
        program.run(1, [step])
        assert step.address == address, "who holds it would read what is gone"
        if anew.seen() != moved.seen():
            return index
    return None


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("sizes", list(SIZES))
def test_a_step_that_is_moved_on_has_the_bits_of_one_made_anew(sizes: str, num_threads: int) -> None:
    assert first_difference(ThinTeam(num_threads), SIZES[sizes]) is None


@pytest.mark.parametrize(("read", "first"), [(turned, 1), (without_the_last, 1)])
def test_runs_in_another_order_or_left_out_would_be_noticed(read: Callable[[Runs], Runs], first: int) -> None:
    assert first_difference(ThinTeam(1), SIZES["grouped heads"], read) == first


def test_only_the_first_row_is_written() -> None:
    bench, step = Bench(ThinTeam(1), SIZES["grouped heads"]), OneRowStep()
    heads, pool = bench.heads.copy(), bench.pool.copy()
    step.place(10, 30, ((20, 31),))
    bench.attention.run(step)
    np.testing.assert_array_equal(bench.heads[1:], heads[1:])
    assert (bench.attended[1:] == 7.0).all()
    assert (bench.attended[0] != 7.0).all()
    changed = np.flatnonzero((bench.pool != pool).any(axis=(0, 1, 3)))
    assert changed.tolist() == [30]
