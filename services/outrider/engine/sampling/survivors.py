"""The bulk stage of the pick: which tokens of a row could win at all, from one hash and one exponential a token.

With E = -log u the pick is argmin E_v / exp(logit_v / T) (an exponential race). The best logit's own score B is known, and E >= 1 - u, so a
winner must satisfy 1 - u_v <= exp((logit_v - best) / T - B): no logarithm is needed to rule nearly every token out. Comparisons
are loose by SLACK and by truncation to 32 bits, both in the direction that keeps a token. Must not know top-k, top-p or min-p.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.engine import noise_torch
from outrider.noise.field import (
    MIX_FACTOR_1,
    MIX_FACTOR_2,
    MIX_SHIFT_1,
    MIX_SHIFT_2,
    MIX_SHIFT_3,
    TOKEN_STEP,
    BitsArray,
)

IdArray = npt.NDArray[np.int64]
FloatArray64 = npt.NDArray[np.float64]

SLACK = 1e-3  # float32 rounding of the exponent is below 1e-4 wherever a token can win
_CHUNK_ELEMENTS = 1 << 15  # keeps the uint64 work arrays in a core's cache
TWO_32 = 4294967296.0
_LOWEST_BOUND = -1e9  # stands for -inf, which would make NaN of a masked logit
_MAX_COUNTER_TABLES = 8
LOWEST_EXPONENT = -80.0  # no token that far down can win; exponentials below are denormal and ten times slower
_MIN_TEMPERATURE = 1e-30  # keeps 1 / T finite in float32; flooring T here only keeps more tokens


def surviving_tokens(
    logits: Tensor, best: FloatArray64, temperatures: FloatArray64, bounds: FloatArray64, subkeys: BitsArray
) -> tuple[IdArray, IdArray]:
    """(row, token) int64 pairs that hold every token whose score reaches the row's bound, rows ascending, and a few others.

    logits: [num_rows, vocab] float32; tokens at -inf do not survive. best: float64, the row's largest logit. bounds: float64, what
    (score - best) / T must reach: for the pick, the Gumbel of the best logit's token; -inf lets everything survive. subkeys: uint64.
    """
    bounds = np.maximum(bounds - SLACK, _LOWEST_BOUND)
    rows_per_chunk = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    select = _select_numpy if logits.device.type == "cpu" else _select_torch
    step = rows_per_chunk if logits.device.type == "cpu" else len(logits)
    found: list[tuple[IdArray, IdArray]] = []
    for begin in range(0, len(logits), step):
        part = slice(begin, begin + step)
        weights = _weights(logits[part], best[part], temperatures[part], bounds[part])
        rows, tokens = select(weights, subkeys[part])
        found.append((rows + begin, tokens))
    return np.concatenate([rows for rows, _ in found]), np.concatenate([tokens for _, tokens in found])


def _weights(logits: Tensor, best: FloatArray64, temperatures: FloatArray64, bounds: FloatArray64) -> Tensor:
    """float32 2^32 * exp((logit - best) / T - bound)."""
    columns = np.stack([best, 1.0 / np.maximum(temperatures, _MIN_TEMPERATURE), bounds]).astype(np.float32)
    best_column, inverse_column, bound_column = torch.from_numpy(columns).to(logits.device).unsqueeze(-1)
    weights: Tensor = (logits - best_column).mul_(inverse_column).sub_(bound_column).clamp_min_(LOWEST_EXPONENT).exp_().mul_(TWO_32)
    return weights


def _select_numpy(weights: Tensor, subkeys: BitsArray) -> tuple[IdArray, IdArray]:
    limits = weights.numpy()
    high = high_words(subkeys, limits.shape[1])
    found = np.flatnonzero(np.invert(high, out=high).astype(np.float32) <= limits)  # flat: far cheaper than by row and column
    return np.divmod(found, limits.shape[1])


def high_words(subkeys: BitsArray, vocab: int) -> npt.NDArray[np.uint32]:
    """The upper halves of token_bits for every token, [num_rows, vocab]: the same mix with one work array and no last 64-bit shift."""
    mixed = subkeys[:, None] + _counters(vocab)
    work = mixed >> np.uint64(MIX_SHIFT_1)
    mixed ^= work
    mixed *= np.uint64(MIX_FACTOR_1)
    np.right_shift(mixed, np.uint64(MIX_SHIFT_2), out=work)
    mixed ^= work
    mixed *= np.uint64(MIX_FACTOR_2)
    high = (mixed >> np.uint64(32)).astype(np.uint32)
    # bits 63..32 of z ^ (z >> 31) are those of z xor its own top bit moved to the lowest place of the half
    high ^= high >> np.uint32(MIX_SHIFT_3)
    return high


@lru_cache(maxsize=_MAX_COUNTER_TABLES)
def _counters(vocab: int) -> BitsArray:
    """(token + 1) * TOKEN_STEP of every token; the same few vocabularies come back every step."""
    table = np.arange(1, vocab + 1, dtype=np.uint64) * np.uint64(TOKEN_STEP)
    table.flags.writeable = False
    return table


def _select_torch(weights: Tensor, subkeys: BitsArray) -> tuple[IdArray, IdArray]:
    keys = torch.from_numpy(subkeys.view(np.int64)).to(weights.device)
    tokens = torch.arange(weights.shape[1], device=weights.device)
    high = (noise_torch.token_bits(keys[:, None], tokens) >> 32) & 0xFFFFFFFF
    found = (0xFFFFFFFF - high).to(torch.float32) <= weights
    rows, columns = torch.nonzero(found, as_tuple=True)
    return rows.cpu().numpy(), columns.cpu().numpy()
