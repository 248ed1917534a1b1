"""Attention of a step's rows over the paged cache on numpy views: the array twin of FastAttention and `tree_attention`.

Keys are read in place, run by run; only the tail of the keys has a mask. Must not know models or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.engine.key_range import KeyRange, key_range
from outrider.engine.step_batch import StepBatch
from outrider.types.tree import FloatArray


class ArrayAttention:
    """Attention state of one forward; float32 on the CPU."""

    def __init__(self, pools: Sequence[FloatArray], batch: StepBatch) -> None:
        """pools: the cache's, by layer, [2, kv_heads, num_slots, dim]."""
        self._pools = pools
        self._batch = batch
        begin = int(batch.slots[0])
        neighbours = len(batch.slots) == 1 or bool((np.diff(batch.slots) == 1).all())
        self._slots = slice(begin, begin + batch.num_rows) if neighbours else batch.slots
        self._ranges: dict[int | None, list[KeyRange]] = {}

    def attend(self, layer: int, heads: FloatArray, num_heads: int, window: int | None) -> FloatArray:
        """Store the rows' keys and values, return what the rows attend to: [rows, num_heads * dim].

        heads: [rows, num_heads + 2 kv_heads, dim]: scaled queries, keys, values. window: a row at position t sees positions > t - window.
        """
        num_rows, _, head_dim = heads.shape
        pool = self._pools[layer]
        pool[:, :, self._slots] = heads[:, num_heads:].reshape(num_rows, 2, -1, head_dim).transpose(1, 2, 0, 3)
        ranges = self._ranges.get(window)
        if ranges is None:
            positions = self._batch.positions
            ranges = [key_range(segment, positions[segment.begin : segment.end], window) for segment in self._batch.segments]
            self._ranges[window] = ranges
        queries = heads[:, :num_heads]
        if len(ranges) == 1:
            return _over_runs(queries, pool, ranges[0])
        segments = zip(self._batch.segments, ranges, strict=True)
        return np.concatenate([_over_runs(queries[segment.begin : segment.end], pool, keys) for segment, keys in segments])


def _over_runs(queries: FloatArray, pool: FloatArray, keys: KeyRange) -> FloatArray:
    """queries: [rows, heads, dim] of one sequence. Returns [rows, heads * dim]."""
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = pool.shape[1]
    group_len = num_heads // num_kv_heads
    by_head = queries.reshape(num_rows, num_kv_heads, group_len, head_dim).transpose(1, 2, 0, 3)
    folded: FloatArray = by_head.reshape(num_kv_heads, group_len * num_rows, head_dim)
    products: list[FloatArray] = [folded @ pool[0, :, begin:end].transpose(0, 2, 1) for begin, end in keys.runs]
    weights: FloatArray = products[0] if len(products) == 1 else np.concatenate(products, axis=-1)
    if keys.tail_mask is not None:
        by_row = weights.reshape(num_kv_heads, group_len, num_rows, -1)
        by_row[..., weights.shape[-1] - keys.tail_mask.shape[1] :] += keys.tail_mask
    weights -= np.maximum.reduce(weights, axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    totals = np.add.reduce(weights, axis=-1, keepdims=True)
    begin, end = keys.runs[0]
    out: FloatArray = weights[..., : end - begin] @ pool[1, :, begin:end]
    first = end - begin
    for begin, end in keys.runs[1:]:
        out += weights[..., first : first + end - begin] @ pool[1, :, begin:end]
        first += end - begin
    out /= totals
    mixed: FloatArray = out.reshape(num_kv_heads, group_len, num_rows, head_dim).transpose(2, 0, 1, 3).reshape(num_rows, -1)
    return mixed
