"""The fused pick under top-k, top-p and min-p, where that is certain, and the pick's probability: a whole step in three launches.

A filter keeps a prefix of one order (larger logit first, then lower id), so the winner over all tokens is the pick whenever it lies in
that prefix itself. A second pass counts the tokens before it, their mass and all mass, and whether every logit is a number; a winner
outside, or too close to the edge of a nucleus to say, leaves the row (LEFT) to the general pick. Winners come from `triton_pick`; logits,
and the probability with them, are those after bias, penalties and allowed tokens. A vocabulary cut into shards on several devices needs
its winner before its masses: pick, merge_shards, judge, reduced, merge_masses, decide. Must not know trees. Source: Gumbel-max sampling;
online softmax (Milakov & Gimelshein 2018) for the masses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider_kernels.pick_rows import PickRows, TouchedTokens, Winners
from outrider_kernels.triton_noise import NO_FUSION
from outrider_kernels.triton_pick import BLOCK_TOKENS, pick
from outrider_kernels.triton_touched import processed_tile, rule_arguments, rule_constants

LEFT = -1
NUM_SUMS, NUM_COUNTS = 3, 2

# Far above the rounding of a float32 mass over a large vocabulary.
_CLEAR_MARGIN = tl.constexpr(1e-3)
_INFINITY = tl.constexpr(float("inf"))


@dataclass(frozen=True, slots=True)
class FilteredRows:
    """What decides the rows besides logits, all [rows]. keys (bits of the unsigned key) and positions (of the picked token): int64.

    temperatures: float64, 0 for the argmax, NaN for a row that is somebody else's (LEFT). top_ks: int64, 0 is off. top_ps: float64, 1 is
    off. min_p_gaps: float64, infinite is off: the largest distance below the best logit that stays. bias, allowed, touched: see PickRows.
    """

    keys: Tensor
    positions: Tensor
    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_p_gaps: Tensor
    bias: Tensor | None = None
    allowed: Tensor | None = None
    touched: TouchedTokens | None = None

    def unfiltered(self) -> PickRows:
        """What decides the winners over all tokens."""
        return PickRows(self.keys, self.positions, self.temperatures, self.bias, self.allowed, self.touched)


@dataclass(frozen=True, slots=True)
class RowMasses:
    """What parts of a vocabulary say about a winner over all of it.

    sums: float32 [NUM_SUMS, rows, parts]: the best logit; the mass relative to that; the mass before the winner, likewise. counts: int32
    [NUM_COUNTS, rows, parts]: tokens before the winner; logits that are no numbers.
    """

    sums: Tensor
    counts: Tensor


def filtered_pick(logits: Tensor, rows: FilteredRows, tokens: Tensor, probs: Tensor) -> None:
    """The pick of each row of logits [rows, num_ids] (any floating dtype, a dense last axis), written into tokens and probs.

    tokens: int32 [rows], LEFT where the row is left. probs: float32 [rows], of the pick under softmax(logits / T) without filters, at T = 0
    at temperature 1; NaN where the row is left. Allocates nothing but what it gives back to the allocator.
    """
    winners = pick(logits, rows.unfiltered())
    decide(judge(logits, rows, winners), winners, rows, tokens, probs)


def judge(logits: Tensor, rows: FilteredRows, winners: Winners, vocab_begin: int = 0) -> RowMasses:
    """By tiles of logits [rows, num_ids] of the ids [vocab_begin, vocab_begin + num_ids). winners: over the whole vocabulary."""
    num_rows, num_ids = logits.shape
    masses = _empty(num_rows, triton.cdiv(num_ids, BLOCK_TOKENS), logits.device)
    plain = rows.unfiltered()
    if num_rows:
        _judge_kernel[(num_rows, masses.sums.shape[2])](
            logits, winners.logits, winners.tokens, rows.temperatures, masses.sums, masses.counts, num_ids, vocab_begin, logits.stride(0),
            masses.sums[0].numel(), *rule_arguments(plain, logits), **rule_constants(plain), BLOCK_TOKENS=BLOCK_TOKENS, **NO_FUSION,
        )  # fmt: skip
    return masses


def reduced(masses: RowMasses, temperatures: Tensor) -> RowMasses:
    """One part a row, for a shard's tiles: a few numbers to send instead of many. temperatures: float64 [rows]."""
    num_rows, num_parts = masses.sums.shape[1:]
    out = _empty(num_rows, 1, masses.sums.device)
    if num_rows:
        _reduce_kernel[(num_rows,)](
            masses.sums, masses.counts, temperatures, out.sums, out.counts, num_parts, num_rows * num_parts, num_rows,
            TILE_PARTS=triton.next_power_of_2(num_parts),
        )  # fmt: skip
    return out


