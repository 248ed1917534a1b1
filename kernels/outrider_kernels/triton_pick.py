"""The fused pick in Triton: bias, penalties, allowed tokens, temperature and addressed noise to one token a row, no score in memory.

The pick is the largest float64(logit) + temperature * float64(gumbel), ties to the larger logit, then to the lower id; temperature 0
is the largest logit. Tiles of the vocabulary leave their best, a second kernel takes the best of those, and shards of a vocabulary
on several devices are merged by the same rule, since the noise is addressed by the token's id in the whole vocabulary. The definition
is `outrider.noise.reference_pick` (docs/noise.md) of `outrider_kernels.processed_logits`; top-k, top-p and min-p are not here. Must not
know trees. Source: Gumbel-max sampling; the field and its order of rounding are ours.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider_kernels.pick_rows import PickRows, Winners
from outrider_kernels.triton_noise import NO_FUSION, gumbel_of, position_subkey, token_bits
from outrider_kernels.triton_touched import processed_tile, rule_arguments, rule_constants

BLOCK_TOKENS = 1024

_NO_TOKEN = tl.constexpr(2147483647)  # the id of padding: behind every real one among ties


def pick(logits: Tensor, rows: PickRows, vocab_begin: int = 0) -> Winners:
    """The pick of each row. logits: [rows, num_ids], any floating dtype, a dense last axis: ids [vocab_begin, vocab_begin + num_ids).

    Bias and allowed tokens are those of the same ids. Logits must be numbers or -inf.
    """
    num_rows, num_ids = logits.shape
    assert logits.stride(1) == 1
    assert num_ids > 0
    num_tiles = triton.cdiv(num_ids, BLOCK_TOKENS)
    tiles = _empty((num_rows, num_tiles), logits.device)
    if num_rows == 0:
        return _best_of(tiles)
    _tile_kernel[(num_rows, num_tiles)](
        logits, rows.keys, rows.positions, rows.temperatures, tiles.scores, tiles.logits, tiles.tokens, num_ids, vocab_begin,
        logits.stride(0), *rule_arguments(rows, logits), **rule_constants(rows), BLOCK_TOKENS=BLOCK_TOKENS, **NO_FUSION,
    )  # fmt: skip
    return _best_of(tiles)


def merge_shards(shards: Sequence[Winners]) -> Winners:
    """The pick over a vocabulary cut into shards, from the shards' own picks, on one device and in any order."""
    return _best_of(
        Winners(
            torch.stack([shard.scores for shard in shards], dim=1),
            torch.stack([shard.logits for shard in shards], dim=1),
            torch.stack([shard.tokens for shard in shards], dim=1),
        )
    )


def _empty(shape: tuple[int, ...], device: torch.device) -> Winners:
    return Winners(
        torch.empty(shape, dtype=torch.float64, device=device),
        torch.empty(shape, dtype=torch.float32, device=device),
        torch.empty(shape, dtype=torch.int32, device=device),
    )


def _best_of(parts: Winners) -> Winners:
    """From winners [rows, parts] to [rows]."""
    num_rows, num_parts = parts.scores.shape
    out = _empty((num_rows,), parts.scores.device)
    if num_rows:
        _best_kernel[(num_rows,)](
            parts.scores, parts.logits, parts.tokens, out.scores, out.logits, out.tokens, num_parts,
            TILE_PARTS=triton.next_power_of_2(num_parts),
        )  # fmt: skip
    return out


@triton.jit
def _store_best(
    score: tl.tensor, logit: tl.tensor, token: tl.tensor, index: tl.tensor, scores_out: tl.tensor, logits_out: tl.tensor,
    tokens_out: tl.tensor,
) -> None:  # fmt: skip
    """The largest score, then the larger logit, then the lower id, to place `index`."""
    best_score = tl.max(score, axis=0)
    leads = score == best_score
    best_logit = tl.max(tl.where(leads, logit, float("-inf")), axis=0)
    best_token = tl.min(tl.where(leads & (logit == best_logit), token, _NO_TOKEN), axis=0)
    tl.store(scores_out + index, best_score)
    tl.store(logits_out + index, best_logit)
    tl.store(tokens_out + index, best_token)


@triton.jit
def _tile_kernel(
    logits: tl.tensor, keys: tl.tensor, positions: tl.tensor, temperatures: tl.tensor, scores_out: tl.tensor, logits_out: tl.tensor,
    tokens_out: tl.tensor, num_ids: tl.tensor, vocab_begin: tl.tensor, logits_stride: tl.tensor, bias: tl.tensor, allowed: tl.tensor,
    bias_stride: tl.tensor, allowed_stride: tl.tensor, touched_lens: tl.tensor, touched_tokens: tl.tensor, touched_counts: tl.tensor,
    touched_biases: tl.tensor, repetitions: tl.tensor, frequencies: tl.tensor, presences: tl.tensor, touched_stride: tl.tensor,
    biases_stride: tl.tensor,
    HAS_BIAS: tl.constexpr, HAS_ALLOWED: tl.constexpr, TILE_TOUCHED: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    """One row, one tile of the vocabulary."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    real = column < num_ids
    own_logits = logits + row * logits_stride
    logit = tl.load(own_logits + column, mask=real, other=float("-inf")).to(tl.float32)
    logit = processed_tile(
        logit, row, column, own_logits, num_ids, vocab_begin, bias, allowed, bias_stride, allowed_stride, touched_lens, touched_tokens,
        touched_counts, touched_biases, repetitions, frequencies, presences, touched_stride, biases_stride,
        HAS_BIAS, HAS_ALLOWED, TILE_TOUCHED,
    )  # fmt: skip
    token = tl.where(real, vocab_begin + column, _NO_TOKEN)
    score = logit.to(tl.float64)
    temperature = tl.load(temperatures + row)
    if temperature > 0.0:
        subkey = position_subkey(tl.load(keys + row), tl.load(positions + row))
        noise = gumbel_of(token_bits(subkey, token.to(tl.int64)))
        score = score + temperature * noise.to(tl.float64)
    index = row * tl.num_programs(1) + tile
    _store_best(score, logit, token, index, scores_out, logits_out, tokens_out)


@triton.jit
def _best_kernel(
    scores: tl.tensor, logits: tl.tensor, tokens: tl.tensor, scores_out: tl.tensor, logits_out: tl.tensor, tokens_out: tl.tensor,
    num_parts: tl.tensor,
    TILE_PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """One row's parts."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, TILE_PARTS)
    real = part < num_parts
    index = row * num_parts + part
    score = tl.load(scores + index, mask=real, other=float("-inf"))
    logit = tl.load(logits + index, mask=real, other=float("-inf"))
    token = tl.load(tokens + index, mask=real, other=_NO_TOKEN)
    _store_best(score, logit, token, row, scores_out, logits_out, tokens_out)
