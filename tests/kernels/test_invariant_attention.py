"""Fixed-order attention: right to fp32 rounding for odd shapes, and the same bits for a row whatever shares its tile, however far the
tile's other rows reach, with and without a window.

Run: pytest tests/kernels/test_invariant_attention.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.engine.attention import InvariantAttention, Scoring
from outrider.engine.block_table import BlockTable
from outrider.engine.live_tree import LiveTree
from outrider.engine.paged_cache import LayerShape, PagedCache
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import Segment, StepBatch
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec
from outrider.types.tree import IntArray
from outrider_kernels.invariant_attention import InvariantShape
from outrider_kernels.tree_attention import reference_tree_attention

CAPACITY = 1232
NONE: IntArray = np.empty(0, np.int32)
SHAPE = InvariantShape()
Bits = dict[int, torch.Tensor]


def one_thread() -> None:
    torch.set_num_threads(1)


def attend(
    positions: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    window: int | None,
    softcap: float | None,
    blocks: list[int],
    sinks: torch.Tensor | None = None,
) -> Bits:
    """Rows at the given ascending neighbouring positions of one long sequence, attending in one tile. position -> [heads, dim]."""
    one_thread()
    generator = torch.Generator().manual_seed(dim)
    queries = torch.randn(CAPACITY, heads, dim, generator=generator)
    keys, values = torch.randn(2, CAPACITY, kv_heads, dim, generator=generator)
    cache = PagedCache((LayerShape(kv_heads, dim),), (len(blocks) + 1) * 16, torch.float32, "cpu")
    table = BlockTable(blocks, 16)
    first, end = positions[0], positions[-1] + 1
    keys_values = torch.stack((keys, values)).transpose(1, 2)  # [2, kv_heads, positions, dim]
    cache.write(0, 0, 0, torch.from_numpy(table.slots[:first]), keys_values[:, :, :first])
    state = SequenceState(1, SequenceSpec(SamplingParams(), NoiseAddress(0), 0, CAPACITY, 0), table, LiveTree(0), cached_len=first)
    rows = SequenceRows(1, np.zeros(end - first, np.int32), NONE, NONE)
    segment = Segment(rows, state, 0, end - first, end - first, first, 0, end)
    span = np.arange(first, end, dtype=np.int64)
    batch = StepBatch(span, span, table.slots[first:end], [segment])
    padded = torch.zeros(SHAPE.num_rows, heads, dim)
    padded[: len(span)] = queries[first:end]
    padded_kv = torch.zeros(2, kv_heads, SHAPE.num_rows, dim)
    padded_kv[:, :, : len(span)] = keys_values[:, :, first:end]
    attention = InvariantAttention(cache, batch, 0, end - first, SHAPE)
    out = attention.attend(0, padded, padded_kv, Scoring(0.3, window, softcap, sinks))
    for row, position in enumerate(positions):
        visible = torch.zeros(1, position + 1, dtype=torch.bool)
        visible[0, 0 if window is None else max(0, position - window + 1) :] = True
        past_keys, past_values = keys[: position + 1].transpose(0, 1), values[: position + 1].transpose(0, 1)
        expected = reference_tree_attention(queries[position][None], past_keys, past_values, visible, 0.3, softcap, sinks)[0]
        assert float((out[row].double() - expected).abs().max()) < 5e-6
    return {position: out[row].clone() for row, position in enumerate(positions)}


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("window", [None, 21, 150, 700])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 64), (5, 5, 24), (3, 1, 20), (1, 1, 8)])
def test_rows_are_right_and_their_bits_their_own(heads: int, kv_heads: int, dim: int, window: int | None, softcap: float | None) -> None:
    straight = list(range(CAPACITY // 16))
    scattered = [*straight[3::2], *straight[::2], 1]
    for last in (14, 127, 600, 1215):  # around borders of window, block and group
        tile = list(range(max(0, last - 15), last + 1))
        together = attend(tile, heads, kv_heads, dim, window, softcap, straight)
        for position in (tile[0], tile[-1]):
            alone = attend([position], heads, kv_heads, dim, window, softcap, scattered)
            assert torch.equal(alone[position], together[position])


@pytest.mark.parametrize("level", [-40.0, 1.0, 40.0], ids=["of no weight", "among the keys", "above all keys"])
@pytest.mark.parametrize("window", [None, 150])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 64), (3, 1, 20)])
def test_rows_beside_sinks_are_right_and_their_bits_their_own(
    heads: int, kv_heads: int, dim: int, window: int | None, level: float
) -> None:
    straight = list(range(CAPACITY // 16))
    scattered = [*straight[3::2], *straight[::2], 1]
    sinks = level + torch.linspace(0.0, 1.0, heads)
    for last in (14, 127, 1215):
        tile = list(range(max(0, last - 15), last + 1))
        together = attend(tile, heads, kv_heads, dim, window, None, straight, sinks)
        alone = attend([last], heads, kv_heads, dim, window, None, scattered, sinks)
        assert torch.equal(alone[last], together[last])


def test_window_starts_are_block_borders_far_enough_back() -> None:
    for position in range(200):
        start = SHAPE.window_start(position)
        assert start % SHAPE.block_len == 0
        assert start <= max(0, position - SHAPE.max_depth)
        assert position - start < SHAPE.window_len
