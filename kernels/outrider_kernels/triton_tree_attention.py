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

MIN_MEMBERS = 16  # of a tile: the smallest side of a matrix product on a tensor core
MAX_MEMBERS = 64  # on an H100 within a tenth of the best of 14 programs for every group size; several share a multiprocessor
LOG2_E = tl.constexpr(1.4426950408889634)  # exponentials are powers of two: one multiplication less
BLOCK_KEYS = 64
NUM_STAGES = 3
MIN_SPLIT_KEYS = 256  # a shorter split costs more in the merge than it saves
MAX_SPLITS = 64
WANTED_PROGRAMS = 768  # about six for each multiprocessor of an H100: fewer leave an uneven last wave, more are merged at a cost

# Sizes that differ from step to step: compiled for any, not again for each that is 1 or a multiple of 16.
_STEP_SIZES = ("num_rows", "table_stride", "node_stride", "ancestry_stride")


@dataclass(frozen=True, slots=True)
class TileProgram:
    """How one program is built. members: rows times heads of a group that it holds, a power of two. block_keys: keys a step of its loop.
    num_warps, num_stages: as Triton means them."""

    members: int
    block_keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class TreeLaunch:
    """How a step's rows are cut up; made once, used by every layer of one head layout.

    tiles: int32 [num_tiles, 3], sequence, first row, rows; one of no rows does nothing. num_splits: programs that share the keys of a tile.
    """

    rows: PagedRows
    tiles: Tensor
    program: TileProgram
    num_splits: int


