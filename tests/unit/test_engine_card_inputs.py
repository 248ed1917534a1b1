"""What a step on a card reads: parts that neither overlap nor lie askew, steps in the smallest bucket that holds them, tiles that always
fit, bits as the kernels read them, and which rows are somebody else's to pick. Nothing here needs Triton or a card.

Run: pytest tests/unit/test_engine_card_inputs.py
"""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from outrider.engine.block_table import BlockTable
from outrider.engine.card_buckets import MAX_BUCKET_NODES, MAX_BUCKET_ROWS, MAX_BUCKET_SEQUENCES, MAX_TOUCHED, CardBuckets, StepSizes
from outrider.engine.card_filling import StepPadding, ancestry_words, fill_rows
from outrider.engine.card_inputs import ALIGNED_WORDS, CardInputs, CardLayout, CardShape, HostArray
from outrider.engine.card_rules import fill_rules
from outrider.engine.card_upload import CardUpload
from outrider.engine.contract import EngineLimits
from outrider.engine.live_tree import LiveTree
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import StepBatch, build_batch
from outrider.noise.keys import Purpose, key_of
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray
from outrider_kernels.bit_mask import pack_bits

BLOCK_LEN, NUM_BLOCKS = 16, 400
SIZES = StepSizes(max_rows=512, max_context=300, block_len=BLOCK_LEN, num_blocks=NUM_BLOCKS)
GREEDY = SamplingParams(temperature=0.0)
NONE: IntArray = np.empty(0, np.int32)


def batch_of(*parts: tuple[int, int, int], params: SamplingParams = GREEDY, num_choices: int = 0, seconds: bool = False) -> StepBatch:
    """A step; of each sequence: tokens cached before, committed rows, nodes (a chain)."""
    states, rows = {}, []
    for index, (cached_len, num_committed, num_nodes) in enumerate(parts):
        spec = SequenceSpec(params, NoiseAddress(index), 0, 300, 200)
        blocks = [(37 * (index * 40 + block)) % NUM_BLOCKS for block in range(32)]
        state = states[index] = SequenceState(index, spec, BlockTable(blocks, BLOCK_LEN), LiveTree(200))
        state.append(np.zeros(cached_len, np.int32))
        committed, nodes = (np.ones(count, np.int32) for count in (num_committed, num_nodes))
        above = np.arange(-1, num_nodes - 1, dtype=np.int32)
        rows.append(SequenceRows(index, committed, nodes, above, num_choices=num_choices, seconds=seconds))
    limits = EngineLimits(512, BLOCK_LEN, NUM_BLOCKS, 300)
    return build_batch(StepPlan(tuple(rows)), states, limits, 10, 200)


def filled(batch: StepBatch, buckets: CardBuckets) -> tuple[CardShape, CardInputs[HostArray]]:
    """The step in its bucket, over words that an earlier step left full of nonsense."""
    shape = buckets.bucket_for(batch)
    assert shape is not None
    layout = CardLayout(shape)
    inputs = layout.arrays(np.full(layout.num_words, 0x5A5A5A5A, np.int32))
    fill_rows(inputs, shape, batch, batch.wanted(), StepPadding(BLOCK_LEN, NUM_BLOCKS))
    fill_rules(inputs, batch, batch.wanted())
    return shape, inputs


