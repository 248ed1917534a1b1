"""The lean forward on thin operations, over the same cache: for fp32, or products of bfloat16, on a CPU where a C compiler is.

Everything lies in buffers that are there from load time, so all layers are one call (outrider_kernels/thin_program.py). The same
mathematics as `lean_forward` with sums in another order; a row's bits depend on what it attends to alone, so `invariant` numerics need no
padding here: a row costs a row. Must not know sampling or files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from outrider.engine.decoder_forward import RowChain
from outrider.engine.key_range import key_range
from outrider.engine.lean_weights import LeanLayer, LeanWeights
from outrider.engine.paged_cache import PagedCache
from outrider.engine.short_head import ShortChain, ShortHead
from outrider.engine.shortlist import Shortlist
from outrider.engine.step_batch import LongArray, Segment, StepBatch
from outrider.types.tree import FloatArray
from outrider_kernels.cache_lines import zeros_on_lines
from outrider_kernels.thin_attention import HeadSizes, PoolArray, RowKeys, ThinAttention, ThinStep
from outrider_kernels.thin_chain import MAX_WINDOWS, ChainIds, ChainRows, ThinChain
from outrider_kernels.thin_gate import ThinGate
from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_pick import ThinPick
from outrider_kernels.thin_product import RowNorm, ThinProduct
from outrider_kernels.thin_program import ThinOperation, ThinProgram
from outrider_kernels.thin_team import ThinTeam

CACHED_BYTES = 24 << 20  # of matrices that are hoped to stay in a third-level cache of 32 MB from step to step
LEAST_SPARED = 8  # rows without results for which the last layer is cut short: to say which ones takes as long as fewer of them would


class LeanThin:
    """Rows through LeanWeights with thin copies, their keys and values stored in `cache`; `most_rows` at a time."""

    is_invariant = True

    def __init__(self, weights: LeanWeights, cache: PagedCache, team: ThinTeam, most_rows: int) -> None:
        sizes = self._sizes = weights.sizes
        assert weights.thin_head is not None
        self._embedding = cast(FloatArray, weights.embedding.numpy())
        self._buffers = _Buffers(weights, most_rows)
        rotations = cast(FloatArray, weights.rotations.numpy().view(np.float32))
        pools = [_array_of(pool) for pool in cache.pools]
        self._windows, self._last_window = tuple(dict.fromkeys(sizes.windows)), sizes.windows[-1]
        operations: list[ThinOperation] = []
        for layer, pool, window in zip(weights.layers, pools, sizes.windows, strict=True):
            attention = ThinAttention(team, head_sizes(weights, layer), self._buffers.heads, self._buffers.attended, pool, rotations)
            operations += layer_operations(team, layer, self._buffers, (attention, self._windows.index(window)))
        self._program = ThinProgram(team, operations)
        last = self._program.last_attention
        self._to_last_keys = ThinProgram(team, _to_last_keys(operations, last, len(self._windows)))
        self._behind_last_keys = ThinProgram(team, operations[last + 1 :])
        final_norm = RowNorm(cast(FloatArray, weights.final_norm.numpy()), sizes.epsilon)
        self._head = ThinProduct(team, weights.thin_head, self._buffers.last, self._buffers.logits, norm=final_norm)
        if self._program.read_bytes + self._head.read_bytes >= CACHED_BYTES:
            self._program.stream()
            self._head.stream()
        self._gathered = np.empty((0, self._buffers.logits.shape[1]), np.float32)  # kept, for memory that is new costs more than filling it
        self.picker: ThinPick | None = ThinPick(team)
        self._team = team
        self._short: ShortHead | None = None

    def shorten(self, most_ids: int, kept: tuple[int, ...]) -> None:
        """See ArrayForward."""
        self._short = ShortHead(self._team, self._head, self._buffers.logits, Shortlist(self._buffers.logits.shape[1], most_ids, kept))

    def logits(self, batch: StepBatch, wanted: LongArray) -> FloatArray:
        """float32 [wanted rows, num_logits] of a step, until the next one. More rows than fit go in parts, one after another."""
        most, num_rows = len(self._buffers.states), batch.num_rows
        if self._short is not None:
            self._short.read(batch.tokens)
        if num_rows <= most and len(wanted):
            return self._logits_of(self._run_layers(batch, 0, num_rows, wanted))
        if len(wanted) > len(self._gathered):
            self._gathered = np.empty((len(wanted), self._buffers.logits.shape[1]), np.float32)
        found = self._gathered[: len(wanted)]
        for begin in range(0, num_rows, most):
            end = min(begin + most, num_rows)
            first, last = np.searchsorted(wanted, (begin, end))
            rows = self._run_layers(batch, begin, end, wanted[first:last] - begin)
            if first < last:
                found[first:last] = self._logits_of(rows)
        return found

    def row_chain(self, ids: ChainIds) -> RowChain | None:
        """See ArrayForward. None for a model with more kinds of windows than a chain takes."""
        if len(self._windows) > MAX_WINDOWS:
            return None
        buffers = self._buffers
        rows = buffers.states, buffers.attended, buffers.last, buffers.logits
        chained = ChainRows(self._program, self._head, self._embedding, *rows, self._windows)
        return ThinChain(self._team, chained, ids) if self._short is None else ShortChain(self._team, chained, ids, self._short)

    def _run_layers(self, batch: StepBatch, begin: int, end: int, wanted: LongArray) -> LongArray:
        """Rows [begin, end) of the step, of which these are wanted, counted from `begin`; returns where in `states` they are then. Of the
        others keys and values are stored, and what comes behind the last of those, which nobody would read, is left out."""
        num_rows, num_wanted, buffers = end - begin, len(wanted), self._buffers
        # clipping nothing, for ids are checked: in its other modes `take` fills an array of its own first
        np.take(self._embedding, batch.tokens[begin:end], axis=0, out=buffers.states[:num_rows], mode="clip")
        steps = [thin_step(batch, begin, end, window) for window in self._windows]
        if num_wanted and num_rows - num_wanted < LEAST_SPARED:
            self._program.run(num_rows, steps)
            return wanted
        readers = _readers(_row_keys(batch, begin, end, self._last_window), wanted) if num_wanted else []
        self._to_last_keys.run(num_rows, [*steps, ThinStep(batch.positions[begin:end], batch.slots[begin:end], readers)])
        if num_wanted:
            buffers.states[:num_wanted], buffers.attended[:num_wanted] = buffers.states[wanted], buffers.attended[wanted]
            self._behind_last_keys.run(num_wanted, [])
        return np.arange(num_wanted)

    def _logits_of(self, rows: LongArray) -> FloatArray:
        """Of these rows in `states`; a view that the next step overwrites."""
        buffers, num_wanted = self._buffers, len(rows)
        is_all = rows[-1] == num_wanted - 1  # for they ascend
        buffers.last[:num_wanted] = buffers.states[:num_wanted] if is_all else buffers.states[rows]
        if self._short is not None:
            self._short.make_room(num_wanted)
        self._head.run(num_wanted)
        return buffers.logits[:num_wanted]


def _to_last_keys(operations: list[ThinOperation], last: int, own_step: int) -> list[ThinOperation]:
    """The operations up to the last attention, at this place, with a step of its own: all rows store keys and values, and few read any."""
    match operations[last]:
        case (attention, _):
            return [*operations[:last], (attention, own_step)]
        case other:
            raise AssertionError(f"{other} is no attention")


def _array_of(pool: Tensor) -> PoolArray:
    """numpy has no bfloat16: its bits stand for it."""
    return cast(PoolArray, (pool.view(torch.uint16) if pool.dtype == torch.bfloat16 else pool).numpy())


def thin_step(batch: StepBatch, begin: int, end: int, window: int | None) -> ThinStep:
    """Rows [begin, end) of the batch in layers of one window. Rows behind them are not stored yet, nor seen."""
    return ThinStep(batch.positions[begin:end], batch.slots[begin:end], _row_keys(batch, begin, end, window))


def _row_keys(batch: StepBatch, begin: int, end: int, window: int | None) -> list[RowKeys]:
    """The keys that they read, sequence by sequence."""
    sequences = []
    for segment in batch.segments:
        if segment.end <= begin or segment.begin >= end:
            continue
        first, last = max(begin, segment.begin), min(end, segment.end)
        part = _part_of(segment, first, last)
        keys = key_range(part, batch.positions[part.begin : part.end], window)
        mask = None if keys.tail_mask is None else keys.tail_mask[first - part.begin : last - part.begin]
        sequences.append(RowKeys(first - begin, last - begin, keys.runs, mask))
    return sequences


def _readers(sequences: list[RowKeys], wanted: LongArray) -> list[RowKeys]:
    """Of every sequence the rows from the first wanted one on, which are those with results."""
    readers = []
    for keys in sequences:
        at = int(np.searchsorted(wanted, keys.begin))
        if at == len(wanted) or wanted[at] >= keys.end:
            continue
        first = int(wanted[at])
        mask = None if keys.tail_mask is None else keys.tail_mask[first - keys.begin :]
        readers.append(RowKeys(first, keys.end, keys.runs, mask))
    return readers


def _part_of(segment: Segment, first: int, last: int) -> Segment:
    """What its flat rows [first, last) see of a segment: of committed tokens alone, which are in order, they and those before."""
    is_whole = first == segment.begin and last == segment.end
    if is_whole or len(segment.rows.tokens):
        return segment
    before = segment.cached_before + first - segment.begin
    num_rows = last - first
    return replace(segment, begin=first, end=last, num_committed=num_rows, cached_before=before, num_keys=before + num_rows)


def head_sizes(weights: LeanWeights, layer: LeanLayer) -> HeadSizes:
    """A layer's heads."""
    sizes = weights.sizes
    qk_scale = None if layer.qk_norm is None else cast(FloatArray, (layer.qk_norm * sizes.head_dim**0.5).numpy())
    return HeadSizes(sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, sizes.epsilon, qk_scale)


