"""Bias, penalties and allowed tokens inside a kernel that reads a tile of logits: nothing processed is ever written to memory.

A row's touched tokens are ascending, so those of a tile are neighbours in the row's list; each is computed once and put in its place.
Whoever launches a kernel that uses this must pass NO_FUSION: a fused multiply-add would round a penalty once where the definition rounds
twice. The definition is `outrider_kernels.processed_logits`. Must not know picks.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from outrider_kernels.pick_rows import PickRows

_NO_TOKEN = tl.constexpr(2147483647)


def rule_arguments(rows: PickRows, logits: Tensor) -> tuple[Any, ...]:
    """What a kernel takes of bias, allowed tokens and touched ones, in the order of `processed_tile`; the logits stand in for what is not
    there."""
    bias, allowed, touched = rows.bias, rows.allowed, rows.touched
    given: tuple[Any, ...] = (logits,) * 7 + (0, 0)
    if touched is not None:
        assert touched.tokens.stride(0) == touched.counts.stride(0)
        given = (
            touched.lens, touched.tokens, touched.counts, touched.biases, touched.repetition, touched.frequency, touched.presence,
            touched.tokens.stride(0), touched.biases.stride(0),
        )  # fmt: skip
    return (
        logits if bias is None else bias, logits if allowed is None else allowed, 0 if bias is None else bias.stride(0),
        0 if allowed is None else allowed.stride(0), *given,
    )  # fmt: skip


def rule_constants(rows: PickRows) -> dict[str, Any]:
    """Which of them there are."""
    touched = rows.touched
    return {
        "HAS_BIAS": rows.bias is not None,
        "HAS_ALLOWED": rows.allowed is not None,
        "TILE_TOUCHED": 0 if touched is None else triton.next_power_of_2(max(1, touched.tokens.shape[1])),
    }


@triton.jit
def processed_tile(
    logit: tl.tensor, row: tl.tensor, column: tl.tensor, own_logits: tl.tensor, num_ids: tl.tensor, vocab_begin: tl.tensor,
    bias: tl.tensor, allowed: tl.tensor, bias_stride: tl.tensor, allowed_stride: tl.tensor, lens: tl.tensor, tokens: tl.tensor,
    counts: tl.tensor, biases: tl.tensor, repetitions: tl.tensor, frequencies: tl.tensor, presences: tl.tensor, touched_stride: tl.tensor,
    biases_stride: tl.tensor,
    HAS_BIAS: tl.constexpr, HAS_ALLOWED: tl.constexpr, TILE_TOUCHED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 of one row's columns, from their raw logits; own_logits: where the row's begin. TILE_TOUCHED 0: none are touched."""
    real = column < num_ids
    if HAS_BIAS:
        logit = logit + tl.load(bias + row * bias_stride + column, mask=real, other=0.0)
    if TILE_TOUCHED > 0:
        entry = tl.arange(0, TILE_TOUCHED)
        known = tl.load(tokens + row * touched_stride + entry, mask=entry < tl.load(lens + row), other=_NO_TOKEN) - vocab_begin
        begin = tl.sum((known < tl.min(column, axis=0)).to(tl.int32), axis=0)
        end = tl.sum((known < tl.minimum(tl.max(column, axis=0) + 1, num_ids)).to(tl.int32), axis=0)
        repetition, frequency, presence = tl.load(repetitions + row), tl.load(frequencies + row), tl.load(presences + row)
        for place in range(begin, end):
            own_column = tl.load(tokens + row * touched_stride + place) - vocab_begin
            count = tl.load(counts + row * touched_stride + place)
            value = tl.load(own_logits + own_column).to(tl.float32).to(tl.float64) + tl.load(biases + row * biases_stride + place)
            repeated = tl.where(value > 0.0, value / repetition, value * repetition)
            value = tl.where(count >= 0, repeated, value)
            value = value - frequency * tl.maximum(count, 0).to(tl.float64)
            value = value - tl.where(count > 0, presence, 0.0)
            logit = tl.where(column == own_column, value.to(tl.float32), logit)
    if HAS_ALLOWED:
        word = tl.load(allowed + row * allowed_stride + column // 32, mask=real, other=0)
        logit = tl.where(((word >> (column % 32)) & 1) != 0, logit, float("-inf"))
    return logit
