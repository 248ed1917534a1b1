"""Attention whose bits depend on a row's own tokens only: never on neighbours, schedule, tree shape or slots.

A row at position p splits its keys by position. Blocks of `block_len` positions that end before the row's window start
    window_start(p) = block_len * floor(max(0, p - max_depth) / block_len)
are certainly committed, hence shared by all rows of the sequence and read in place. The last max_depth + block_len positions are
gathered along the row's own path, in order of position, into a buffer of fixed size. Every block gives a local softmax (maximum,
sum, weighted values) by matrix products of one constant shape; the merge takes the exact maximum and adds blocks pairwise in groups
of fixed size. Padding adds exact zeros. A batch dimension may vary: its members are computed alike and apart.
Must not know block tables, sequences or trees. Source: online softmax, Milakov & Gimelshein 2018; split-KV merge as in
Flash-Decoding; the fixed order is ours (docs/architecture.md section 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HIDDEN_SCORE = -1e30  # finite, so that a block in which a row sees nothing gives weight exactly 0 and never NaN


@dataclass(frozen=True, slots=True)
class InvariantShape:
    """Sizes that decide the order of every sum, hence the bits; part of a fingerprint.

    num_rows: rows of every matrix product; a multiple of 16, so that vector loops have no remainder. block_len: positions of a
    shared block, a multiple of 16. max_depth: nodes on a path below the newest committed token that stay exact; a multiple of 16.
    group_blocks: blocks added up at once, a power of two.
    """

    num_rows: int = 16
    block_len: int = 32
    max_depth: int = 32
    group_blocks: int = 16

    @property
    def window_len(self) -> int:
        """Positions gathered per row."""
        return self.max_depth + self.block_len

    def window_start(self, position: int) -> int:
        """First position of a row's gathered window, a multiple of block_len."""
        return self.block_len * (max(0, position - self.max_depth) // self.block_len)


@dataclass(frozen=True, slots=True)
class InvariantRows:
    """The rows of one sequence among a tile of shape.num_rows; rows beyond num_rows are padding.

    window_slots: int64 [num_rows * window_len] cache slots by position from each row's window start (beyond the row: any slot).
    window_bias: float32 [num_rows, 1, window_len], 0 or HIDDEN_SCORE. first_block: shared blocks before it are hidden from all rows.
    shared_runs: views' slot ranges, in order, that cover the shared blocks [first_block, num_blocks).
    block_hidden: bool [num_blocks - first_block, shape.num_rows], True where the whole block is not shared with that row.
    shared_bias: float32 [num_blocks - first_block, shape.num_rows, block_len] or None when no row hides part of a shared block.
    """

    num_rows: int
    window_slots: Tensor
    window_bias: Tensor
    first_block: int
    num_blocks: int
    shared_runs: tuple[tuple[int, int], ...]
    block_hidden: Tensor | None
    shared_bias: Tensor | None


def invariant_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: InvariantRows,
    shape: InvariantShape,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of one sequence's rows in a tile.

    query: [num_rows <= shape.num_rows, heads, dim]. keys, values: the layer's pool [kv_heads, num_slots, dim]. All arithmetic is
    fp32. sinks: [heads], scores of a key that every row of a head sees and whose value is 0. Returns [num_rows, heads, dim] in the query's
    dtype.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[0]
    group_len = num_heads // num_kv_heads
    padded = query.new_zeros(shape.num_rows, num_heads, head_dim, dtype=torch.float32)
    torch.mul(query, scaling, out=padded[:num_rows]) if query.dtype == torch.float32 else padded[:num_rows].copy_(query).mul_(scaling)
    by_head = padded.view(shape.num_rows, num_kv_heads, group_len, head_dim).transpose(0, 1)  # [kv_heads, R, G, dim]
    top, weight, summed = _window(by_head[:, :num_rows].contiguous(), keys, values, rows, shape, softcap)
    if rows.num_blocks > rows.first_block:
        top, weight, summed = _merge_shared(by_head, keys, values, rows, shape, softcap, top, weight, summed)
    if sinks is not None:
        of_sinks = sinks.float().view(num_kv_heads, 1, group_len)
        merged_top = torch.maximum(top, of_sinks)
        own_scale = (top - merged_top).exp_()
        weight = (of_sinks - merged_top).exp_().add_(weight.mul_(own_scale))
        summed = summed.mul_(own_scale.unsqueeze(-1))
    out = summed.div_(weight.unsqueeze(-1))  # [kv_heads, R, G, dim]
    return out[:, :num_rows].transpose(0, 1).reshape(num_rows, num_heads, head_dim).to(query.dtype)


def _window(
    query: Tensor, keys: Tensor, values: Tensor, rows: InvariantRows, shape: InvariantShape, softcap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Local softmax over each row's own window; results padded to the tile: [kv_heads, R, G], the same, [kv_heads, R, G, dim]."""
    num_kv_heads, num_rows, group_len, head_dim = query.shape
    gathered = (num_kv_heads, num_rows, shape.window_len, head_dim)
    own_keys = keys.index_select(1, rows.window_slots).view(gathered).float()
    own_values = values.index_select(1, rows.window_slots).view(gathered).float()
    scores = torch.matmul(query, own_keys.transpose(2, 3))  # [kv_heads, rows, G, window_len]
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + rows.window_bias
    top = query.new_zeros(num_kv_heads, shape.num_rows, group_len)
    weight = query.new_ones(num_kv_heads, shape.num_rows, group_len)
    summed = query.new_zeros(num_kv_heads, shape.num_rows, group_len, head_dim)
    local_top = scores.amax(-1, keepdim=True)
    exponentials = (scores - local_top).exp_()
    top[:, :num_rows] = local_top.squeeze(-1)
    weight[:, :num_rows] = exponentials.sum(-1)
    summed[:, :num_rows] = torch.matmul(exponentials, own_values)
    return top, weight, summed


def _merge_shared(
    by_head: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: InvariantRows,
    shape: InvariantShape,
    softcap: float | None,
    top: Tensor,
    weight: Tensor,
    summed: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    num_kv_heads, num_tile_rows, group_len, head_dim = by_head.shape
    num_blocks = rows.num_blocks - rows.first_block
    blocked = (num_kv_heads, num_blocks, shape.block_len, head_dim)
    shared_keys = _shared(keys, rows.shared_runs).view(blocked)
    shared_values = _shared(values, rows.shared_runs).view(blocked)
    tile = by_head.reshape(num_kv_heads, 1, num_tile_rows * group_len, head_dim)  # rows outermost: (R, G)
    scores = torch.matmul(tile, shared_keys.transpose(2, 3))  # [kv_heads, blocks, R*G, block_len]
    if softcap is not None:
        scores = torch.tanh(scores / softcap).mul_(softcap)
    if rows.shared_bias is not None:
        scores.view(num_kv_heads, num_blocks, num_tile_rows, group_len, shape.block_len).add_(rows.shared_bias.unsqueeze(2))
    block_top = scores.amax(-1, keepdim=True)
    exponentials = scores.sub_(block_top).exp_()
    block_weight = exponentials.sum(-1)  # [kv_heads, blocks, R*G]
    block_summed = torch.matmul(exponentials, shared_values)  # [kv_heads, blocks, R*G, dim]
    block_top = block_top.view(num_kv_heads, num_blocks, num_tile_rows, group_len)
    if rows.block_hidden is not None:
        block_top = block_top.masked_fill(rows.block_hidden.unsqueeze(-1), HIDDEN_SCORE)
    merged_top = torch.maximum(top, block_top.amax(1))
    own_scale = (top - merged_top).exp_()
    block_scale = (block_top - merged_top.unsqueeze(1)).exp_().view(num_kv_heads, num_blocks, num_tile_rows * group_len)
    shared_weight = _grouped_sum(block_weight.mul_(block_scale), rows.first_block, shape.group_blocks)
    shared_summed = _grouped_sum(block_summed.mul_(block_scale.unsqueeze(-1)), rows.first_block, shape.group_blocks)
    weight = shared_weight.view_as(weight).add_(weight.mul_(own_scale))
    summed = shared_summed.view_as(summed).add_(summed.mul_(own_scale.unsqueeze(-1)))
    return merged_top, weight, summed


def _shared(pool: Tensor, runs: tuple[tuple[int, int], ...]) -> Tensor:
    """The shared blocks' slots, contiguous and in fp32: products of one shape must also have one layout."""
    if len(runs) == 1:
        return pool[:, runs[0][0] : runs[0][1]].to(torch.float32, memory_format=torch.contiguous_format).contiguous()
    return torch.cat([pool[:, begin:end] for begin, end in runs], dim=1).float()


def _grouped_sum(terms: Tensor, first_block: int, group_blocks: int) -> Tensor:
    """Sum over axis 1 in groups that begin at multiples of group_blocks, padded with zeros, groups added in order.

    first_block must be a multiple of group_blocks. terms: [kv_heads, blocks, ...]. Within a group the halves are added until one is
    left: only elementwise additions, for a library's own sum over an outer axis treats the last columns in another order.
    """
    assert first_block % group_blocks == 0
    num_groups = -(-terms.shape[1] // group_blocks)
    missing = num_groups * group_blocks - terms.shape[1]
    if missing:
        terms = torch.cat([terms, terms.new_zeros(terms.shape[0], missing, *terms.shape[2:])], dim=1)
    parts = terms.view(terms.shape[0], num_groups, group_blocks, *terms.shape[2:])
    while parts.shape[2] > 1:
        half = parts.shape[2] // 2
        parts = parts[:, :, :half] + parts[:, :, half:]
    total = parts[:, 0, 0].contiguous()
    for group in range(1, num_groups):
        total = total.add_(parts[:, group, 0])
    return total
