"""The seam between the paged engine and a model: hidden states of flat rows, and the head over some of them.

Two implementations: transformers' modules and our own lean forward. Must not know sequences, sampling or the cache's layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outrider.engine.attention import StepAttention
from outrider.engine.block_table import BlockTable
from outrider.engine.paged_cache import LayerShape, PagedCache
from outrider.engine.step_batch import LongArray, StepBatch
from outrider.types.tree import FloatArray


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """layers: cache sizes per layer. num_logits: columns of the head (padding included). max_positions: longest context trained for."""

    layers: tuple[LayerShape, ...]
    hidden_len: int
    num_logits: int
    max_positions: int


class RowForward(Protocol):
    """One row of one sequence at a time, the row that its newest live node is, as cheaply as the model can be called."""

    def logits(self, token: int, position: int, table: BlockTable) -> FloatArray:
        """Stores the row's keys and values at logical slot `position` and lets it see the slots up to there. float32 [num_logits], which
        the next call overwrites."""
        ...


class ArrayForward(Protocol):
    """A cheaper way through the same model for few rows, without torch.

    is_invariant: a row's bits depend on what it attends to alone, and any number of rows may come; else it is for `fast` numerics only.
    """

    is_invariant: bool

    @property
    def row_forward(self) -> RowForward | None:
        """The same for single rows, with the same bits; None where there is no cheaper way than `logits`."""
        ...

    def logits(self, batch: StepBatch, wanted: LongArray) -> FloatArray:
        """Stores the rows' keys and values; float32 [wanted rows, num_logits] in order. wanted: flat rows with results."""
        ...


class DecoderForward(Protocol):
    """A decoder-only model without cache, batch or pick."""

    @property
    def shape(self) -> DecoderShape:
        """Sizes, known once loaded."""
        ...

    def array_forward(self, cache: PagedCache) -> ArrayForward | None:
        """The model's ArrayForward over a cache; None where it has none, or where it would not be faster."""
        ...

    def hidden(self, tokens: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        """Final hidden states (after the last norm). tokens, positions: int64 [rows]. Returns [rows, hidden_len] in the model's dtype."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """The model's own head, soft cap and scale, computed in fp32. hidden: [rows, hidden_len]. Returns float32 [rows, num_logits]."""
        ...
