"""Classical rejection of drafted chains in Triton: accepted lengths and replacements of all sequences, without a trip to the host.

Three launches. One program a sequence walks its chain, which reads two numbers a token. Tiles of the vocabulary then sum what is left of
the one row of each sequence where its walk ended, and one program a sequence finds the tile of its draw and the token in it. Uniforms are
addressed (docs/noise.md): by the position of the token that is judged or drawn, ordinal 0. Sums are float64 in an order that follows from
the vocabulary's length alone, so a call repeats itself. The definition is `outrider_kernels.rejection`. Must not know trees: siblings need
what is left after each other. Sources: Leviathan et al. 2023, Chen et al. 2023; inverse transform over tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider_kernels.rejection import NO_TOKEN, DraftChains, Judged
from outrider_kernels.triton_noise import NO_FUSION, position_subkey, token_bits, uniform_of

BLOCK_TOKENS = 1024

_NO_TOKEN = tl.constexpr(NO_TOKEN)
_NO_PLACE = tl.constexpr(2147483647)


@dataclass(frozen=True, slots=True)
class ChainNoise:
    """Where each sequence's randomness lives, all int64 [num_seqs]. accept_keys, residual_keys: bits of unsigned keys, different ones.

    bases: absolute position of the first drafted token.
    """

    accept_keys: Tensor
    residual_keys: Tensor
    bases: Tensor


def judge_chains(chains: DraftChains, noise: ChainNoise) -> Judged:
    """Judge every chain; see `outrider_kernels.rejection`. Tokens must be ids of the vocabulary: they are not checked."""
    chains.check()
    num_chains, num_ids = chains.begins.numel() - 1, chains.targets.shape[1]
    device = chains.tokens.device
    lens, emitted, bonus = torch.zeros(3, num_chains, dtype=torch.int32, device=device)
    if num_chains == 0:
        return Judged(lens, emitted, bonus.bool())
    num_tiles = triton.cdiv(num_ids, BLOCK_TOKENS)
    sums = torch.empty(2, num_chains, num_tiles, dtype=torch.float64, device=device)
    subtracts = torch.empty(num_chains, dtype=torch.int32, device=device)
    rows = (chains.targets, chains.drafts, chains.begins, lens, subtracts)
    strides = (chains.targets.stride(0), chains.drafts.stride(0))
    _walk_kernel[(num_chains,)](*rows, chains.tokens, noise.accept_keys, noise.bases, bonus, *strides, **NO_FUSION)
    _sum_kernel[(num_chains, num_tiles)](*rows, sums, num_ids, *strides, BLOCK_TOKENS=BLOCK_TOKENS, **NO_FUSION)
    _draw_kernel[(num_chains,)](
        *rows, sums, noise.residual_keys, noise.bases, emitted, num_ids, num_tiles, *strides,
        BLOCK_TOKENS=BLOCK_TOKENS, TILE_PARTS=triton.next_power_of_2(num_tiles), **NO_FUSION,
    )  # fmt: skip
    return Judged(lens, emitted, bonus.bool())


@triton.jit
def _walk_kernel(
    targets: tl.tensor, drafts: tl.tensor, begins: tl.tensor, lens_out: tl.tensor, subtracts_out: tl.tensor, tokens: tl.tensor,
    keys: tl.tensor, bases: tl.tensor, bonus_out: tl.tensor, target_stride: tl.tensor, draft_stride: tl.tensor,
) -> None:  # fmt: skip
    """One sequence's chain: how much of it is kept, and whether a draft is to be subtracted where it ends."""
    chain = tl.program_id(0)
    begin, end = tl.load(begins + chain), tl.load(begins + chain + 1)
    key, base = tl.load(keys + chain), tl.load(bases + chain)
    node = begin
    subtracts = tl.full([], 0, tl.int32)
    is_kept = tl.full([], 1, tl.int32)
    while (node < end) & (is_kept == 1):
        token = tl.load(tokens + node)
        drafted = tl.load(drafts + node.to(tl.int64) * draft_stride + token).to(tl.float64)
        wanted = tl.load(targets + (node + chain).to(tl.int64) * target_stride + token).to(tl.float64)
        r = uniform_of(token_bits(position_subkey(key, base + (node - begin)), tl.full([], 0, tl.int64)))
        is_kept = ((drafted > 0.0) & (r * drafted < wanted)).to(tl.int32)
        subtracts = ((drafted > 0.0) & (is_kept == 0)).to(tl.int32)
        node += is_kept
    tl.store(lens_out + chain, node - begin)
    tl.store(subtracts_out + chain, subtracts)
    tl.store(bonus_out + chain, (node == end).to(tl.int32))


