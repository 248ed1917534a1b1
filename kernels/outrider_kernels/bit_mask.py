"""Masks as bits: which nodes are ancestors of a row, which tokens a row may emit. Must not know what the bits mean."""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32


def pack_bits(mask: Tensor) -> Tensor:
    """bool [rows, columns] to int32 [rows, max(1, ceil(columns / 32))], column c in bit c % 32 of word c // 32."""
    num_rows, num_columns = mask.shape
    num_words = max(1, -(-num_columns // WORD_BITS))
    padded = torch.zeros(num_rows, num_words * WORD_BITS, dtype=torch.int64, device=mask.device)
    padded[:, :num_columns] = mask
    places = torch.arange(WORD_BITS, dtype=torch.int64, device=mask.device)
    words = (padded.view(num_rows, num_words, WORD_BITS) << places).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)  # the sign bit is the last column
