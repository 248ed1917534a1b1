"""Paged tree attention in Triton: every row of every sequence of a step in one launch, long prefixes split and merged by a second.

One program holds a tile of rows of one sequence times the query heads that share a key head, and walks its split's share of the keys
with an online softmax in fp32. Committed keys need positions only; the ancestry is read for tree nodes alone. Splits leave maximum,
weight and weighted sum; the merge adds them up. The definition is `reference_paged_tree_attention`. Runs on a GPU, or on the CPU
under Triton's interpreter. Must not know engines or caches beyond their pools. Source: Flash-Decoding's split (Dao et al. 2023),
online softmax (Milakov & Gimelshein 2018); query heads packed into rows as GQA kernels do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider_kernels.paged_tree_attention import PagedRows

MIN_TILE_ROWS = 16  # the smallest side of a matrix product on a tensor core
BLOCK_KEYS = 64
MIN_SPLIT_KEYS = 256  # a shorter split costs more in the merge than it saves
MAX_SPLITS = 64
WANTED_PROGRAMS = 264  # two for each multiprocessor of an H200

# Sizes that differ from step to step: compiled for any, not again for each that is 1 or a multiple of 16.
_STEP_SIZES = ("num_rows", "table_stride", "node_stride", "ancestry_stride")


@dataclass(frozen=True, slots=True)
class TreeLaunch:
    """How a step's rows are cut up; made once, used by every layer of one head layout.

    tiles: int32 [num_tiles, 3], sequence, first row, rows; one of no rows does nothing. tile_rows: rows times heads of a group in a tile,
    a power of two. num_splits: programs that share the keys of a tile.
    """

    rows: PagedRows
    tiles: Tensor
    tile_rows: int
    num_splits: int


def plan_launch(rows: PagedRows, num_heads: int, num_kv_heads: int, num_splits: int | None = None) -> TreeLaunch:
    """Tiles and splits of a step. num_splits: None chooses as many as keep a large GPU busy."""
    group_len = num_heads // num_kv_heads
    tiles: list[tuple[int, int, int]] = []
    begin = 0
    for sequence, num_rows in enumerate(rows.rows_per_sequence):
        tiles += tiles_of(sequence, begin, begin + num_rows, rows_per_tile(group_len))
        begin += num_rows
    if num_splits is None:
        num_splits = useful_splits(len(tiles), num_kv_heads, rows.max_keys)
    table = torch.tensor(tiles, dtype=torch.int32, device=rows.block_table.device).view(-1, 3)
    return TreeLaunch(rows, table, tile_rows_for(group_len, rows_per_tile(group_len)), num_splits)


def rows_per_tile(group_len: int) -> int:
    """Rows of a tile, so that rows times heads of a group fill the smallest product of a tensor core."""
    return max(1, MIN_TILE_ROWS // group_len)


def tile_rows_for(group_len: int, num_rows: int) -> int:
    """TreeLaunch.tile_rows of tiles of so many rows, for a layer whose groups have group_len heads."""
    return max(MIN_TILE_ROWS, int(triton.next_power_of_2(num_rows * group_len)))


def tiles_of(sequence: int, begin: int, end: int, num_rows: int) -> list[tuple[int, int, int]]:
    """(sequence, first row, rows) of the tiles of a sequence's rows [begin, end), num_rows in each but the last."""
    return [(sequence, first, min(num_rows, end - first)) for first in range(begin, end, num_rows)]


