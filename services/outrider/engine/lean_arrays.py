"""The lean forward on numpy arrays, over the same weights and the same cache: for few rows of fp32 on a CPU.

A step of few rows is calls and thin matrix products. numpy's calls cost a fraction of torch's, and its OpenBLAS is the faster of the two at
1 and at 4 to 64 rows where it was measured (bench/LOG.md): a row of the smallest reference model takes 0.21 ms instead of 0.54. The same
mathematics as `lean_forward` with sums in another order, so for `fast` numerics only. Must not know sampling or files.
"""

from __future__ import annotations

from math import sqrt
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from outrider.engine.array_attention import ArrayAttention
from outrider.engine.decoder_forward import RowChain
from outrider.engine.int8_projection import Int8Projection
from outrider.engine.lean_config import LeanSizes
from outrider.engine.lean_projection import Projection
from outrider.engine.lean_weights import LeanLayer, LeanWeights
from outrider.engine.matrix_layout import AnyProjection
from outrider.engine.paged_cache import PagedCache
from outrider.engine.step_batch import LongArray, StepBatch
from outrider.types.tree import FloatArray
from outrider_kernels.thin_chain import ChainIds
from outrider_kernels.thin_pick import ThinPick

# OpenBLAS works on this many rows at a time: 5 to 7 rows cost more than 8.
ROW_MULTIPLE = 4

_Complex64Array = npt.NDArray[np.complex64]


class LeanArrays:
    """Rows through LeanWeights, their keys and values stored in `cache`. Meant for few: above 64 torch's fused attention is as fast."""

    is_invariant = False
    picker: ThinPick | None = None

    def __init__(self, weights: LeanWeights, cache: PagedCache) -> None:
        sizes = weights.sizes
        self._sizes = sizes
        self._pools = [cast(FloatArray, pool.numpy()) for pool in cache.pools]
        self._layers = [_ArrayLayer(layer, sizes.head_dim) for layer in weights.layers]
        self._embedding = cast(FloatArray, weights.embedding.numpy())
        self._rotations = cast(_Complex64Array, weights.rotations.numpy())
        self._final_scale = cast(FloatArray, (weights.final_norm * sizes.hidden_len**0.5).numpy())
        self._head = _ArrayProjection(weights.head)
        self._hidden_epsilon = sizes.epsilon * sizes.hidden_len

    def logits(self, batch: StepBatch, wanted: LongArray) -> FloatArray:
        """float32 [wanted rows, num_logits] of a step."""
        with np.errstate(over="ignore"):  # in the gates: see _gated
            return self._logits(batch, wanted)

    def shorten(self, most_ids: int, kept: tuple[int, ...]) -> None:
        """Leaves out none: only packed matrices are computed in part."""

    def row_chain(self, ids: ChainIds) -> RowChain | None:
        """None: a single row costs what a step of one does."""
        return None

    def _logits(self, batch: StepBatch, wanted: LongArray) -> FloatArray:
        attention = ArrayAttention(self._pools, batch)
        num_rows, sizes = batch.num_rows, self._sizes
        rotations = self._rotations[batch.positions][:, None]  # [rows, 1, dim / 2]
        states = _padded(self._embedding[batch.tokens])
        attended = np.zeros((len(states), sizes.num_heads * sizes.head_dim), np.float32)
        mlp_len = sizes.mlp_len
        for index, layer in enumerate(self._layers):
            heads = layer.qkv(self._normed(states))[:num_rows].reshape(num_rows, -1, sizes.head_dim)
            _rotate(heads, sizes, layer.qk_scale, rotations)
            attended[:num_rows] = attention.attend(index, heads, sizes.num_heads, sizes.windows[index])
            states += layer.output(attended)
            gate_up = layer.gate_up(self._normed(states))
            states += layer.down(_gated(gate_up[:, :mlp_len], gate_up[:, mlp_len:]))
        if len(wanted) < num_rows:
            states = _padded(states[wanted])
        return self._head(self._normed(states) * self._final_scale)[: len(wanted)]

    def _normed(self, states: FloatArray) -> FloatArray:
        """RMSNorm without its weight and sqrt(hidden), which are in the matrix that follows."""
        if len(states) == 1:  # half the calls of the general way
            row = states[0]
            return states * np.float32(1.0 / sqrt(float(row.dot(row)) + self._hidden_epsilon))
        squares = np.vecdot(states, states)
        squares += np.float32(self._hidden_epsilon)
        normed: FloatArray = states * (np.float32(1.0) / np.sqrt(squares))[:, None]
        return normed


class _ArrayProjection:
    """A Projection seen from numpy: [rows, inputs] -> [rows, outputs]."""

    def __init__(self, projection: AnyProjection) -> None:
        assert isinstance(projection, Projection)  # see suits_arrays
        self._matrix = cast(FloatArray, projection.matrix.numpy())
        self._bias = None if projection.bias is None else cast(FloatArray, projection.bias.numpy())

    def __call__(self, rows: FloatArray) -> FloatArray:
        product: FloatArray = rows @ self._matrix
        if self._bias is not None:
            product += self._bias
        return product


class _ArrayLayer:
    """One layer's matrices. qk_scale: weight times sqrt(head_dim) of Qwen3's norms, [heads + kv_heads, dim]."""

    def __init__(self, layer: LeanLayer, head_dim: int) -> None:
        self.qkv, self.output = _ArrayProjection(layer.qkv), _ArrayProjection(layer.output)
        self.gate_up, self.down = _ArrayProjection(layer.gate_up), _ArrayProjection(layer.down)
        self.qk_scale = None if layer.qk_norm is None else cast(FloatArray, (layer.qk_norm * head_dim**0.5).numpy())


def suits_arrays(weights: LeanWeights) -> bool:
    """Whether LeanArrays can run these weights: float32 in the processor's own memory."""
    tensor = weights.embedding
    is_int8 = any(isinstance(layer.qkv, Int8Projection) for layer in weights.layers)
    return not is_int8 and tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def _padded(rows: FloatArray) -> FloatArray:
    """The rows, and rows of zeros up to a multiple of ROW_MULTIPLE; a single row stays one, which is a product of its own kind."""
    num_rows = len(rows)
    missing = -num_rows % ROW_MULTIPLE
    if num_rows <= 1 or not missing:
        return rows
    padded = np.zeros((num_rows + missing, rows.shape[1]), np.float32)
    padded[:num_rows] = rows
    return padded


def _rotate(heads: FloatArray, sizes: LeanSizes, qk_scale: FloatArray | None, rotations: _Complex64Array) -> None:
    """Queries (scaled for the scores) and keys, in place. heads: [rows, heads + 2 kv_heads, dim]. rotations: [rows, 1, dim / 2]."""
    rotated = heads[:, : sizes.num_heads + sizes.num_kv_heads]
    if qk_scale is not None:
        squares = np.vecdot(rotated, rotated)[..., None]
        rotated *= qk_scale / np.sqrt(squares + np.float32(sizes.epsilon * sizes.head_dim))
    turned = rotated.view(np.complex64)
    turned *= rotations
    heads[:, : sizes.num_heads] *= np.float32(sizes.head_dim**-0.5)


def _gated(gate: FloatArray, up: FloatArray) -> FloatArray:
    """silu(gate) * up; a gate below -88 overflows to infinity on the way and comes out as the 0 that it is."""
    work: FloatArray = np.exp(-gate)
    work += np.float32(1.0)
    np.divide(gate, work, out=work)
    work *= up
    return work