class _Buffers:
    """[most_rows, ...] of every kind, shared by all layers: each is used up before the next layer fills it."""

    def __init__(self, weights: LeanWeights, most_rows: int) -> None:
        sizes = weights.sizes
        attended_len = sizes.num_heads * sizes.head_dim

        def rows_of(length: int) -> FloatArray:
            return zeros_on_lines((most_rows, length), np.float32)

        self.states, self.last = rows_of(sizes.hidden_len), rows_of(sizes.hidden_len)
        self.heads = rows_of(attended_len + 2 * sizes.num_kv_heads * sizes.head_dim)
        self.attended = rows_of(attended_len)
        self.gate_up, self.gated = rows_of(2 * sizes.mlp_len), rows_of(sizes.mlp_len)
        self.logits = rows_of(weights.embedding.shape[0])


def layer_operations(team: ThinTeam, layer: LeanLayer, buffers: _Buffers, attention: tuple[ThinAttention, int]) -> list[ThinOperation]:
    """One layer between the buffers, in order."""
    thin = layer.thin
    assert thin is not None
    down = _onto_states(team, thin.down, buffers.gated, buffers, layer.down.bias)
    return [
        ThinProduct(team, thin.qkv, buffers.states, buffers.heads, bias=_array(layer.qkv.bias), norm=thin.input_norm),
        attention,
        _onto_states(team, thin.output, buffers.attended, buffers, layer.output.bias),
        ThinProduct(team, thin.gate_up, buffers.states, buffers.gate_up, bias=_array(layer.gate_up.bias), norm=thin.mlp_norm),
        ThinGate(team, buffers.gate_up, buffers.gated, into=down),
        down,
    ]


def _onto_states(team: ThinTeam, matrix: ThinMatrix, rows: FloatArray, buffers: _Buffers, bias: Tensor | None) -> ThinProduct:
    return ThinProduct(team, matrix, rows, buffers.states, bias=_array(bias), adds=True)


def _array(bias: Tensor | None) -> FloatArray | None:
    return None if bias is None else cast(FloatArray, bias.numpy())
