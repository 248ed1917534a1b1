"""Everything a step on a card reads besides weights and cache, side by side in one buffer: one copy brings it to the card.

Knows the order and sizes of the parts, which follow from a step's shape alone. Numbers of 8 bytes come first and each part begins at a
multiple of 16 bytes, which compiled kernels may count on. The block table and then the touched tokens are last, so that the copy can end
behind the last sequence, or behind the last row with penalties. Must not know models or how the parts are filled.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import accumulate
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider_kernels.bit_mask import WORD_BITS

ALIGNED_WORDS = 4  # of 4 bytes
TOUCHED_WORDS = 4  # of a touched token: its id, its count, and a bias of two
PADDING_SEQUENCE = 0  # rows of padding are its only rows

HostArray = npt.NDArray[Any]
Part = TypeVar("Part", Tensor, HostArray)


@dataclass(frozen=True, slots=True)
class CardShape:
    """Sizes that make two steps the same program. All at least 1.

    rows: padding included. sequences: without that of the padding. tiles: of the attention. nodes: live nodes of a sequence. blocks: of a
    sequence. keys: of a sequence at most, for the number of splits. picked: rows with results. touched: tokens of a row whose logits a
    penalty or a bias changes. tile_len: rows of a tile, at most.
    """

    rows: int
    sequences: int
    tiles: int
    nodes: int
    blocks: int
    keys: int
    picked: int
    touched: int
    tile_len: int


@dataclass(frozen=True, slots=True)
class CardInputs(Generic[Part]):
    """Views of one buffer, on the card or on the host. Sequence 0 is that of the padding.

    tokens, positions, slots (of the pool): int64 [rows]. wanted: int64 [rows], rows with results, 0 behind them. keys (bits),
    pick_positions, top_ks: int64 [rows]; temperatures, top_ps, min_p_gaps: float64 [rows], of wanted rows (FilteredRows). The rest as in
    PagedRows: row_positions int32 [rows], row_ancestry int32 [rows, words], tiles int32 [tiles, 3], committed_lens and num_nodes int32
    [1 + sequences], node_positions int32 [1 + sequences, nodes], block_table int32 [1 + sequences, blocks]. Of wanted rows, as in
    TouchedTokens: repetitions, frequencies, presences float64 [rows], touched_lens int32 [rows], touched int32 [picked, 4 * touched]
    (card_penalties.py).
    """

    tokens: Part
    positions: Part
    slots: Part
    wanted: Part
    keys: Part
    pick_positions: Part
    top_ks: Part
    temperatures: Part
    top_ps: Part
    min_p_gaps: Part
    repetitions: Part
    frequencies: Part
    presences: Part
    touched_lens: Part
    row_positions: Part
    row_ancestry: Part
    tiles: Part
    committed_lens: Part
    num_nodes: Part
    node_positions: Part
    block_table: Part
    touched: Part


_NAMES = tuple(field.name for field in fields(CardInputs))
_WIDE_INTS = frozenset(("tokens", "positions", "slots", "wanted", "keys", "pick_positions", "top_ks"))
_WIDE_FLOATS = frozenset(("temperatures", "top_ps", "min_p_gaps", "repetitions", "frequencies", "presences"))


class CardLayout:
    """Where the parts of a shape's inputs are."""

    def __init__(self, shape: CardShape) -> None:
        self.shape = shape
        self._sizes = _part_sizes(shape)
        lens = [_aligned(prod(size) * (2 if name in _WIDE_INTS | _WIDE_FLOATS else 1)) for name, size in self._sizes.items()]
        self._begins = dict(zip(_NAMES, accumulate(lens, initial=0), strict=False))
        self.num_words = sum(lens)

    def tensors(self, buffer: Tensor) -> CardInputs[Tensor]:
        """Views of int32 [at least num_words]."""
        return CardInputs(**{name: self._tensor(name, buffer) for name in _NAMES})

    def arrays(self, buffer: HostArray) -> CardInputs[HostArray]:
        """Views of int32 [at least num_words]."""
        return CardInputs(**{name: self._array(name, buffer) for name in _NAMES})

    def used_words(self, num_sequences: int, num_touched_rows: int = 0) -> int:
        """Words up to the end of the last of so many sequences' block tables (that of the padding besides), or of so many rows' touched
        tokens."""
        if num_touched_rows:
            return self._begins["touched"] + num_touched_rows * TOUCHED_WORDS * self.shape.touched
        return self._begins["block_table"] + (1 + num_sequences) * self.shape.blocks

    def _tensor(self, name: str, buffer: Tensor) -> Tensor:
        begin, count = self._begins[name], prod(self._sizes[name])
        if name in _WIDE_INTS:
            return buffer[begin : begin + 2 * count].view(torch.int64).view(self._sizes[name])
        if name in _WIDE_FLOATS:
            return buffer[begin : begin + 2 * count].view(torch.float64).view(self._sizes[name])
        return buffer[begin : begin + count].view(self._sizes[name])

    def _array(self, name: str, buffer: HostArray) -> HostArray:
        begin, count = self._begins[name], prod(self._sizes[name])
        if name in _WIDE_INTS:
            return buffer[begin : begin + 2 * count].view(np.int64).reshape(self._sizes[name])
        if name in _WIDE_FLOATS:
            return buffer[begin : begin + 2 * count].view(np.float64).reshape(self._sizes[name])
        return buffer[begin : begin + count].reshape(self._sizes[name])


def num_words_of(num_nodes: int) -> int:
    """Words of a row's ancestry."""
    return max(1, -(-num_nodes // WORD_BITS))


def _part_sizes(shape: CardShape) -> dict[str, tuple[int, ...]]:
    sequences = 1 + shape.sequences
    own: dict[str, tuple[int, ...]] = {
        "row_ancestry": (shape.rows, num_words_of(shape.nodes)),
        "tiles": (shape.tiles, 3),
        "committed_lens": (sequences,),
        "num_nodes": (sequences,),
        "node_positions": (sequences, shape.nodes),
        "block_table": (sequences, shape.blocks),
        "touched": (shape.picked, TOUCHED_WORDS * shape.touched),
    }
    return {name: own.get(name, (shape.rows,)) for name in _NAMES}


def _aligned(num_words: int) -> int:
    return -(-num_words // ALIGNED_WORDS) * ALIGNED_WORDS
