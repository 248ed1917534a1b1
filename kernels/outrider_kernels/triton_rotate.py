"""Rotations of queries and keys in Triton, with the norms before them and the storing of keys and values behind them: one launch a layer.

A program holds one head of one row. The definition is `reference_rotate_and_store`. Must not know layers or sequences: only slots. Source:
RoPE, Su et al. 2021; Qwen3 technical report (norms of queries and keys).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from outrider_kernels.decoder_pieces import HeadLayout, HeadNorm, KeyPlaces


def rotate_and_store(
    joined: Tensor, layout: HeadLayout, rotations: Tensor, positions: Tensor, places: KeyPlaces, norm: HeadNorm | None = None
) -> Tensor:
    """As `reference_rotate_and_store`; joined is dense, and the pools have equal strides and a dense last axis."""
    num_rows = len(joined)
    keys, values = places.keys, places.values
    assert joined.is_contiguous()
    assert rotations.is_contiguous()
    assert keys.stride() == values.stride()
    assert keys.stride(2) == 1
    queries = joined.new_empty(num_rows, layout.num_heads, layout.head_dim)
    if num_rows:
        _rotate_kernel[(num_rows, layout.num_rotated + layout.num_kv_heads)](
            joined, rotations, positions, places.slots, joined if norm is None else norm.weight, queries, keys, values,
            keys.stride(0), keys.stride(1), 0.0 if norm is None else norm.epsilon,
            NUM_HEADS=layout.num_heads, NUM_KV_HEADS=layout.num_kv_heads, HEAD_DIM=layout.head_dim, HAS_NORM=norm is not None,
            TILE_PAIRS=triton.next_power_of_2(layout.head_dim // 2), num_warps=1,
        )  # fmt: skip
    return queries


@triton.jit
def _rotate_kernel(
    joined: tl.tensor, rotations: tl.tensor, positions: tl.tensor, slots: tl.tensor, norm: tl.tensor, queries: tl.tensor, keys: tl.tensor,
    values: tl.tensor, head_stride: tl.tensor, slot_stride: tl.tensor, epsilon: tl.tensor,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HAS_NORM: tl.constexpr, TILE_PAIRS: tl.constexpr,
) -> None:  # fmt: skip
    """One head of one row."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, TILE_PAIRS)
    real = pair < HEAD_DIM // 2
    dtype = queries.dtype.element_ty
    slot = tl.load(slots + row)
    position = tl.load(positions + row)
    source = joined + (row * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM + 2 * pair
    first = tl.load(source, mask=real, other=0.0).to(tl.float32)
    second = tl.load(source + 1, mask=real, other=0.0).to(tl.float32)
    if head < NUM_HEADS + NUM_KV_HEADS:
        if HAS_NORM:
            scale = tl.rsqrt(tl.sum(first * first + second * second, axis=0) / HEAD_DIM + epsilon)
            factor = norm + head * HEAD_DIM + 2 * pair
            first = (first * scale).to(dtype).to(tl.float32) * tl.load(factor, mask=real, other=0.0).to(tl.float32)
            second = (second * scale).to(dtype).to(tl.float32) * tl.load(factor + 1, mask=real, other=0.0).to(tl.float32)
            first = first.to(dtype).to(tl.float32)
            second = second.to(dtype).to(tl.float32)
        angle = rotations + position * HEAD_DIM + 2 * pair
        cosine = tl.load(angle, mask=real, other=0.0)
        sine = tl.load(angle + 1, mask=real, other=0.0)
        turned = first * cosine - second * sine
        second = first * sine + second * cosine
        first = turned
    if head < NUM_HEADS:
        target = queries + (row * NUM_HEADS + head) * HEAD_DIM + 2 * pair
        tl.store(target, first.to(dtype), mask=real)
        tl.store(target + 1, second.to(dtype), mask=real)
    elif head < NUM_HEADS + NUM_KV_HEADS:
        target = keys + (head - NUM_HEADS) * head_stride + slot * slot_stride + 2 * pair
        tl.store(target, first.to(dtype), mask=real)
        tl.store(target + 1, second.to(dtype), mask=real)
    else:
        target = values + (head - NUM_HEADS - NUM_KV_HEADS) * head_stride + slot * slot_stride + 2 * pair
        tl.store(target, first.to(dtype), mask=real)
        tl.store(target + 1, second.to(dtype), mask=real)
