"""Our own forward of the Llama family: one flat [rows, hidden] tensor, few operations a layer, the cache's attention.

The same mathematics as transformers' modules from the same weights (parity-tested), without modules, masks or a batch axis. Must not
know sequences, sampling or files. Source: Touvron et al. 2023 (pre-norm, SwiGLU, RoPE); Qwen3 technical report (query and key norms).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from outrider.engine.attention import StepAttention
from outrider.engine.decoder_forward import DecoderShape
from outrider.engine.lean_weights import LeanLayer, LeanWeights
from outrider.engine.paged_cache import LayerShape


class LeanForward:
    """DecoderForward over LeanWeights."""

    def __init__(self, weights: LeanWeights) -> None:
        self._weights = weights
        sizes = weights.sizes
        self._sizes = sizes
        self._scaling = sizes.head_dim**-0.5
        self._query_len = sizes.num_heads * sizes.head_dim
        self._rotated_heads = sizes.num_heads + sizes.num_kv_heads
        self._is_fp32 = weights.embedding.dtype == torch.float32
        layers = (LayerShape(sizes.num_kv_heads, sizes.head_dim),) * sizes.num_layers
        self._shape = DecoderShape(layers, sizes.hidden_len, weights.head.shape[1], sizes.max_positions)

    @property
    def shape(self) -> DecoderShape:
        """Sizes, known once loaded."""
        return self._shape

    def hidden(self, tokens: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        """See DecoderForward."""
        weights, sizes = self._weights, self._sizes
        rotations = weights.rotations.index_select(0, positions).unsqueeze(1)  # [rows, 1, dim / 2]
        states = weights.embedding.index_select(0, tokens)
        norm_shape = (sizes.hidden_len,)
        for index, layer in enumerate(weights.layers):
            normed = rms_norm(states, norm_shape, layer.input_norm, sizes.epsilon)
            attended = self._attend(index, layer, normed, rotations, attention)
            states = _add_product(states, attended, layer.output, layer.output_bias)
            normed = rms_norm(states, norm_shape, layer.mlp_norm, sizes.epsilon)
            gate, up = torch.split(_product(normed, layer.gate_up, layer.gate_up_bias), sizes.mlp_len, dim=1)
            states = _add_product(states, silu(gate).mul_(up), layer.down, layer.down_bias)
        return rms_norm(states, norm_shape, weights.final_norm, sizes.epsilon)

    def logits(self, hidden: Tensor) -> Tensor:
        """See DecoderForward."""
        return torch.mm(hidden if self._is_fp32 else hidden.float(), self._weights.head)

    def _attend(self, index: int, layer: LeanLayer, normed: Tensor, rotations: Tensor, attention: StepAttention) -> Tensor:
        sizes, num_rows = self._sizes, normed.shape[0]
        projected = _product(normed, layer.qkv, layer.qkv_bias).view(num_rows, -1, sizes.head_dim)
        rotated, values = torch.split(projected, [self._rotated_heads, sizes.num_kv_heads], dim=1)
        if layer.qk_norm is not None:
            rotated = rms_norm(rotated, (sizes.head_dim,), None, sizes.epsilon).mul_(layer.qk_norm)
        rotated = self._rotate(rotated, rotations)
        query, keys = torch.split(rotated, [sizes.num_heads, sizes.num_kv_heads], dim=1)
        out = attention.attend(index, query, keys, values, self._scaling, sizes.windows[index], None)
        return out.reshape(num_rows, self._query_len)

    def _rotate(self, heads: Tensor, rotations: Tensor) -> Tensor:
        """heads: [rows, heads, dim] with rotary partners side by side; changed in place when fp32."""
        if self._is_fp32:
            torch.view_as_complex(heads.view(*heads.shape[:2], -1, 2)).mul_(rotations)
            return heads
        wide = torch.view_as_complex(heads.float().view(*heads.shape[:2], -1, 2)).mul_(rotations)
        return torch.view_as_real(wide).flatten(2).to(heads.dtype)


def _product(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(rows, matrix) if bias is None else torch.addmm(bias, rows, matrix)


def _add_product(states: Tensor, rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    total = torch.addmm(states, rows, matrix)
    return total if bias is None else total.add_(bias)
