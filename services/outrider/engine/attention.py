"""What a model's attention layers call during one step: store the new keys and values, attend over each sequence's cache.

One object per forward, passed by argument (no globals). `fast` reads each sequence's runs in place; `invariant` feeds the fixed-order
kernel. Windows and soft caps are the layer's and arrive with the call; masks are built once per step and window. Must not know
models or sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from outrider.engine.key_range import key_range
from outrider.engine.paged_cache import PagedCache
from outrider.engine.step_batch import LongArray, Segment, StepBatch
from outrider_kernels.invariant_attention import HIDDEN_SCORE, InvariantRows, InvariantShape, invariant_attention
from outrider_kernels.tree_attention import tree_attention


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer weighs its keys. scaling: of their products with a query. window: a row at position t sees positions > t - window.
    softcap: as in Gemma 2. sinks: [heads], what a head's softmax has beside its keys, with nothing to add to the sum."""

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


class StepAttention(Protocol):
    """Attention state of one forward."""

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, scoring: Scoring) -> Tensor:
        """Store the rows' keys and values, return what the rows attend to.

        query: [rows, heads, dim]. keys_values: [2, kv_heads, rows, dim].
        Returns [rows, heads, dim]; rows of padding are undefined but finite.
        """
        ...


_Keys = tuple[tuple[tuple[int, int], ...], Tensor | None]  # a KeyRange whose mask is a tensor of the rows' dtype


class FastAttention:
    """Attention over views of the cache, one call per sequence."""

    def __init__(self, cache: PagedCache, batch: StepBatch) -> None:
        self._cache = cache
        self._segments = batch.segments
        self._positions = batch.positions
        self._begin, self._end = int(batch.slots[0]), int(batch.slots[0]) + batch.num_rows
        neighbours = bool((np.diff(batch.slots) == 1).all())
        self._index = None if neighbours else torch.from_numpy(batch.slots).to(cache.pools[0].device)
        self._ranges: dict[int | None, list[_Keys]] = {}

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, scoring: Scoring) -> Tensor:
        """See StepAttention."""
        self._cache.write(layer, self._begin, self._end, self._index, keys_values)
        window = scoring.window
        ranges = self._ranges.get(window)
        if ranges is None:
            ranges = self._ranges[window] = [self._keys(segment, window, query) for segment in self._segments]
        pool_keys, pool_values = self._cache.keys[layer], self._cache.values[layer]
        if len(ranges) == 1:
            return _over_runs(query, pool_keys, pool_values, ranges[0], scoring)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for segment, seen in zip(self._segments, ranges, strict=True):
            own = slice(segment.begin, segment.end)
            out[own] = _over_runs(query[own], pool_keys, pool_values, seen, scoring)
        return out

    def _keys(self, segment: Segment, window: int | None, like: Tensor) -> _Keys:
        found = key_range(segment, self._positions[segment.begin : segment.end], window)
        mask = None if found.tail_mask is None else torch.from_numpy(found.tail_mask).to(device=like.device, dtype=like.dtype)
        return found.runs, mask


def _over_runs(query: Tensor, keys: Tensor, values: Tensor, seen: _Keys, scoring: Scoring) -> Tensor:
    runs, tail_mask = seen
    key_runs = [keys[:, begin:end] for begin, end in runs]
    value_runs = [values[:, begin:end] for begin, end in runs]
    return tree_attention(query.contiguous(), key_runs, value_runs, tail_mask, scoring.scaling, scoring.softcap, scoring.sinks)


