"""The seam between the paged engine and a model: hidden states of flat rows, and the head over some of them.

Two implementations: transformers' modules and our own lean forward. Must not know sequences, sampling or the cache's layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from outrider.engine.attention import StepAttention
from outrider.engine.paged_cache import LayerShape, PagedCache
from outrider.engine.step_batch import LongArray, StepBatch
from outrider.types.tree import FloatArray
from outrider_kernels.thin_chain import ChainIds, ChainSlots, ChainStart, Followed
from outrider_kernels.thin_pick import PickRule, ThinPick

if TYPE_CHECKING:
    from outrider.engine.card_attention import CardAttention


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """layers: cache sizes per layer. num_logits: columns of the head (padding included). max_positions: longest context trained for.

    group_len: query heads that share a key head, in the layer with most.
    """

    layers: tuple[LayerShape, ...]
    hidden_len: int
    num_logits: int
    max_positions: int
    group_len: int = 1


class RowChain(Protocol):
    """A sequence's next rows and its own picks, each fed as the row below the newest, as cheaply as the model can be called."""

    @property
    def logits(self) -> FloatArray:
        """float32 [most_rows, num_logits]: of the newest row, or of those that were wanted, which the next call overwrites; ids that stand
        for nothing are at -inf."""
        ...

    @property
    def most_rows(self) -> int:
        """That several may be wanted of."""
        ...

    def feeds(self, token: int, prob: float, stop_below: float) -> bool:
        """Whether a chain goes on with a pick of this probability: it ends no text, and is not below the bar."""
        ...

    def follow(self, start: ChainStart, rule: PickRule, where: ChainSlots) -> Followed:
        """Stores the rows' keys and values at logical slots start.position and on, and lets each see the slots up to its own."""
        ...

    def settle(self) -> None:
        """Before the model is called in another way, or what a sequence lies in is moved or freed: nothing is computed ahead any more."""
        ...


class ArrayForward(Protocol):
    """A cheaper way through the same model for few rows, without torch.

    is_invariant: a row's bits depend on what it attends to alone, and any number of rows may come; else it is for `fast` numerics only.
    """

    is_invariant: bool

    @property
    def picker(self) -> ThinPick | None:
        """What decides most picks after the logits sooner than numpy does; None where there is nothing."""
        ...

    def shorten(self, most_ids: int, kept: tuple[int, ...]) -> None:
        """From now on the logits of all but so many ids, `kept` among those, may be left out, which is to be at -inf (engine/shortlist.py):
        for picks that are guesses. Before a chain is made."""
        ...

    def row_chain(self, ids: ChainIds) -> RowChain | None:
        """The same model and pick for single rows of one sequence, with the same bits; None where there is no cheaper way than `logits`."""
        ...

    def logits(self, batch: StepBatch, wanted: LongArray) -> FloatArray:
        """Stores the rows' keys and values; float32 [wanted rows, num_logits] in order, which the next call may overwrite. wanted: flat
        rows with results."""
        ...


class CardForward(Protocol):
    """The same model's hidden states by way of kernels fused for a card."""

    def hidden(self, tokens: Tensor, positions: Tensor, attention: CardAttention) -> Tensor:
        """See DecoderForward; the attention is the card's own."""
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

    def card_forward(self) -> CardForward | None:
        """The model's CardForward, where its engine's steps run on a card in our own way; None where it has none. Needs Triton."""
        ...

    def hidden(self, tokens: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        """Final hidden states (after the last norm). tokens, positions: int64 [rows]. Returns [rows, hidden_len] in the model's dtype."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """The model's own head, soft cap and scale, computed in fp32. hidden: [rows, hidden_len]. Returns float32 [rows, num_logits]."""
        ...
