"""The compiled attention against its definition in fp64: turned, normed and stored heads, scattered runs, trees, groups, odd lengths; and a
row's bits are its own, whatever shares its step and however many threads there are.

Broken copies of the C file show that the comparisons would notice.
Run: pytest tests/kernels/test_thin_attention.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from broken_c import break_thin
from mostly_slow import mostly_slow
from outrider_kernels.thin_attention import HeadSizes, PoolArray, RowKeys, ThinAttention, ThinStep
from outrider_kernels.thin_team import ThinTeam, has_short_vectors
from outrider_kernels.tree_attention import reference_tree_attention

FloatArray = npt.NDArray[np.float32]

NUM_SLOTS, NUM_POSITIONS = 160, 70
TOLERANCE = 2e-6
SHAPES = [(4, 2, 8), (6, 2, 24), (5, 1, 64), (3, 3, 40), (7, 1, 16), (2, 1, 256)]  # heads, kv_heads, dim


@dataclass(frozen=True)
class Sequence:
    """slots: by position, of all keys, the last of which are this step's rows; visible: bool [rows, keys]."""

    positions: tuple[int, ...]
    slots: tuple[int, ...]
    visible: npt.NDArray[np.bool_]

    @property
    def num_rows(self) -> int:
        return len(self.positions)

    def keys(self, begin: int) -> RowKeys:
        """Masked from the first key that some row does not see."""
        tail = int(np.argmin(np.append(self.visible.all(axis=0), False)))
        mask = np.where(self.visible[:, tail:], np.float32(0.0), np.float32(-np.inf)) if tail < len(self.slots) else None
        return RowKeys(begin, begin + self.num_rows, runs_of(self.slots), mask)


