"""Writes a step into the inputs of its shape: its own rows first, then rows of padding.

A row of padding belongs to a sequence of its own with one committed key, at a slot that no sequence holds: it attends to itself, writes
where nobody reads, and picks nothing. What lies in parts of sequences that the step does not have is never read. Must not know tensors or
models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.engine.card_inputs import PADDING_SEQUENCE, CardInputs, CardShape, HostArray, num_words_of
from outrider.engine.step_batch import LongArray, Segment, StepBatch
from outrider_kernels.bit_mask import WORD_BITS


@dataclass(frozen=True, slots=True)
class StepPadding:
    """block_len: of the pool. spare_block: one of the pool's that belongs to no sequence."""

    block_len: int
    spare_block: int


def fill_rows(inputs: CardInputs[HostArray], shape: CardShape, batch: StepBatch, wanted: LongArray, padding: StepPadding) -> None:
    """Everything but how wanted rows are picked."""
    num_rows = batch.num_rows
    for part, values in ((inputs.tokens, batch.tokens), (inputs.positions, batch.positions), (inputs.row_positions, batch.positions)):
        part[:num_rows] = values
        part[num_rows:] = 0
    inputs.slots[:num_rows] = batch.slots
    inputs.slots[num_rows:] = padding.spare_block * padding.block_len
    inputs.wanted[: len(wanted)] = wanted
    inputs.wanted[len(wanted) :] = 0
    inputs.row_ancestry[:] = 0
    inputs.committed_lens[PADDING_SEQUENCE], inputs.num_nodes[PADDING_SEQUENCE] = 1, 0
    inputs.block_table[PADDING_SEQUENCE, 0] = padding.spare_block
    for sequence, segment in enumerate(batch.segments, PADDING_SEQUENCE + 1):
        _fill_sequence(inputs, sequence, segment, shape, padding.block_len)
    _fill_tiles(inputs.tiles, batch, shape.rows, shape.tile_len)


def _fill_sequence(inputs: CardInputs[HostArray], sequence: int, segment: Segment, shape: CardShape, block_len: int) -> None:
    tree, base = segment.state.tree, segment.base
    num_nodes = len(tree)
    inputs.committed_lens[sequence], inputs.num_nodes[sequence] = base, num_nodes
    if num_nodes:
        inputs.node_positions[sequence, :num_nodes] = base + tree.depths
    firsts = segment.state.table.slots[: segment.num_keys : block_len]
    inputs.block_table[sequence, : len(firsts)] = firsts // block_len
    if num_nodes > segment.live_before:
        words = ancestry_words(tree.ancestry[segment.live_before :], num_words_of(shape.nodes))
        inputs.row_ancestry[segment.begin + segment.num_committed : segment.end] = words


def ancestry_words(ancestry: HostArray, num_words: int) -> HostArray:
    """bool [rows, nodes] to int32 [rows, num_words], as `pack_bits` does."""
    packed = np.packbits(ancestry, axis=1, bitorder="little")
    words = np.zeros((len(ancestry), num_words * WORD_BITS // 8), np.uint8)
    words[:, : packed.shape[1]] = packed
    return words.view("<i4")


def _fill_tiles(tiles: HostArray, batch: StepBatch, num_rows: int, tile_len: int) -> None:
    """(sequence, first row, rows) of each; those that are left over have no rows."""
    spans = [(sequence, segment.begin, segment.end) for sequence, segment in enumerate(batch.segments, PADDING_SEQUENCE + 1)]
    spans.append((PADDING_SEQUENCE, batch.num_rows, num_rows))
    own = [(sequence, first, min(tile_len, end - first)) for sequence, begin, end in spans for first in range(begin, end, tile_len)]
    tiles[: len(own)] = own
    tiles[len(own) :] = 0