@pytest.mark.parametrize(
    "shape",
    [CardShape(1, 1, 1, 1, 1, 1, 1, 1, 1), CardShape(7, 3, 5, 33, 11, 176, 5, 7, 2), CardShape(64, 32, 64, 128, 27, 428, 64, 1024, 4)],
)
def test_parts_do_not_overlap_and_are_aligned(shape: CardShape) -> None:
    layout = CardLayout(shape)
    words = np.zeros(layout.num_words, np.int32)
    arrays, tensors = layout.arrays(words), layout.tensors(torch.from_numpy(words))
    for number, field in enumerate(fields(CardInputs), 1):
        part: HostArray = getattr(arrays, field.name)
        assert (part.ctypes.data - words.ctypes.data) % (4 * ALIGNED_WORDS) == 0, field.name
        assert not part.any(), f"{field.name} overlaps an earlier part"
        part[...] = number
    for number, field in enumerate(fields(CardInputs), 1):
        assert bool((getattr(tensors, field.name) == number).all()), field.name
    assert arrays.temperatures.dtype == np.float64
    assert arrays.slots.dtype == np.int64
    assert arrays.touched.shape == (shape.picked, 4 * shape.touched)
    assert layout.used_words(shape.sequences) <= layout.used_words(shape.sequences, 1) <= layout.used_words(0, shape.picked)
    assert layout.used_words(shape.sequences, shape.picked) <= layout.num_words


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(5, 1, 0)], (1, 1)),
        ([(5, 1, 1)], (2, 1)),
        ([(5, 1, 3)], (4, 1)),
        ([(5, 1, 4)], (8, 1)),
        ([(5, 1, 0), (6, 1, 0)], (2, 2)),
        ([(5, 1, 0)] * 3, (4, 4)),
        ([(5, 1, 14), (9, 1, 0)], (16, 2)),
        ([(5, MAX_BUCKET_ROWS, 0)], (MAX_BUCKET_ROWS, 1)),
        ([(5, 1, 0)] * MAX_BUCKET_SEQUENCES, (MAX_BUCKET_SEQUENCES, MAX_BUCKET_SEQUENCES)),
        ([(5, MAX_BUCKET_ROWS + 1, 0)], None),
        ([(5, 1, 0)] * (MAX_BUCKET_SEQUENCES + 1), None),
    ],
)
def test_a_step_takes_the_smallest_bucket_that_holds_it(parts: list[tuple[int, int, int]], expected: tuple[int, int] | None) -> None:
    shape = CardBuckets(SIZES, lambda num_rows: 8).bucket_for(batch_of(*parts))
    assert (None if shape is None else (shape.rows, shape.sequences)) == expected


def test_a_tree_of_very_many_live_nodes_fits_no_bucket() -> None:
    buckets = CardBuckets(SIZES, lambda num_rows: 8)
    grown = batch_of((5, 1, 0))
    tree = grown.segments[0].state.tree
    tree.add(np.ones(MAX_BUCKET_NODES, np.int32), np.arange(-1, MAX_BUCKET_NODES - 1, dtype=np.int32))
    assert buckets.bucket_for(grown) is not None
    tree.add(np.ones(1, np.int32), np.array([-1], np.int32))
    assert buckets.bucket_for(grown) is None


@pytest.mark.parametrize("rows_per_tile", [1, 2, 3, 16])
def test_tiles_cover_every_row_once_and_always_fit(rows_per_tile: int) -> None:
    chance = np.random.default_rng(rows_per_tile)
    buckets = CardBuckets(SIZES, lambda num_rows: rows_per_tile)
    for _ in range(60):
        counts = [int(chance.integers(1, 12)) for _ in range(int(chance.integers(1, 7)))]
        batch = batch_of(*[(9, 1, count - 1) for count in counts])
        if batch.num_rows > MAX_BUCKET_ROWS:
            continue
        shape, inputs = filled(batch, buckets)
        seen = [0] * shape.rows
        for sequence, first, count in inputs.tiles.tolist():
            assert 0 <= count <= rows_per_tile
            for row in range(first, first + count):
                seen[row] += 1
                owner = next((number for number, segment in enumerate(batch.segments, 1) if segment.begin <= row < segment.end), 0)
                assert sequence == owner
        assert seen == [1] * shape.rows


def test_padding_writes_to_the_spare_block_alone_and_sees_itself() -> None:
    batch = batch_of((20, 1, 2), (3, 1, 0), (40, 1, 1))
    shape, inputs = filled(batch, CardBuckets(SIZES, lambda num_rows: 8))
    assert shape.rows == 8
    assert inputs.slots[: batch.num_rows].tolist() == batch.slots.tolist()
    padding = slice(batch.num_rows, shape.rows)
    assert (inputs.slots[padding] == NUM_BLOCKS * BLOCK_LEN).all()
    assert (inputs.tokens[padding] == 0).all()
    assert (inputs.row_positions[padding] == 0).all()
    assert (inputs.row_ancestry[padding] == 0).all()
    assert inputs.committed_lens[0] == 1
    assert inputs.num_nodes[0] == 0
    assert inputs.block_table[0, 0] == NUM_BLOCKS
    assert np.isnan(inputs.temperatures[len(batch.wanted()) :]).all()
    assert NUM_BLOCKS not in inputs.block_table[1 : 1 + len(batch.segments), 0]


