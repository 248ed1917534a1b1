"""What a pick sees of its logits: bias, penalties and allowed tokens, plain. The definition of what the fused picks do on their way.

A touched logit is computed in float64 and rounded once: its bias is added; where the token was seen, a positive value is divided by the
repetition penalty and any other multiplied; then frequency penalty times count, then the presence penalty where the count is positive, are
subtracted. A token that is not allowed is at -inf. Must not know temperatures, noise or filters. Source: docs/noise.md, of which this is
the kernels' own copy, for this package imports no other of ours; tests hold the two together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_kernels.bit_mask import WORD_BITS
from outrider_kernels.pick_rows import PickRows, TouchedTokens


def processed_logits(logits: Tensor, rows: PickRows, vocab_begin: int = 0) -> Tensor:
    """float32 [rows, num_ids]. logits: [rows, num_ids], ids [vocab_begin, vocab_begin + num_ids), of which bias and allowed are."""
    result = logits.float().clone()
    if rows.bias is not None:
        result += rows.bias
    if rows.touched is not None:
        _touch(result, rows.touched, vocab_begin)
    if rows.allowed is not None:
        result.masked_fill_(~unpack_bits(rows.allowed, logits.shape[1]), -torch.inf)
    return result


def unpack_bits(words: Tensor, num_columns: int) -> Tensor:
    """bool [rows, num_columns], which `pack_bits` made words of."""
    column = torch.arange(num_columns, device=words.device)
    return (words[:, column // WORD_BITS] >> (column % WORD_BITS)) & 1 != 0


def _touch(result: Tensor, touched: TouchedTokens, vocab_begin: int) -> None:
    num_ids = result.shape[1]
    for row, length in enumerate(touched.lens.tolist()):
        tokens = touched.tokens[row, :length].long() - vocab_begin
        here = (tokens >= 0) & (tokens < num_ids)
        columns, counts = tokens[here], touched.counts[row, :length][here]
        value = result[row, columns].double() + touched.biases[row, :length][here]
        repeated = torch.where(value > 0.0, value / touched.repetition[row], value * touched.repetition[row])
        value = torch.where(counts >= 0, repeated, value)
        value = value - touched.frequency[row] * counts.clamp(min=0).double()
        value = value - touched.presence[row] * (counts > 0).double()
        result[row, columns] = value.float()