@triton.jit
def _last_rows(
    targets: tl.tensor, drafts: tl.tensor, begins: tl.tensor, lens: tl.tensor, chain: tl.tensor, column: tl.tensor, subtracts: tl.tensor,
    num_ids: tl.tensor, target_stride: tl.tensor, draft_stride: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Target and what is left of it, at some columns of the row where a sequence's walk ended."""
    node = (tl.load(begins + chain) + tl.load(lens + chain)).to(tl.int64)
    real = column < num_ids
    target = tl.load(targets + (node + chain) * target_stride + column, mask=real, other=0.0).to(tl.float64)
    draft = tl.load(drafts + node * draft_stride + column, mask=real & (subtracts == 1), other=0.0).to(tl.float64)
    return target, tl.where(target > draft, target - draft, 0.0)


@triton.jit
def _sum_kernel(
    targets: tl.tensor, drafts: tl.tensor, begins: tl.tensor, lens: tl.tensor, subtracts: tl.tensor, sums_out: tl.tensor,
    num_ids: tl.tensor, target_stride: tl.tensor, draft_stride: tl.tensor,
    BLOCK_TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    """One sequence, one tile of the vocabulary: the mass of what is left, and of the target itself. sums: [2, num_seqs, num_tiles]."""
    chain, tile = tl.program_id(0), tl.program_id(1)
    column = tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    own = tl.load(subtracts + chain)
    target, left = _last_rows(targets, drafts, begins, lens, chain, column, own, num_ids, target_stride, draft_stride)
    num_tiles = tl.num_programs(1)
    tl.store(sums_out + chain * num_tiles + tile, tl.sum(left, axis=0))
    tl.store(sums_out + (tl.num_programs(0) + chain) * num_tiles + tile, tl.sum(target, axis=0))


@triton.jit
def _draw_kernel(
    targets: tl.tensor, drafts: tl.tensor, begins: tl.tensor, lens: tl.tensor, subtracts: tl.tensor, sums: tl.tensor, keys: tl.tensor,
    bases: tl.tensor, emitted_out: tl.tensor, num_ids: tl.tensor, num_tiles: tl.tensor, target_stride: tl.tensor, draft_stride: tl.tensor,
    BLOCK_TOKENS: tl.constexpr, TILE_PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """One sequence's draw: the first tile whose running sum exceeds the threshold, then the first token in it; never one without mass."""
    chain = tl.program_id(0)
    part = tl.arange(0, TILE_PARTS)
    real = part < num_tiles
    left_sums = tl.load(sums + chain * num_tiles + part, mask=real, other=0.0)
    target_sums = tl.load(sums + (tl.num_programs(0) + chain) * num_tiles + part, mask=real, other=0.0)
    is_empty = tl.sum(left_sums, axis=0) == 0.0
    masses = tl.where(is_empty, target_sums, left_sums)
    position = tl.load(bases + chain) + tl.load(lens + chain)
    r = uniform_of(token_bits(position_subkey(tl.load(keys + chain), position), tl.full([], 0, tl.int64)))
    running = tl.cumsum(masses, axis=0)
    threshold = r * tl.sum(tl.where(part == num_tiles - 1, running, 0.0), axis=0)
    last_part = tl.max(tl.where(masses > 0.0, part, -1), axis=0)
    tile = tl.minimum(tl.min(tl.where(real & (running > threshold), part, _NO_PLACE), axis=0), last_part)
    before = tl.sum(tl.where(part == tile - 1, running, 0.0), axis=0)
    tile = tl.maximum(tile, 0)

    column = tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    own = tl.load(subtracts + chain)
    target, left = _last_rows(targets, drafts, begins, lens, chain, column, own, num_ids, target_stride, draft_stride)
    weight = tl.where(is_empty, target, left)
    exceeds = (weight > 0.0) & (before + tl.cumsum(weight, axis=0) > threshold)
    last = tl.max(tl.where(weight > 0.0, column, _NO_TOKEN), axis=0)
    tl.store(emitted_out + chain, tl.minimum(tl.min(tl.where(exceeds, column, _NO_PLACE), axis=0), last))