def merge_masses(shards: Sequence[RowMasses]) -> RowMasses:
    """Of a vocabulary cut into shards, on one device and in any order."""
    return RowMasses(torch.cat([shard.sums for shard in shards], dim=2), torch.cat([shard.counts for shard in shards], dim=2))


def decide(masses: RowMasses, winners: Winners, rows: FilteredRows, tokens: Tensor, probs: Tensor) -> None:
    """Whether each winner is the pick for certain, into tokens and probs, as filtered_pick says them."""
    num_rows, num_parts = masses.sums.shape[1:]
    if num_rows:
        _decide_kernel[(num_rows,)](
            masses.sums, masses.counts, winners.logits, winners.tokens, rows.temperatures, rows.top_ks, rows.top_ps, rows.min_p_gaps,
            tokens, probs, num_parts, num_rows * num_parts, LEFT=LEFT, TILE_PARTS=triton.next_power_of_2(num_parts),
        )  # fmt: skip


def _empty(num_rows: int, num_parts: int, device: torch.device) -> RowMasses:
    return RowMasses(
        torch.empty(NUM_SUMS, num_rows, num_parts, dtype=torch.float32, device=device),
        torch.empty(NUM_COUNTS, num_rows, num_parts, dtype=torch.int32, device=device),
    )