def useful_splits(num_tiles: int, num_kv_heads: int, max_keys: int) -> int:
    """Splits that keep a large GPU busy, a power of two: each number is a kernel of its own, compiled when it is first met.

    A sequence with few keys leaves some splits without work.
    """
    useful = min(MAX_SPLITS, -(-max_keys // MIN_SPLIT_KEYS))
    wanted = max(1, min(useful, WANTED_PROGRAMS // max(1, num_tiles * num_kv_heads)))
    return 1 << (wanted.bit_length() - 1)


def paged_tree_attention(
    query: Tensor, keys: Tensor, values: Tensor, launch: TreeLaunch, scaling: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """Attention of all rows of a step over their sequences' caches.

    query: [num_rows, heads, dim], dense. keys, values: a layer's pool [kv_heads, num_slots, dim], equal strides, a dense last axis.
    window: a row at position t sees positions > t - window. A row that sees nothing gets zeros. Returns the query's shape and dtype.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[0]
    rows, num_splits = launch.rows, launch.num_splits
    assert query.is_contiguous()
    assert keys.stride() == values.stride()
    assert keys.stride(2) == 1
    assert num_rows == len(rows.row_positions)
    out = torch.empty_like(query)
    if num_rows == 0:
        return out
    partial = torch.float32 if num_splits > 1 else query.dtype
    shape = (num_splits, num_rows, num_heads)
    summed = query.new_empty(*shape, head_dim, dtype=partial) if num_splits > 1 else out
    top, weight = query.new_empty(2, *(shape if num_splits > 1 else (1, 1, 1)), dtype=torch.float32)
    # Under the interpreter bf16 arithmetic is wrong without warning; on a card products of 16-bit operands are what it is fast at.
    wide = query.dtype == torch.float32 or (query.dtype == torch.bfloat16 and not query.is_cuda)
    block_dim = max(16, triton.next_power_of_2(head_dim))
    _split_kernel[(launch.tiles.shape[0], num_kv_heads, num_splits)](
        query, keys, values, launch.tiles, rows.block_table, rows.committed_lens, rows.num_nodes, rows.node_positions,
        rows.row_positions, rows.row_ancestry, summed, top, weight, scaling, softcap or 1.0, window or 0, num_rows, num_heads,
        keys.stride(0), keys.stride(1), rows.block_table.stride(0), rows.node_positions.stride(0), rows.row_ancestry.stride(0),
        GROUP_LEN=num_heads // num_kv_heads, HEAD_DIM=head_dim, BLOCK_LEN=rows.block_len, NUM_SPLITS=num_splits,
        HAS_WINDOW=window is not None, HAS_SOFTCAP=softcap is not None, WIDE=wide,
        TILE_ROWS=launch.tile_rows, BLOCK_KEYS=BLOCK_KEYS, BLOCK_DIM=block_dim,
    )  # fmt: skip
    if num_splits > 1:
        _merge_kernel[(num_rows, num_heads)](
            summed, top, weight, out, num_rows, num_heads, HEAD_DIM=head_dim, NUM_SPLITS=num_splits, BLOCK_DIM=block_dim
        )
    return out


@triton.jit
def _tanh(x: tl.tensor) -> tl.tensor:
    """Within 3 ulp of fp32: a series where 1 - exp would cancel, else the quotient of exponentials."""
    square = x * x
    series = -0.008863235529902197 * square + 0.021869488536155203
    series = series * square - 0.05396825396825397
    series = series * square + 0.13333333333333333
    series = series * square - 0.3333333333333333
    small = x + x * (series * square)
    fading = tl.exp(-2.0 * tl.abs(x))
    large = (1.0 - fading) / (1.0 + fading)
    return tl.where(tl.abs(x) < 0.25, small, tl.where(x < 0.0, -large, large))


@triton.jit
def _slots_of(key: tl.tensor, present: tl.tensor, block_table: tl.tensor, BLOCK_LEN: tl.constexpr) -> tl.tensor:
    """Pool slots of logical keys. block_table: of their sequence."""
    block = tl.load(block_table + key // BLOCK_LEN, mask=present, other=0)
    return block.to(tl.int64) * BLOCK_LEN + key % BLOCK_LEN


@triton.jit
def _add_block(
    query: tl.tensor, keys: tl.tensor, values: tl.tensor, slot: tl.tensor, present: tl.tensor, visible: tl.tensor, slot_stride: tl.tensor,
    scaling: tl.tensor, softcap: tl.tensor, top: tl.tensor, weight: tl.tensor, summed: tl.tensor,
    HEAD_DIM: tl.constexpr, HAS_SOFTCAP: tl.constexpr, WIDE: tl.constexpr, BLOCK_DIM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """One block of keys into the online softmax. visible: [rows, keys]; what is not present is not read."""
    dim = tl.arange(0, BLOCK_DIM)
    address = slot[:, None] * slot_stride + dim[None, :]
    readable = present[:, None] & (dim < HEAD_DIM)[None, :]
    block_keys = tl.load(keys + address, mask=readable, other=0.0)
    block_values = tl.load(values + address, mask=readable, other=0.0)
    if WIDE:
        block_keys = block_keys.to(tl.float32)
        block_values = block_values.to(tl.float32)
    scores = tl.dot(query, tl.trans(block_keys), input_precision="ieee") * scaling
    if HAS_SOFTCAP:
        scores = softcap * _tanh(scores / softcap)
    scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen nothing yet: weights 0, not NaN
    fading = tl.exp(top - finite_top)
    exponentials = tl.exp(scores - finite_top[:, None])
    weight = weight * fading + tl.sum(exponentials, axis=1)
    summed = summed * fading[:, None] + tl.dot(exponentials.to(block_values.dtype), block_values, input_precision="ieee")
    return new_top, weight, summed


@triton.jit(do_not_specialize=_STEP_SIZES)
def _split_kernel(
    query: tl.tensor, keys: tl.tensor, values: tl.tensor, tiles: tl.tensor, block_table: tl.tensor, committed_lens: tl.tensor,
    num_nodes: tl.tensor, node_positions: tl.tensor, row_positions: tl.tensor, row_ancestry: tl.tensor, summed_out: tl.tensor,
    top_out: tl.tensor, weight_out: tl.tensor, scaling: tl.tensor, softcap: tl.tensor, window: tl.tensor, num_rows: tl.tensor,
    num_heads: tl.tensor, head_stride: tl.tensor, slot_stride: tl.tensor, table_stride: tl.tensor, node_stride: tl.tensor,
    ancestry_stride: tl.tensor,
    GROUP_LEN: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_LEN: tl.constexpr, NUM_SPLITS: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, WIDE: tl.constexpr, TILE_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr,
) -> None:  # fmt: skip
    """A tile of rows, one key head, one split of the keys. With one split the result itself is stored, else the partial sums."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(tiles + tile * 3)
    first_row = tl.load(tiles + tile * 3 + 1)
    tile_len = tl.load(tiles + tile * 3 + 2)
    member = tl.arange(0, TILE_ROWS)
    real = member < tile_len * GROUP_LEN
    row = first_row + member // GROUP_LEN
    head = kv_head * GROUP_LEN + member % GROUP_LEN
    position = tl.load(row_positions + row, mask=real, other=0)
    newest = tl.max(tl.where(real, position, -1), axis=0)
    oldest = tl.min(tl.where(real, position, 2147483647), axis=0)
    committed_len = tl.load(committed_lens + sequence)
    # Committed rows end at their own positions; rows at or behind committed_len are tree nodes.
    key_end = tl.where(newest < committed_len, newest + 1, committed_len + tl.load(num_nodes + sequence))
    key_begin = 0
    if HAS_WINDOW:
        key_begin = tl.minimum(tl.maximum(oldest - window + 1, 0), committed_len) // BLOCK_KEYS * BLOCK_KEYS
    split_len = tl.cdiv(tl.cdiv(key_end - key_begin, NUM_SPLITS), BLOCK_KEYS) * BLOCK_KEYS
    begin = key_begin + split * split_len
    end = tl.minimum(begin + split_len, key_end)

    dim = tl.arange(0, BLOCK_DIM)
    query_address = (row * num_heads + head).to(tl.int64)[:, None] * HEAD_DIM + dim[None, :]
    storable = real[:, None] & (dim < HEAD_DIM)[None, :]
    rows_query = tl.load(query + query_address, mask=storable, other=0.0)
    if WIDE:
        rows_query = rows_query.to(tl.float32)
    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride
    block_table += sequence * table_stride
    top = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([TILE_ROWS], tl.float32)
    summed = tl.zeros([TILE_ROWS, BLOCK_DIM], tl.float32)

    prefix_end = tl.minimum(end, committed_len)
    for first_key in range(begin, prefix_end, BLOCK_KEYS):
        key = first_key + tl.arange(0, BLOCK_KEYS)
        present = key < prefix_end
        visible = present[None, :] & (key[None, :] <= position[:, None])
        if HAS_WINDOW:
            visible = visible & (key[None, :] > position[:, None] - window)
        slot = _slots_of(key, present, block_table, BLOCK_LEN)
        top, weight, summed = _add_block(
            rows_query, keys, values, slot, present, visible, slot_stride, scaling, softcap, top, weight, summed,
            HEAD_DIM, HAS_SOFTCAP, WIDE, BLOCK_DIM,
        )  # fmt: skip
    for first_key in range(tl.maximum(begin, committed_len), end, BLOCK_KEYS):
        key = first_key + tl.arange(0, BLOCK_KEYS)
        present = key < end
        node = key - committed_len
        word_address = row[:, None] * ancestry_stride + (node // 32)[None, :]
        word = tl.load(row_ancestry + word_address, mask=real[:, None] & present[None, :], other=0)
        visible = ((word >> (node % 32)[None, :]) & 1) != 0
        if HAS_WINDOW:
            key_position = tl.load(node_positions + sequence * node_stride + node, mask=present, other=0)
            visible = visible & (key_position[None, :] > position[:, None] - window)
        slot = _slots_of(key, present, block_table, BLOCK_LEN)
        top, weight, summed = _add_block(
            rows_query, keys, values, slot, present, visible, slot_stride, scaling, softcap, top, weight, summed,
            HEAD_DIM, HAS_SOFTCAP, WIDE, BLOCK_DIM,
        )  # fmt: skip

    if NUM_SPLITS == 1:
        result = summed / tl.where(weight > 0.0, weight, 1.0)[:, None]
        tl.store(summed_out + query_address, result.to(summed_out.dtype.element_ty), mask=storable)
    else:
        flat = (split * num_rows + row).to(tl.int64) * num_heads + head
        tl.store(summed_out + flat[:, None] * HEAD_DIM + dim[None, :], summed, mask=storable)
        tl.store(top_out + flat, top, mask=real)
        tl.store(weight_out + flat, weight, mask=real)


@triton.jit(do_not_specialize=_STEP_SIZES)
def _merge_kernel(
    summed_in: tl.tensor, top_in: tl.tensor, weight_in: tl.tensor, out: tl.tensor, num_rows: tl.tensor, num_heads: tl.tensor,
    HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr, BLOCK_DIM: tl.constexpr,
) -> None:  # fmt: skip
    """One row and head: partial sums of all splits to the result."""
    row, head = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, BLOCK_DIM)
    readable = dim < HEAD_DIM
    top = tl.full([], float("-inf"), tl.float32)
    weight = tl.full([], 0.0, tl.float32)
    summed = tl.zeros([BLOCK_DIM], tl.float32)
    for split in range(NUM_SPLITS):
        flat = (split * num_rows + row).to(tl.int64) * num_heads + head
        part_top = tl.load(top_in + flat)
        new_top = tl.maximum(top, part_top)
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        fading, share = tl.exp(top - finite_top), tl.exp(part_top - finite_top)
        weight = weight * fading + tl.load(weight_in + flat) * share
        summed = summed * fading + tl.load(summed_in + flat * HEAD_DIM + dim, mask=readable, other=0.0) * share
        top = new_top
    result = summed / tl.where(weight > 0.0, weight, 1.0)
    flat_out = (row.to(tl.int64) * num_heads + head) * HEAD_DIM + dim
    tl.store(out + flat_out, result.to(out.dtype.element_ty), mask=readable)
