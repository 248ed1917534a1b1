"""What goes into a pick besides logits, and what comes out of one: rows of tensors. Must not know how a device picks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Winners:
    """The best token of each row over a part of the vocabulary: scores float64 [rows], logits float32 [rows], tokens int32 [rows]."""

    scores: Tensor
    logits: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class TouchedTokens:
    """The few tokens of each row whose logits a bias or a penalty changes; the rest of a row is as it is. Last axes are dense.

    lens: int32 [rows], how many of a row's entries are real. tokens: int32 [rows, most], ascending, ids of the whole vocabulary. counts:
    int32 [rows, most], how often in the output, 0 for the prompt's others, UNSEEN for one that is biased only. biases: float64 [rows,
    most]. repetition (1 is off), frequency, presence (0 is off): float64 [rows].
    """

    lens: Tensor
    tokens: Tensor
    counts: Tensor
    biases: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


@dataclass(frozen=True, slots=True)
class PickRows:
    """What decides the rows besides logits. keys (bits of the unsigned key) and positions (of the picked token): int64 [rows].

    temperatures: float64 [rows], 0 for the argmax. bias: float32 [rows, num_ids], added to the logits, or None. allowed: int32
    [rows, num_words] from `pack_bits`, or None; a row that allows nothing picks its first id. touched: penalties and biases of single
    tokens, or None; not beside `bias`, which would round twice.
    """

    keys: Tensor
    positions: Tensor
    temperatures: Tensor
    bias: Tensor | None = None
    allowed: Tensor | None = None
    touched: TouchedTokens | None = None

    def __post_init__(self) -> None:
        assert self.bias is None or self.touched is None


@dataclass(frozen=True, slots=True)
class Walks:
    """paths: int32 [num_seqs, max_nodes], node indices, -1 behind the end. path_lens, emitted: int32 [num_seqs]. bonus: bool [num_seqs].

    bonus: the walk ended at a node without children, so that nothing was rejected.
    """

    paths: Tensor
    path_lens: Tensor
    emitted: Tensor
    bonus: Tensor
