"""The fused pick under top-k, top-p and min-p, where that is certain, and the pick's probability: a whole step in three launches.

A filter keeps a prefix of one order (larger logit first, then lower id), so the winner over all tokens is the pick whenever it lies in
that prefix itself. A second pass counts the tokens before it, their mass and all mass, and whether every logit is a number; a winner
outside, or too close to the edge of a nucleus to say, leaves the row (LEFT) to the general pick. Winners come from `triton_pick`. Must
not know trees. Source: Gumbel-max sampling; online softmax (Milakov & Gimelshein 2018) for the masses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider_kernels.pick_rows import PickRows, Winners
from outrider_kernels.triton_pick import BLOCK_TOKENS, pick

LEFT = -1

# Far above the rounding of a float32 mass over a large vocabulary.
_CLEAR_MARGIN = tl.constexpr(1e-3)
_INFINITY = tl.constexpr(float("inf"))


@dataclass(frozen=True, slots=True)
class FilteredRows:
    """What decides the rows besides logits, all [rows]. keys (bits of the unsigned key) and positions (of the picked token): int64.

    temperatures: float64, 0 for the argmax, NaN for a row that is somebody else's (LEFT). top_ks: int64, 0 is off. top_ps: float64, 1 is
    off. min_p_gaps: float64, infinite is off: the largest distance below the best logit that stays.
    """

    keys: Tensor
    positions: Tensor
    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_p_gaps: Tensor


def filtered_pick(logits: Tensor, rows: FilteredRows, tokens: Tensor, probs: Tensor) -> None:
    """The pick of each row of logits [rows, num_ids] (any floating dtype, a dense last axis), written into tokens and probs.

    tokens: int32 [rows], LEFT where the row is left. probs: float32 [rows], of the pick under softmax(logits / T) without filters, at
    T = 0 at temperature 1; NaN where the row is left. Allocates nothing but what it gives back to the allocator.
    """
    num_rows, num_ids = logits.shape
    winners = pick(logits, PickRows(rows.keys, rows.positions, rows.temperatures))
    if num_rows == 0:
        return
    num_tiles = triton.cdiv(num_ids, BLOCK_TOKENS)
    masses = torch.empty(3, num_rows, num_tiles, dtype=torch.float32, device=logits.device)
    counts = torch.empty(2, num_rows, num_tiles, dtype=torch.int32, device=logits.device)
    _judge(logits, rows, winners, masses, counts)
    _decide_kernel[(num_rows,)](
        masses, counts, winners.logits, winners.tokens, rows.temperatures, rows.top_ks, rows.top_ps, rows.min_p_gaps, tokens, probs,
        num_tiles, num_rows * num_tiles, LEFT=LEFT, TILE_PARTS=triton.next_power_of_2(num_tiles),
    )  # fmt: skip


def _judge(logits: Tensor, rows: FilteredRows, winners: Winners, masses: Tensor, counts: Tensor) -> None:
    _judge_kernel[(logits.shape[0], masses.shape[2])](
        logits, winners.logits, winners.tokens, rows.temperatures, masses, counts, logits.shape[1], logits.stride(0), masses[0].numel(),
        BLOCK_TOKENS=BLOCK_TOKENS,
    )  # fmt: skip


@triton.jit
def _judge_kernel(
    logits: tl.tensor, winner_logits: tl.tensor, winner_tokens: tl.tensor, temperatures: tl.tensor, masses_out: tl.tensor,
    counts_out: tl.tensor, num_ids: tl.tensor, logits_stride: tl.tensor, part_stride: tl.tensor,
    BLOCK_TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    """One row, one tile of the vocabulary: its best logit, its mass relative to that, the mass and the number of tokens before the winner,
    and the number of logits that are none."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    real = column < num_ids
    logit = tl.load(logits + row * logits_stride + column, mask=real, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperatures + row).to(tl.float32)
    divisor = tl.where(temperature > 0.0, temperature, 1.0)
    best = tl.max(logit, axis=0)
    finite_best = tl.where(best == float("-inf"), 0.0, best)
    weight = tl.exp((logit - finite_best) / divisor)
    winner_logit, winner_token = tl.load(winner_logits + row), tl.load(winner_tokens + row)
    is_before = real & ((logit > winner_logit) | ((logit == winner_logit) & (column < winner_token)))
    index = row * tl.num_programs(1) + tile
    tl.store(masses_out + index, best)
    tl.store(masses_out + part_stride + index, tl.sum(weight, axis=0))
    tl.store(masses_out + 2 * part_stride + index, tl.sum(tl.where(is_before, weight, 0.0), axis=0))
    tl.store(counts_out + index, tl.sum(is_before.to(tl.int32), axis=0))
    tl.store(counts_out + part_stride + index, tl.sum((logit != logit).to(tl.int32), axis=0))


@triton.jit
def _decide_kernel(
    masses: tl.tensor, counts: tl.tensor, winner_logits: tl.tensor, winner_tokens: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor,
    top_ps: tl.tensor, min_p_gaps: tl.tensor, tokens_out: tl.tensor, probs_out: tl.tensor, num_parts: tl.tensor, part_stride: tl.tensor,
    LEFT: tl.constexpr, TILE_PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """One row's parts: whether its winner is the pick for certain."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, TILE_PARTS)
    real = part < num_parts
    index = row * num_parts + part
    part_best = tl.load(masses + index, mask=real, other=float("-inf"))
    part_mass = tl.load(masses + part_stride + index, mask=real, other=0.0)
    part_before = tl.load(masses + 2 * part_stride + index, mask=real, other=0.0)
    num_before = tl.sum(tl.load(counts + index, mask=real, other=0), axis=0)
    num_not_numbers = tl.sum(tl.load(counts + part_stride + index, mask=real, other=0), axis=0)
    temperature = tl.load(temperatures + row)
    divisor = tl.where(temperature > 0.0, temperature, 1.0).to(tl.float32)
    best = tl.max(part_best, axis=0)
    is_number = (num_not_numbers == 0) & (best > float("-inf")) & (best < _INFINITY)
    finite_best = tl.where(is_number, best, 0.0)
    share = tl.where(part_best > float("-inf"), tl.exp((part_best - finite_best) / divisor), 0.0)
    mass = tl.sum(part_mass * share, axis=0)
    before = tl.sum(part_before * share, axis=0)
    winner_logit, winner_token = tl.load(winner_logits + row), tl.load(winner_tokens + row)

    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    is_first = num_before == 0
    in_top_k = (top_k == 0) | (num_before < top_k)
    # Behind top-k the nucleus is one of fewer tokens, of which those up to the winner are known: their mass at least.
    own = tl.exp((winner_logit - finite_best) / divisor)
    whole = tl.where(top_k == 0, mass, before + own)
    in_nucleus = (top_p >= 1.0) | (before.to(tl.float64) < (top_p - _CLEAR_MARGIN) * whole.to(tl.float64))
    near = finite_best.to(tl.float64) - winner_logit.to(tl.float64) <= tl.load(min_p_gaps + row)
    is_inside = (temperature == 0.0) | is_first | (in_top_k & in_nucleus & near)
    is_decided = is_number & is_inside & (temperature == temperature)
    tl.store(tokens_out + row, tl.where(is_decided, winner_token, LEFT))
    tl.store(probs_out + row, tl.where(is_decided, own / mass, float("nan")))
