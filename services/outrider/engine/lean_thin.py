"""The lean forward on thin products, over the same cache: for few rows of fp32 on a CPU, where a C compiler is.

Everything lies in buffers that are there from load time, so a product is one call with two numbers (outrider_kernels/thin_product.py). The
same mathematics as `lean_forward` with sums in another order, so for `fast` numerics only. Must not know sampling or files.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from outrider.engine.array_attention import ArrayAttention
from outrider.engine.lean_arrays import gated, rotate
from outrider.engine.lean_weights import LeanLayer, LeanWeights
from outrider.engine.paged_cache import PagedCache
from outrider.engine.step_batch import LongArray, StepBatch
from outrider.types.tree import FloatArray
from outrider_kernels.thin_product import RowNorm, ThinMatrix, ThinProduct, ThinTeam

_Complex64Array = npt.NDArray[np.complex64]


class LeanThin:
    """Rows through LeanWeights with thin copies, their keys and values stored in `cache`; at most `most_rows` at a time."""

    def __init__(self, weights: LeanWeights, cache: PagedCache, team: ThinTeam, most_rows: int) -> None:
        sizes = self._sizes = weights.sizes
        assert weights.thin_head is not None
        self._pools = [cast(FloatArray, pool.numpy()) for pool in cache.pools]
        self._embedding = cast(FloatArray, weights.embedding.numpy())
        self._rotations = cast(_Complex64Array, weights.rotations.numpy())
        self._buffers = _Buffers(weights, most_rows)
        self._layers = [_Layer(layer, self._buffers, team, sizes.head_dim) for layer in weights.layers]
        final_norm = RowNorm(cast(FloatArray, weights.final_norm.numpy()), sizes.epsilon)
        self._head = ThinProduct(team, weights.thin_head, self._buffers.last, self._buffers.logits, norm=final_norm)

    def logits(self, batch: StepBatch, wanted: LongArray) -> FloatArray:
        """float32 [wanted rows, num_logits] of a step; a new array."""
        with np.errstate(over="ignore"):  # in the gates: see lean_arrays.gated
            return self._logits(batch, wanted)

    def _logits(self, batch: StepBatch, wanted: LongArray) -> FloatArray:
        attention = ArrayAttention(self._pools, batch)
        num_rows, sizes, buffers = batch.num_rows, self._sizes, self._buffers
        rotations = self._rotations[batch.positions][:, None]  # [rows, 1, dim / 2]
        states, attended = buffers.states[:num_rows], buffers.attended[:num_rows]
        heads = buffers.heads[:num_rows].reshape(num_rows, -1, sizes.head_dim)
        gate, up = buffers.gate_up[:num_rows, : sizes.mlp_len], buffers.gate_up[:num_rows, sizes.mlp_len :]
        np.take(self._embedding, batch.tokens, axis=0, out=states)
        for index, layer in enumerate(self._layers):
            layer.qkv.run(num_rows)
            rotate(heads, sizes, layer.qk_scale, rotations)
            attended[:] = attention.attend(index, heads, sizes.num_heads, sizes.windows[index])
            layer.output.run(num_rows)
            layer.gate_up.run(num_rows)
            gated(gate, up, buffers.gated[:num_rows])
            layer.down.run(num_rows)
        num_wanted = len(wanted)
        buffers.last[:num_wanted] = states if num_wanted == num_rows else states[wanted]
        self._head.run(num_wanted)
        return buffers.logits[:num_wanted].copy()


class _Buffers:
    """[most_rows, ...] of every kind, shared by all layers: each is used up before the next layer fills it."""

    def __init__(self, weights: LeanWeights, most_rows: int) -> None:
        sizes = weights.sizes
        attended_len = sizes.num_heads * sizes.head_dim

        def rows_of(length: int) -> FloatArray:
            return np.zeros((most_rows, length), np.float32)

        self.states, self.last = rows_of(sizes.hidden_len), rows_of(sizes.hidden_len)
        self.heads = rows_of(attended_len + 2 * sizes.num_kv_heads * sizes.head_dim)
        self.attended = rows_of(attended_len)
        self.gate_up, self.gated = rows_of(2 * sizes.mlp_len), rows_of(sizes.mlp_len)
        self.logits = rows_of(weights.embedding.shape[0])


class _Layer:
    """One layer's products between the buffers. qk_scale: as in lean_arrays."""

    def __init__(self, layer: LeanLayer, buffers: _Buffers, team: ThinTeam, head_dim: int) -> None:
        thin = layer.thin
        assert thin is not None
        self.qk_scale = None if layer.qk_norm is None else cast(FloatArray, (layer.qk_norm * head_dim**0.5).numpy())
        self.qkv = ThinProduct(team, thin.qkv, buffers.states, buffers.heads, bias=_array(layer.qkv.bias), norm=thin.input_norm)
        self.output = _onto_states(team, thin.output, buffers.attended, buffers, layer.output.bias)
        self.gate_up = ThinProduct(team, thin.gate_up, buffers.states, buffers.gate_up, bias=_array(layer.gate_up.bias), norm=thin.mlp_norm)
        self.down = _onto_states(team, thin.down, buffers.gated, buffers, layer.down.bias)


def _onto_states(team: ThinTeam, matrix: ThinMatrix, rows: FloatArray, buffers: _Buffers, bias: Tensor | None) -> ThinProduct:
    return ThinProduct(team, matrix, rows, buffers.states, bias=_array(bias), adds=True)


def _array(bias: Tensor | None) -> FloatArray | None:
    return None if bias is None else cast(FloatArray, bias.numpy())