def runs_of(slots: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Neighbouring slots as ranges."""
    runs: list[tuple[int, int]] = []
    for slot in slots:
        if runs and runs[-1][1] == slot:
            runs[-1] = (runs[-1][0], slot + 1)
        else:
            runs.append((slot, slot + 1))
    return tuple(runs)


def sequences() -> list[Sequence]:
    """A chunk of a prompt, a row alone, and a tree of two branches behind a row; over blocks of 8 slots in no order."""
    chunk_slots = (*range(40, 48), *range(16, 24), *range(48, 51))
    chunk = Sequence(tuple(range(14, 19)), chunk_slots, np.tri(5, 19, 14, dtype=np.bool_))
    alone = Sequence((0,), (99,), np.ones((1, 1), np.bool_))
    tree_slots = (*range(120, 152), *range(0, 8), *range(64, 68))
    visible = np.zeros((5, 44), np.bool_)
    visible[:, :40] = True  # the newest committed token and what is before it
    for row, ancestors in enumerate([(), (40,), (41,), (40, 42), (41, 43)]):
        visible[row, list(ancestors)] = True
    tree = Sequence((39, 40, 40, 41, 41), tree_slots, visible)
    return [chunk, alone, tree]


class Layer:
    """Buffers and a pool, always the same for a shape."""

    def __init__(
        self,
        team: ThinTeam,
        shape: tuple[int, int, int],
        *,
        has_norm: bool = False,
        num_slots: int = NUM_SLOTS,
        most: int = 11,
        halves: bool = False,
    ) -> None:
        """halves: the pool is of bfloat16."""
        draw = np.random.default_rng(sum(shape))
        num_heads, num_kv_heads, dim = shape
        qk_scale = (1.0 + 0.2 * draw.standard_normal((num_heads + num_kv_heads, dim))).astype(np.float32) if has_norm else None
        self.sizes = HeadSizes(num_heads, num_kv_heads, dim, 1e-5, qk_scale)
        self.first = draw.standard_normal((most, (num_heads + 2 * num_kv_heads) * dim)).astype(np.float32)
        self.heads, self.attended = self.first.copy(), np.full((most, num_heads * dim), np.nan, np.float32)
        drawn = draw.standard_normal((2, num_kv_heads, num_slots, dim)).astype(np.float32)
        self.pool: PoolArray = halves_of(drawn) if halves else drawn
        self.before = self.pool.copy()
        angles = draw.uniform(0.0, 6.0, (NUM_POSITIONS, dim // 2))
        self.rotations = np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(NUM_POSITIONS, dim).astype(np.float32)
        self.attention = ThinAttention(team, self.sizes, self.heads, self.attended, self.pool, self.rotations)

    def run(self, step: list[Sequence]) -> FloatArray:
        """One step of all sequences, whose rows follow one another. [rows, heads, dim]."""
        begins = np.cumsum([0, *(sequence.num_rows for sequence in step)]).tolist()
        positions = np.array([position for sequence in step for position in sequence.positions], np.int64)
        slots = np.array([slot for sequence in step for slot in sequence.slots[-sequence.num_rows :]], np.int64)
        self.attention.run(ThinStep(positions, slots, [one.keys(begin) for one, begin in zip(step, begins, strict=False)]))
        return self.attended[: len(positions)].reshape(len(positions), self.sizes.num_heads, self.sizes.dim).copy()

    def expected(self, step: list[Sequence], *, stores: bool = True) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """By the definition, in fp64: what the rows attend to, and the pool afterwards. stores: else it holds their keys and values."""
        sizes, pool = self.sizes, self.before.astype(np.float64)
        row, parts = 0, []
        for sequence in step:
            turned = [self._turned(row + at, position) for at, position in enumerate(sequence.positions)]
            row += sequence.num_rows
            for slot, heads in zip(sequence.slots[-sequence.num_rows :], turned, strict=True) if stores else ():
                pool[:, :, slot] = heads[sizes.num_heads :].reshape(2, sizes.num_kv_heads, sizes.dim)
            query = torch.from_numpy(np.stack(turned)[:, : sizes.num_heads])
            keys, values = torch.from_numpy(pool[:, :, list(sequence.slots)])
            parts.append(reference_tree_attention(query, keys, values, torch.from_numpy(sequence.visible), sizes.dim**-0.5))
        return torch.cat(parts).numpy(), pool

    def _turned(self, row: int, position: int) -> npt.NDArray[np.float64]:
        sizes = self.sizes
        heads: npt.NDArray[np.float64] = self.first[row].astype(np.float64).reshape(-1, sizes.dim)
        num_turned = sizes.num_heads + sizes.num_kv_heads
        if sizes.qk_scale is not None:
            squares = (heads[:num_turned] ** 2).sum(axis=1, keepdims=True)
            heads[:num_turned] *= sizes.qk_scale / np.sqrt(squares + sizes.epsilon * sizes.dim)
        pairs = self.rotations[position].astype(np.float64).reshape(-1, 2)
        turn = pairs[:, 0] + 1j * pairs[:, 1]
        heads[:num_turned] = (heads[:num_turned].view(np.complex128) * turn).view(np.float64)
        return heads


def check(team: ThinTeam, shape: tuple[int, int, int], *, has_norm: bool) -> None:
    layer, step = Layer(team, shape, has_norm=has_norm), sequences()
    got = layer.run(step)
    attended, pool = layer.expected(step)
    assert np.abs(got - attended).max() < TOLERANCE
    assert np.abs(layer.pool - pool).max() < TOLERANCE
    kept = np.ones(NUM_SLOTS, np.bool_)
    kept[[slot for sequence in step for slot in sequence.slots[-sequence.num_rows :]]] = False
    assert np.array_equal(layer.pool[:, :, kept], layer.before[:, :, kept])
    check_halves(team, shape, layer, has_norm=has_norm)


def check_halves(team: ThinTeam, shape: tuple[int, int, int], floats: Layer, *, has_norm: bool) -> None:
    """A pool of bfloat16 holds what one of floats does, rounded, and is attended to as what it holds. floats: after the same step."""
    layer, step = Layer(team, shape, has_norm=has_norm, halves=True), sequences()
    got = layer.run(step)
    assert np.array_equal(layer.pool, halves_of(floats.pool))
    layer.before = floats_of(layer.pool)
    attended, _ = layer.expected(step, stores=False)
    assert np.abs(got - attended).max() < TOLERANCE


def halves_of(floats: PoolArray) -> npt.NDArray[np.uint16]:
    return torch.from_numpy(floats).to(torch.bfloat16).view(torch.uint16).numpy()


def floats_of(halves: npt.NDArray[Any]) -> FloatArray:
    return torch.from_numpy(halves).view(torch.bfloat16).float().numpy()


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_attend_as_the_definition_says(shape: tuple[int, int, int], has_norm: bool, num_threads: int) -> None:
    check(ThinTeam(num_threads), shape, has_norm=has_norm)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_its_own_bits(shape: tuple[int, int, int]) -> None:
    """Beside other sequences, alone, and with another number of threads."""
    step = sequences()
    together, others = Layer(ThinTeam(1), shape).run(step), Layer(ThinTeam(3), shape).run(step)
    assert np.array_equal(together, others)
    for index, sequence in enumerate(step):
        layer = Layer(ThinTeam(1), shape)
        begin = sum(one.num_rows for one in step[:index])
        end = begin + sequence.num_rows
        layer.heads[: sequence.num_rows] = layer.first[begin:end]
        assert np.array_equal(layer.run([sequence]), together[begin:end])


LONG_KEYS, LONG_ROWS = 333, 13
# how many neighbours the runs of one sequence have: shorter and longer than what is scored at once, and than a block of keys
LAYOUTS = [(333,), (16, 17, 15, 1, 64, 63, 79, 78), (200, 3, 130), (5,) * 66 + (3,)]


def long_sequence(layout: tuple[int, ...]) -> Sequence:
    """The last rows of a chunk, in runs of these lengths with a slot between two of them, the newest first in the pool."""
    slots: list[int] = []
    end = LONG_KEYS + len(layout)
    for length in layout:
        slots += range(end - length, end)
        end -= length + 1
    return Sequence(tuple(range(50, 50 + LONG_ROWS)), tuple(slots), np.tri(LONG_ROWS, LONG_KEYS, LONG_KEYS - LONG_ROWS, dtype=np.bool_))


def long_layer(shape: tuple[int, int, int], num_threads: int, layout: tuple[int, ...]) -> Layer:
    """A pool whose keys and values are the sequence's own wherever they lie."""
    layer = Layer(ThinTeam(num_threads), shape, num_slots=LONG_KEYS + max(map(len, LAYOUTS)), most=LONG_ROWS)
    own = np.random.default_rng(9).standard_normal((2, shape[1], LONG_KEYS, shape[2])).astype(np.float32)
    layer.pool[:, :, list(long_sequence(layout).slots)] = own
    layer.before = layer.pool.copy()
    return layer


@pytest.mark.parametrize("shape", [(5, 1, 64), (6, 2, 24), (4, 2, 32)])
def test_how_a_long_sequence_lies_in_the_pool_decides_nothing(shape: tuple[int, int, int]) -> None:
    whole = long_layer(shape, 1, LAYOUTS[0])
    expected, _ = whole.expected([long_sequence(LAYOUTS[0])])
    got = whole.run([long_sequence(LAYOUTS[0])])
    assert np.abs(got - expected).max() < TOLERANCE
    for layout in LAYOUTS:
        assert sum(layout) == LONG_KEYS
        for num_threads in (1, 3):
            again = long_layer(shape, num_threads, layout).run([long_sequence(layout)])
            assert np.array_equal(again, got), (layout, num_threads)


PROMPT_ROWS, PROMPT_BEFORE = 61, 9


def prompt(first: int, end: int, *, window: int | None) -> Sequence:
    """Rows [first, end) of a prompt that stands behind some other tokens, in runs of eight slots."""
    slots = tuple(96 - 8 * (at // 8) + at % 8 for at in range(PROMPT_BEFORE + end))
    visible = np.tri(end - first, PROMPT_BEFORE + end, PROMPT_BEFORE + first, dtype=np.bool_)
    if window is not None:
        visible &= ~np.tri(end - first, PROMPT_BEFORE + end, PROMPT_BEFORE + first - window, dtype=np.bool_)
    return Sequence(tuple(range(PROMPT_BEFORE + first, PROMPT_BEFORE + end)), slots, visible)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("shape", [(5, 1, 64), (6, 2, 24)])
def test_a_prompt_read_at_once_has_the_bits_of_one_read_row_by_row(shape: tuple[int, int, int], window: int | None) -> None:
    """Of a prompt's rows, what lies behind the last that any of them sees is passed over, by parts of the rows."""
    at_once = Layer(ThinTeam(3), shape, most=PROMPT_ROWS)
    whole = prompt(0, PROMPT_ROWS, window=window)
    expected, _ = at_once.expected([whole])
    got = at_once.run([whole])
    assert np.abs(got - expected).max() < TOLERANCE
    singly = Layer(ThinTeam(1), shape, most=PROMPT_ROWS)
    for row in range(PROMPT_ROWS):
        singly.heads[0] = singly.first[row]
        assert np.array_equal(singly.run([prompt(row, row + 1, window=window)])[0], got[row]), row
    assert np.array_equal(singly.pool, at_once.pool)


@pytest.mark.parametrize("shape", [(5, 1, 64), (6, 2, 24), (3, 3, 40)])
def test_a_row_over_halves_has_its_own_bits_too(shape: tuple[int, int, int]) -> None:
    at_once, singly = (Layer(ThinTeam(num), shape, most=PROMPT_ROWS, halves=True) for num in (3, 1))
    got = at_once.run([prompt(0, PROMPT_ROWS, window=None)])
    for row in range(PROMPT_ROWS):
        singly.heads[0] = singly.first[row]
        assert np.array_equal(singly.run([prompt(row, row + 1, window=None)])[0], got[row]), row
    assert np.array_equal(singly.pool, at_once.pool)


def test_every_number_is_rounded_as_torch_rounds_it() -> None:
    """Ties, what is too great, too small or no number, and all of it in values, which nothing turns."""
    odd = [0.0, -0.0, 1.00390625, 1.01171875, -1.00390625, 3.4e38, -3.4e38, 1e-40, np.inf, -np.inf, np.nan]
    layer = Layer(ThinTeam(1), (1, 1, 16), halves=True)
    values = np.array([*odd, *np.random.default_rng(5).standard_normal(5)], np.float32)
    quiet = np.array([0x7F800001, 0xFFC12345], np.uint32).view(
        np.float32
    )  # signalling, in the lower half alone; quiet, with bits of its own
    values[14:] = quiet
    layer.heads[0, 32:] = values
    layer.run([Sequence((0,), (99,), np.ones((1, 1), np.bool_))])
    stored = floats_of(layer.pool[1, 0, 99])
    assert np.array_equal(stored, torch.from_numpy(values).to(torch.bfloat16).float().numpy(), equal_nan=True)
    assert np.isnan(stored[[10, 14, 15]]).all()


def test_arrays_that_do_not_fit_are_refused() -> None:
    layer = Layer(ThinTeam(1), (4, 2, 8))
    fitting: list[Any] = [layer.heads, layer.attended, layer.pool, layer.rotations]
    wrongs: list[tuple[Any, str]] = [
        (layer.heads.astype(np.float64), "float32"),
        (layer.attended[:, :-1].copy(), "do not fit"),
        (layer.pool[:1].copy(), "do not fit"),
        (layer.rotations[:, ::2], "C order"),
    ]
    for index, (wrong, message) in enumerate(wrongs):
        arrays = [wrong if at == index else array for at, array in enumerate(fitting)]
        with pytest.raises(ValueError, match=message):
            ThinAttention(ThinTeam(1), layer.sizes, *arrays)
    with pytest.raises(ValueError, match="not served"):
        ThinAttention(
            ThinTeam(1), HeadSizes(3, 2, 8, 1e-5), layer.heads[:, :56].copy(), layer.attended[:, :24].copy(), layer.pool, layer.rotations
        )


BREAKS = {
    "turned the other way": ("left * cosine - right * sine", "left * cosine + right * sine"),
    "values turned too": (
        "num_heads + layer->num_kv_heads, num_all = num_turned",
        "num_heads + 2 * layer->num_kv_heads, num_all = num_turned - layer->num_kv_heads",
    ),
    "stored at the next slot": ("step->slots[row]) * dim;", "step->slots[row] + 1) * dim;"),
    "cut off, not rounded": ("(own + 0x7FFFu + (own >> 16 & 1u)) >> 16", "own >> 16"),
    # where vectors are of 256 bits there is no half of one
    **({} if has_short_vectors() else {"a block's last half vector of halves": ("if (at < length) *(bits *)", "if (0) *(bits *)")}),
    "no mask": ("scores[begin + at] += mask[at];", ";"),
    "scores not scaled": ("heads[at] *= layer->scaling;", "heads[at] *= 1.0f;"),
    "keys passed over that somebody sees": ("mask[-1 - hidden] < 0.0f", "mask[-1 - hidden] <= 0.0f"),
    "half a vector forgotten": ("if (at < dim) halves[0] +=", "if (0) halves[0] +="),
    "the norm's scale of the first head": ("layer->qk_scale + head * dim : 0", "layer->qk_scale : 0"),
}


@pytest.mark.parametrize("broken", mostly_slow(BREAKS, 3))
def test_a_broken_attention_would_be_noticed(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_thin(monkeypatch, tmp_path, "attention.c", *BREAKS[broken])
    with pytest.raises(AssertionError):
        check(ThinTeam(1), (6, 2, 24), has_norm=True)