def test_a_sequence_is_found_by_its_blocks_and_its_nodes_by_position() -> None:
    batch = batch_of((20, 1, 2), (33, 1, 0))
    _, inputs = filled(batch, CardBuckets(SIZES, lambda num_rows: 8))
    for sequence, segment in enumerate(batch.segments, 1):
        assert inputs.committed_lens[sequence] == segment.base
        for key in range(segment.num_keys):
            slot = inputs.block_table[sequence, key // BLOCK_LEN] * BLOCK_LEN + key % BLOCK_LEN
            assert slot == segment.state.table.slots[key]
    assert inputs.num_nodes[1:3].tolist() == [2, 0]
    assert inputs.node_positions[1, :2].tolist() == [21, 22]
    assert inputs.row_ancestry[:4, 0].tolist() == [0, 1, 3, 0]


@pytest.mark.parametrize("num_nodes", [1, 31, 32, 33, 70])
def test_bits_of_an_ancestry_are_the_kernels(num_nodes: int) -> None:
    ancestry = np.random.default_rng(num_nodes).random((5, num_nodes)) < 0.5
    packed = pack_bits(torch.from_numpy(ancestry)).numpy()
    words = ancestry_words(ancestry, 4)
    assert np.array_equal(words[:, : packed.shape[1]], packed)
    assert not words[:, packed.shape[1] :].any()


@pytest.mark.parametrize(
    ("params", "num_choices", "is_left"),
    [
        (GREEDY, 0, False),
        (SamplingParams(temperature=0.7, top_k=5, top_p=0.8, min_p=0.1), 0, False),
        (SamplingParams(temperature=1e-7), 0, True),
        (SamplingParams(repetition_penalty=1.1), 0, False),
        (SamplingParams(presence_penalty=0.5), 2, True),
        (SamplingParams(logit_bias=((3, 1.0),)), 0, False),
        (GREEDY, 2, True),
    ],
)
def test_rules_of_rows_and_which_rows_are_left(params: SamplingParams, num_choices: int, is_left: bool) -> None:
    batch = batch_of((20, 1, 2), (3, 2, 0), params=params, num_choices=num_choices)
    _, inputs = filled(batch, CardBuckets(SIZES, lambda num_rows: 8))
    wanted = batch.wanted()
    assert inputs.wanted[:4].tolist() == wanted.tolist() == [0, 1, 2, 4]
    assert inputs.pick_positions[:4].tolist() == [21, 22, 23, 5]
    keys = [key_of(NoiseAddress(index), Purpose.PICK) for index in (0, 0, 0, 1)]
    assert inputs.keys[:4].view(np.uint64).tolist() == keys
    assert all(math.isnan(value) == is_left for value in inputs.temperatures[:4])
    assert inputs.top_ks[:4].tolist() == [params.top_k] * 4
    assert inputs.top_ps[:4].tolist() == [params.top_p] * 4


def test_rows_whose_seconds_are_wanted_are_left() -> None:
    _, inputs = filled(batch_of((20, 1, 2), (3, 2, 0), seconds=True), CardBuckets(SIZES, lambda num_rows: 8))
    assert np.isnan(inputs.temperatures[:4]).all()


def test_an_upload_brings_the_first_words_only() -> None:
    upload = CardUpload(6, torch.device("cpu"))
    upload.wait()[:] = 7
    upload.send(4)
    assert upload.device_words.tolist() == [7, 7, 7, 7, 0, 0]


def test_an_own_shape_has_no_padding() -> None:
    batch = batch_of((20, 40, 0), (3, 1, 2))
    buckets = CardBuckets(SIZES, lambda num_rows: 8)
    shape = buckets.own_shape(batch)
    assert buckets.own_shape(batch_of((20, 1, 0), params=SamplingParams(presence_penalty=1.0))).touched == MAX_TOUCHED
    assert shape == CardShape(rows=43, sequences=2, tiles=6, nodes=2, blocks=4, keys=60, picked=4, touched=1, tile_len=8)