@triton.jit
def _judge_kernel(
    logits: tl.tensor, winner_logits: tl.tensor, winner_tokens: tl.tensor, temperatures: tl.tensor, sums_out: tl.tensor,
    counts_out: tl.tensor, num_ids: tl.tensor, vocab_begin: tl.tensor, logits_stride: tl.tensor, part_stride: tl.tensor, bias: tl.tensor,
    allowed: tl.tensor, bias_stride: tl.tensor, allowed_stride: tl.tensor, touched_lens: tl.tensor, touched_tokens: tl.tensor,
    touched_counts: tl.tensor, touched_biases: tl.tensor, repetitions: tl.tensor, frequencies: tl.tensor, presences: tl.tensor,
    touched_stride: tl.tensor, biases_stride: tl.tensor,
    HAS_BIAS: tl.constexpr, HAS_ALLOWED: tl.constexpr, TILE_TOUCHED: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    """One row, one tile of the vocabulary: what RowMasses says of it."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    real = column < num_ids
    own_logits = logits + row * logits_stride
    raw = tl.load(own_logits + column, mask=real, other=float("-inf")).to(tl.float32)
    logit = processed_tile(
        raw, row, column, own_logits, num_ids, vocab_begin, bias, allowed, bias_stride, allowed_stride, touched_lens, touched_tokens,
        touched_counts, touched_biases, repetitions, frequencies, presences, touched_stride, biases_stride,
        HAS_BIAS, HAS_ALLOWED, TILE_TOUCHED,
    )  # fmt: skip
    temperature = tl.load(temperatures + row).to(tl.float32)
    divisor = tl.where(temperature > 0.0, temperature, 1.0)
    best, weight = _best_and_weights(logit, divisor)
    winner_logit, winner_token = tl.load(winner_logits + row), tl.load(winner_tokens + row)
    token = vocab_begin + column
    is_before = real & ((logit > winner_logit) | ((logit == winner_logit) & (token < winner_token)))
    index = row * tl.num_programs(1) + tile
    tl.store(sums_out + index, best)
    tl.store(sums_out + part_stride + index, tl.sum(weight, axis=0))
    tl.store(sums_out + 2 * part_stride + index, tl.sum(tl.where(is_before, weight, 0.0), axis=0))
    tl.store(counts_out + index, tl.sum(is_before.to(tl.int32), axis=0))
    tl.store(counts_out + part_stride + index, tl.sum((raw != raw).to(tl.int32), axis=0))


@triton.jit
def _best_and_weights(logit: tl.tensor, divisor: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The best of a tile, and every token's weight relative to that."""
    best = tl.max(logit, axis=0)
    finite_best = tl.where(best == float("-inf"), 0.0, best)
    return best, tl.exp((logit - finite_best) / divisor)


@triton.jit
def _row_totals(
    sums: tl.tensor, counts: tl.tensor, index: tl.tensor, real: tl.tensor, part_stride: tl.tensor, divisor: tl.tensor
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """What RowMasses says, of all parts of a row as one."""
    part_best = tl.load(sums + index, mask=real, other=float("-inf"))
    best = tl.max(part_best, axis=0)
    finite_best = tl.where(tl.abs(best) < _INFINITY, best, 0.0)
    share = tl.where(part_best > float("-inf"), tl.exp((part_best - finite_best) / divisor), 0.0)
    mass = tl.sum(tl.load(sums + part_stride + index, mask=real, other=0.0) * share, axis=0)
    before = tl.sum(tl.load(sums + 2 * part_stride + index, mask=real, other=0.0) * share, axis=0)
    num_before = tl.sum(tl.load(counts + index, mask=real, other=0), axis=0)
    num_not_numbers = tl.sum(tl.load(counts + part_stride + index, mask=real, other=0), axis=0)
    return best, mass, before, num_before, num_not_numbers


@triton.jit
def _reduce_kernel(
    sums: tl.tensor, counts: tl.tensor, temperatures: tl.tensor, sums_out: tl.tensor, counts_out: tl.tensor, num_parts: tl.tensor,
    part_stride: tl.tensor, num_rows: tl.tensor,
    TILE_PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """One row's parts into one."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, TILE_PARTS)
    temperature = tl.load(temperatures + row)
    divisor = tl.where(temperature > 0.0, temperature, 1.0).to(tl.float32)
    best, mass, before, num_before, num_not_numbers = _row_totals(
        sums, counts, row * num_parts + part, part < num_parts, part_stride, divisor
    )
    tl.store(sums_out + row, best)
    tl.store(sums_out + num_rows + row, mass)
    tl.store(sums_out + 2 * num_rows + row, before)
    tl.store(counts_out + row, num_before)
    tl.store(counts_out + num_rows + row, num_not_numbers)


@triton.jit
def _decide_kernel(
    sums: tl.tensor, counts: tl.tensor, winner_logits: tl.tensor, winner_tokens: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor,
    top_ps: tl.tensor, min_p_gaps: tl.tensor, tokens_out: tl.tensor, probs_out: tl.tensor, num_parts: tl.tensor, part_stride: tl.tensor,
    LEFT: tl.constexpr, TILE_PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """One row's parts: whether its winner is the pick for certain."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, TILE_PARTS)
    temperature = tl.load(temperatures + row)
    divisor = tl.where(temperature > 0.0, temperature, 1.0).to(tl.float32)
    best, mass, before, num_before, num_not_numbers = _row_totals(
        sums, counts, row * num_parts + part, part < num_parts, part_stride, divisor
    )
    is_number = (num_not_numbers == 0) & (best > float("-inf")) & (best < _INFINITY)
    finite_best = tl.where(is_number, best, 0.0)
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