def plan_launch(
    rows: PagedRows,
    num_heads: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    num_splits: int | None = None,
    program: TileProgram | None = None,
) -> TreeLaunch:
    """Tiles and splits of a step. dtype: of query and pools. num_splits: None chooses as many as keep a large GPU busy; program: None
    chooses by the rows of a sequence."""
    group_len = num_heads // num_kv_heads
    tile_len = rows_per_tile(group_len, dtype, max(rows.rows_per_sequence, default=1))
    if program is None:
        program = program_for(group_len, tile_len)
    else:
        tile_len = max(1, program.members // group_len)
    tiles: list[tuple[int, int, int]] = []
    begin = 0
    for sequence, num_rows in enumerate(rows.rows_per_sequence):
        tiles += tiles_of(sequence, begin, begin + num_rows, tile_len)
        begin += num_rows
    if num_splits is None:
        num_splits = useful_splits(len(tiles), num_kv_heads, rows.max_keys)
    table = torch.tensor(tiles, dtype=torch.int32, device=rows.block_table.device).view(-1, 3)
    return TreeLaunch(rows, table, program, num_splits)


def rows_per_tile(group_len: int, dtype: torch.dtype, num_rows: int) -> int:
    """Rows of a tile, where a sequence has num_rows of them at most."""
    most = MIN_MEMBERS if dtype == torch.float32 else MAX_MEMBERS  # without tensor cores, a larger product would not fit the registers
    members = int(triton.next_power_of_2(max(MIN_MEMBERS, min(most, group_len * num_rows))))
    return max(1, members // group_len)


def program_for(group_len: int, tile_len: int) -> TileProgram:
    """For tiles of tile_len rows."""
    members = int(triton.next_power_of_2(max(MIN_MEMBERS, group_len * tile_len)))
    return TileProgram(members, BLOCK_KEYS, 8 if members > MAX_MEMBERS else 4, NUM_STAGES)


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
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    launch: TreeLaunch,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of all rows of a step over their sequences' caches.

    query: [num_rows, heads, dim], dense. keys, values: a layer's pool [kv_heads, num_slots, dim], equal strides, a dense last axis.
    window: a row at position t sees positions > t - window. sinks: [heads], dense, scores of a key that every row of a head sees and whose
    value is 0. A row that sees nothing gets zeros. Returns the query's shape and dtype.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[0]
    rows, num_splits, program = launch.rows, launch.num_splits, launch.program
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
    inner, outer = (1.0, scaling * LOG2_E.value) if softcap is None else (scaling / softcap, softcap * LOG2_E.value)
    _split_kernel[(launch.tiles.shape[0], num_kv_heads, num_splits)](
        query, keys, values, launch.tiles, rows.block_table, rows.committed_lens, rows.num_nodes, rows.node_positions,
        rows.row_positions, rows.row_ancestry, query if sinks is None else sinks, summed, top, weight, inner, outer, window or 0,
        num_rows, num_heads, keys.stride(0), keys.stride(1), rows.block_table.stride(0), rows.node_positions.stride(0),
        rows.row_ancestry.stride(0),
        GROUP_LEN=num_heads // num_kv_heads, HEAD_DIM=head_dim, BLOCK_LEN=rows.block_len, NUM_SPLITS=num_splits,
        HAS_WINDOW=window is not None, HAS_SOFTCAP=softcap is not None, HAS_SINKS=sinks is not None, WIDE=wide,
        MEMBERS=program.members, BLOCK_KEYS=program.block_keys, BLOCK_DIM=block_dim, num_warps=program.num_warps,
        num_stages=program.num_stages,
    )  # fmt: skip
    if num_splits > 1:
        _merge_kernel[(num_rows, num_heads)](
            summed, top, weight, out, num_rows, num_heads, HEAD_DIM=head_dim, NUM_SPLITS=num_splits,
            TILE_SPLITS=triton.next_power_of_2(num_splits), BLOCK_DIM=block_dim, num_warps=1,
        )  # fmt: skip
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
def _slots_of(key: tl.tensor, present: tl.tensor, block_table: tl.tensor, MASKED: tl.constexpr, BLOCK_LEN: tl.constexpr) -> tl.tensor:
    """Pool slots of logical keys. block_table: of their sequence."""
    first = block_table + key // BLOCK_LEN
    block = tl.load(first, mask=present, other=0) if MASKED else tl.load(first)
    return block.to(tl.int64) * BLOCK_LEN + key % BLOCK_LEN


@triton.jit
def _add_block(
    query: tl.tensor, block_keys: tl.tensor, block_values: tl.tensor, visible: tl.tensor, inner: tl.tensor, outer: tl.tensor,
    top: tl.tensor, weight: tl.tensor, summed: tl.tensor, MASKED: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """One block of keys into the online softmax, in powers of two. visible: [members, keys], read where MASKED."""
    scores = tl.dot(query, tl.trans(block_keys), input_precision="ieee")
    if HAS_SOFTCAP:
        scores = _tanh(scores * inner)
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1) * outer)
    finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen nothing yet: weights 0, not NaN
    fading = tl.exp2(top - finite_top)
    exponentials = tl.exp2(scores * outer - finite_top[:, None])
    weight = weight * fading + tl.sum(exponentials, axis=1)
    summed = summed * fading[:, None]
    summed = tl.dot(exponentials.to(block_values.dtype), block_values, summed, input_precision="ieee")
    return new_top, weight, summed


@triton.jit
def _members_of(
    row_positions: tl.tensor, first_row: tl.tensor, tile_len: tl.tensor, kv_head: tl.tensor, num_heads: tl.tensor,
    MEMBERS: tl.constexpr, GROUP_LEN: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Of the members of a tile: whether they are there, their rows, positions, and places among rows times heads."""
    member = tl.arange(0, MEMBERS)
    real = member < tile_len * GROUP_LEN
    row = first_row + member // GROUP_LEN
    position = tl.load(row_positions + row, mask=real, other=0)
    place = (row * num_heads + kv_head * GROUP_LEN + member % GROUP_LEN).to(tl.int64)
    return real, row, position, place


@triton.jit
def _query_of(
    query: tl.tensor, place: tl.tensor, real: tl.tensor, HEAD_DIM: tl.constexpr, WIDE: tl.constexpr, BLOCK_DIM: tl.constexpr
) -> tl.tensor:
    """[members, dim]."""
    dim = tl.arange(0, BLOCK_DIM)
    found = tl.load(query + place[:, None] * HEAD_DIM + dim[None, :], mask=real[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)
    if WIDE:
        found = found.to(tl.float32)
    return found


@triton.jit
def _visible(
    key: tl.tensor, key_position: tl.tensor, present: tl.tensor, committed_len: tl.tensor, row: tl.tensor, real: tl.tensor,
    position: tl.tensor, row_ancestry: tl.tensor, ancestry_stride: tl.tensor, window: tl.tensor, HAS_WINDOW: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[members, keys]: committed keys by position, tree nodes by ancestry."""
    is_node = key >= committed_len
    node = tl.maximum(key - committed_len, 0)
    readable = real[:, None] & (present & is_node)[None, :]
    word = tl.load(row_ancestry + row[:, None] * ancestry_stride + (node // 32)[None, :], mask=readable, other=0)
    in_path = ((word >> (node % 32)[None, :]) & 1) != 0
    visible = present[None, :] & tl.where(is_node[None, :], in_path, key[None, :] <= position[:, None])
    if HAS_WINDOW:
        visible = visible & (key_position[None, :] > position[:, None] - window)
    return visible


@triton.jit
def _keys_values(
    keys: tl.tensor, values: tl.tensor, key: tl.tensor, present: tl.tensor, block_table: tl.tensor, slot_stride: tl.tensor,
    MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_LEN: tl.constexpr, WIDE: tl.constexpr, BLOCK_DIM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Both [keys, dim]; what is not present is not read, where MASKED."""
    dim = tl.arange(0, BLOCK_DIM)
    slot = _slots_of(key, present, block_table, MASKED, BLOCK_LEN)
    address = slot[:, None] * slot_stride + dim[None, :]
    if MASKED or HEAD_DIM != BLOCK_DIM:
        readable = present[:, None] & (dim < HEAD_DIM)[None, :]
        block_keys = tl.load(keys + address, mask=readable, other=0.0)
        block_values = tl.load(values + address, mask=readable, other=0.0)
    else:
        block_keys = tl.load(keys + address)
        block_values = tl.load(values + address)
    if WIDE:
        block_keys = block_keys.to(tl.float32)
        block_values = block_values.to(tl.float32)
    return block_keys, block_values


@triton.jit
def _sinks_of(
    sinks: tl.tensor,
    place: tl.tensor,
    real: tl.tensor,
    num_heads: tl.tensor,
    split: tl.tensor,
    MEMBERS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
) -> tl.tensor:
    """Maximum and weight [members] before any key: those of the sinks in the first split, of nothing in the others or without any."""
    top = tl.full([MEMBERS], float("-inf"), tl.float32)
    if HAS_SINKS:
        top = tl.load(sinks + place % num_heads, mask=real & (split == 0), other=float("-inf")).to(tl.float32) * LOG2_E
    return top, tl.where(top == float("-inf"), 0.0, 1.0)


@triton.jit
def _store(
    summed_out: tl.tensor, top_out: tl.tensor, weight_out: tl.tensor, place: tl.tensor, real: tl.tensor, top: tl.tensor, weight: tl.tensor,
    summed: tl.tensor, HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr, BLOCK_DIM: tl.constexpr,
) -> None:  # fmt: skip
    """With one split the result itself, else the partial sums."""
    dim = tl.arange(0, BLOCK_DIM)
    storable = real[:, None] & (dim < HEAD_DIM)[None, :]
    address = place[:, None] * HEAD_DIM + dim[None, :]
    if NUM_SPLITS == 1:
        summed = summed / tl.where(weight > 0.0, weight, 1.0)[:, None]
    else:
        tl.store(top_out + place, top, mask=real)
        tl.store(weight_out + place, weight, mask=real)
    tl.store(summed_out + address, summed.to(summed_out.dtype.element_ty), mask=storable)


@triton.jit(do_not_specialize=_STEP_SIZES)
def _split_kernel(
    query: tl.tensor, keys: tl.tensor, values: tl.tensor, tiles: tl.tensor, block_table: tl.tensor, committed_lens: tl.tensor,
    num_nodes: tl.tensor, node_positions: tl.tensor, row_positions: tl.tensor, row_ancestry: tl.tensor, sinks: tl.tensor,
    summed_out: tl.tensor, top_out: tl.tensor, weight_out: tl.tensor, inner: tl.tensor, outer: tl.tensor, window: tl.tensor,
    num_rows: tl.tensor, num_heads: tl.tensor, head_stride: tl.tensor, slot_stride: tl.tensor, table_stride: tl.tensor,
    node_stride: tl.tensor, ancestry_stride: tl.tensor,
    GROUP_LEN: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_LEN: tl.constexpr, NUM_SPLITS: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, WIDE: tl.constexpr, MEMBERS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
) -> None:  # fmt: skip
    """A tile of rows, one key head, one split of the keys."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(tiles + tile * 3)
    first_row = tl.load(tiles + tile * 3 + 1)
    tile_len = tl.load(tiles + tile * 3 + 2)
    real, row, position, place = _members_of(row_positions, first_row, tile_len, kv_head, num_heads, MEMBERS, GROUP_LEN)
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
    whole_end = begin  # up to here every row sees every key
    if not HAS_WINDOW:
        whole_end = begin + tl.maximum(tl.minimum(end, tl.minimum(oldest, committed_len - 1) + 1) - begin, 0) // BLOCK_KEYS * BLOCK_KEYS

    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride
    block_table += sequence * table_stride
    rows_query = _query_of(query, place, real, HEAD_DIM, WIDE, BLOCK_DIM)
    top, weight = _sinks_of(sinks, place, real, num_heads, split, MEMBERS, HAS_SINKS)
    summed = tl.zeros([MEMBERS, BLOCK_DIM], tl.float32)

    for first_key in range(begin, whole_end, BLOCK_KEYS):
        key = first_key + tl.arange(0, BLOCK_KEYS)
        present = key < end
        block_keys, block_values = _keys_values(
            keys, values, key, present, block_table, slot_stride, False, HEAD_DIM, BLOCK_LEN, WIDE, BLOCK_DIM
        )  # fmt: skip
        top, weight, summed = _add_block(
            rows_query, block_keys, block_values, present, inner, outer, top, weight, summed, False, HAS_SOFTCAP
        )  # fmt: skip
    for first_key in tl.range(whole_end, end, BLOCK_KEYS, num_stages=1):
        key = first_key + tl.arange(0, BLOCK_KEYS)
        present = key < end
        block_keys, block_values = _keys_values(
            keys, values, key, present, block_table, slot_stride, True, HEAD_DIM, BLOCK_LEN, WIDE, BLOCK_DIM
        )  # fmt: skip
        node = key - committed_len
        key_position = key
        if HAS_WINDOW:
            at = tl.load(node_positions + sequence * node_stride + node, mask=present & (node >= 0), other=0)
            key_position = tl.where(node >= 0, at, key)
        visible = _visible(
            key, key_position, present, committed_len, row, real, position, row_ancestry, ancestry_stride, window, HAS_WINDOW
        )  # fmt: skip
        top, weight, summed = _add_block(
            rows_query, block_keys, block_values, visible, inner, outer, top, weight, summed, True, HAS_SOFTCAP
        )  # fmt: skip

    part = (split * num_rows).to(tl.int64) * num_heads
    _store(summed_out, top_out, weight_out, part + place, real, top, weight, summed, HEAD_DIM, NUM_SPLITS, BLOCK_DIM)


@triton.jit(do_not_specialize=_STEP_SIZES)
def _merge_kernel(
    summed_in: tl.tensor, top_in: tl.tensor, weight_in: tl.tensor, out: tl.tensor, num_rows: tl.tensor, num_heads: tl.tensor,
    HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr, TILE_SPLITS: tl.constexpr, BLOCK_DIM: tl.constexpr,
) -> None:  # fmt: skip
    """One row and head: partial sums of all splits to the result."""
    row, head = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, BLOCK_DIM)
    readable = dim < HEAD_DIM
    place = row.to(tl.int64) * num_heads + head
    part_len = num_rows.to(tl.int64) * num_heads
    split = tl.arange(0, TILE_SPLITS)
    there = split < NUM_SPLITS
    tops = tl.load(top_in + split * part_len + place, mask=there, other=float("-inf"))
    weights = tl.load(weight_in + split * part_len + place, mask=there, other=0.0)
    top = tl.max(tops, axis=0)
    finite_top = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.sum(weights * tl.exp2(tops - finite_top), axis=0)
    summed = tl.zeros([BLOCK_DIM], tl.float32)
    for number in tl.static_range(NUM_SPLITS):
        flat = number * part_len + place
        share = tl.exp2(tl.load(top_in + flat) - finite_top)
        summed += tl.load(summed_in + flat * HEAD_DIM + dim, mask=readable, other=0.0) * share
    result = summed / tl.where(weight > 0.0, weight, 1.0)
    tl.store(out + place * HEAD_DIM + dim, result.to(out.dtype.element_ty), mask=readable)
