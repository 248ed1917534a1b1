"""Which shapes of steps are made ready beforehand: rows and sequences in powers of two, the rest at its bound.

A step takes the smallest bucket that holds it and is padded to that; one that none holds (a long prompt chunk, a tree with very many live
nodes) runs with its own sizes. Must not know tensors or models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.engine.card_inputs import CardShape
from outrider.engine.sampling.penalties import is_touched
from outrider.engine.step_batch import StepBatch

MAX_BUCKET_ROWS = 64
MAX_BUCKET_SEQUENCES = 32
MAX_BUCKET_NODES = 128
MAX_TOUCHED = 1024  # tokens of a row that penalties and biases change; 16 KB to send for a row, if it has any


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Of an engine. max_rows, max_sequences: of a step in a bucket, where the bounds above allow as many. max_context: committed tokens of
    a sequence. num_blocks: of the pool, for sequences."""

    max_rows: int
    max_context: int
    block_len: int
    num_blocks: int
    max_sequences: int = MAX_BUCKET_SEQUENCES


class CardBuckets:
    """The shapes, smallest first."""

    def __init__(self, sizes: StepSizes, rows_per_tile: Callable[[int], int]) -> None:
        """rows_per_tile: of the attention, by the rows of a sequence."""
        self._sizes = sizes
        self._rows_per_tile = rows_per_tile
        most_rows = min(MAX_BUCKET_ROWS, sizes.max_rows)
        self.shapes = tuple(
            self._shape(rows, sequences)
            for rows in _powers_up_to(most_rows)
            for sequences in _powers_up_to(min(rows, MAX_BUCKET_SEQUENCES, sizes.max_sequences, sizes.num_blocks))
        )

    def bucket_for(self, batch: StepBatch) -> CardShape | None:
        """The smallest that holds the step; None where none does."""
        num_rows, num_sequences = batch.num_rows, len(batch.segments)
        if max(len(segment.state.tree) for segment in batch.segments) > MAX_BUCKET_NODES:
            return None
        return next((shape for shape in self.shapes if shape.rows >= num_rows and shape.sequences >= num_sequences), None)

    def own_shape(self, batch: StepBatch) -> CardShape:
        """The step's own sizes, without padding."""
        sizes = self._sizes
        counts = [segment.end - segment.begin for segment in batch.segments]
        tile_len = self._rows_per_tile(max(counts))
        most_keys = max(segment.num_keys for segment in batch.segments)
        return CardShape(
            rows=batch.num_rows,
            sequences=len(batch.segments),
            tiles=sum(-(-count // tile_len) for count in counts),
            nodes=max(1, *(len(segment.state.tree) for segment in batch.segments), 1),
            blocks=-(-most_keys // sizes.block_len),
            keys=most_keys,
            picked=max(1, sum(segment.num_wanted for segment in batch.segments)),
            touched=MAX_TOUCHED if any(is_touched(segment.state.spec.sampling) for segment in batch.segments) else 1,
            tile_len=tile_len,
        )

    def _shape(self, rows: int, sequences: int) -> CardShape:
        sizes = self._sizes
        keys = min(sizes.max_context + MAX_BUCKET_NODES, sizes.num_blocks * sizes.block_len)
        tile_len = self._rows_per_tile(-(-rows // sequences))
        # every sequence, and the padding, may end in a tile that is not full
        tiles = min(rows, rows // tile_len + sequences + 1)
        return CardShape(rows, sequences, tiles, MAX_BUCKET_NODES, -(-keys // sizes.block_len), keys, rows, MAX_TOUCHED, tile_len)


def _powers_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and last the first that is at least `most`."""
    powers = [1]
    while powers[-1] < most:
        powers.append(2 * powers[-1])
    return powers