class InvariantAttention:
    """Fixed-order attention of the flat rows [begin, end) of a batch, at most shape.num_rows, padded to that many."""

    def __init__(self, cache: PagedCache, batch: StepBatch, begin: int, end: int, shape: InvariantShape) -> None:
        assert 0 < end - begin <= shape.num_rows
        self._cache = cache
        self._batch = batch
        self._begin, self._end = begin, end
        self._shape = shape
        self._index = torch.from_numpy(batch.slots[begin:end]).to(cache.pools[0].device)
        self._parts = [
            (segment, max(begin, segment.begin), min(end, segment.end))
            for segment in batch.segments
            if segment.begin < end and segment.end > begin
        ]
        self._rows: dict[int | None, list[InvariantRows]] = {}

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, scoring: Scoring) -> Tensor:
        """See StepAttention."""
        num_rows = self._end - self._begin
        self._cache.write(layer, 0, 0, self._index, keys_values[:, :, :num_rows])
        window, scaling, softcap = scoring.window, scoring.scaling, scoring.softcap
        rows = self._rows.get(window)
        if rows is None:
            rows = self._rows[window] = [self._invariant_rows(*part, window) for part in self._parts]
        out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        pool_keys, pool_values = self._cache.keys[layer], self._cache.values[layer]
        for (_, begin, end), own_rows in zip(self._parts, rows, strict=True):
            own = slice(begin - self._begin, end - self._begin)
            out[own] = invariant_attention(query[own], pool_keys, pool_values, own_rows, self._shape, scaling, softcap, scoring.sinks)
        return out

    def _invariant_rows(self, segment: Segment, begin: int, end: int, window: int | None) -> InvariantRows:
        shape, table = self._shape, segment.state.table
        positions = self._batch.positions[begin:end]
        starts = shape.block_len * (np.maximum(0, positions - shape.max_depth) // shape.block_len)
        spans = starts[:, None] + np.arange(shape.window_len)[None, :]
        logical = np.minimum(spans, positions[:, None])
        for index in range(max(begin, segment.begin + segment.num_committed), end):
            node = segment.live_before + index - segment.begin - segment.num_committed
            path = np.asarray(segment.state.tree.path_to(node), np.int64) + segment.base
            row = index - begin
            first = segment.base - int(starts[row])  # window offset of the path's first node
            logical[row, first : first + len(path)] = path
            logical[row, first + len(path) :] = path[-1]
        bias = np.where(spans > positions[:, None], np.float32(HIDDEN_SCORE), np.float32(0))
        num_blocks = int(starts.max()) // shape.block_len
        first_block = 0
        if window is not None:
            lowest = positions - window + 1  # first visible position
            bias[spans < lowest[:, None]] = HIDDEN_SCORE
            group_len = shape.block_len * shape.group_blocks
            first_block = max(0, int(lowest.min())) // group_len * shape.group_blocks
            num_blocks = max(num_blocks, first_block)
        hidden, shared_bias = self._shared_masks(positions, starts, first_block, num_blocks, window)
        device = self._index.device
        return InvariantRows(
            num_rows=end - begin,
            window_slots=torch.from_numpy(table.slots[logical.reshape(-1)]).to(device),
            window_bias=torch.from_numpy(bias[:, None, :]).to(device),
            first_block=first_block,
            num_blocks=num_blocks,
            shared_runs=table.runs(first_block * shape.block_len, num_blocks * shape.block_len),
            block_hidden=hidden,
            shared_bias=shared_bias,
        )

    def _shared_masks(
        self, positions: LongArray, starts: LongArray, first_block: int, num_blocks: int, window: int | None
    ) -> tuple[Tensor | None, Tensor | None]:
        shape, device = self._shape, self._index.device
        if num_blocks <= first_block:
            return None, None
        blocks = np.arange(first_block, num_blocks)
        hidden = np.zeros((len(blocks), shape.num_rows), np.bool_)
        hidden[:, : len(positions)] = blocks[:, None] * shape.block_len >= starts[None, :]
        hidden_tensor = torch.from_numpy(hidden).to(device) if hidden.any() else None
        if window is None or int(positions.max()) < window:
            return hidden_tensor, None
        keys = np.arange(first_block * shape.block_len, num_blocks * shape.block_len).reshape(len(blocks), 1, shape.block_len)
        bias = np.zeros((len(blocks), shape.num_rows, shape.block_len), np.float32)
        bias[:, : len(positions)] = np.where(keys <= (positions - window)[None, :, None], np.float32(HIDDEN_SCORE), np.float32(0))
        return hidden_tensor, torch.from_numpy(bias).to(device)
