"""Our own forward of the Llama family: one flat [rows, hidden] tensor, few operations a layer, the cache's attention.

The same mathematics as transformers' modules from the same weights (parity-tested), without modules, masks or a batch axis. A step of a
small model is mostly the cost of calling operations, so their number is what is optimised: fused projections, rotations as one
complex product, norms as one scale a row. Must not know sequences, sampling or files. Source: Touvron et al. 2023 (pre-norm,
SwiGLU, RoPE); Zhang & Sennrich 2019 (RMSNorm); Qwen3 technical report (query and key norms).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from outrider.engine.attention import Scoring, StepAttention
from outrider.engine.decoder_forward import ArrayForward, CardForward, DecoderShape
from outrider.engine.lean_arrays import LeanArrays, suits_arrays
from outrider.engine.lean_projection import NarrowHead
from outrider.engine.lean_thin import LeanThin
from outrider.engine.lean_weights import LeanLayer, LeanWeights
from outrider.engine.paged_cache import LayerShape, PagedCache
from outrider_kernels.thin_team import ThinTeam


class LeanForward:
    """DecoderForward over LeanWeights."""

    def __init__(self, weights: LeanWeights, team: ThinTeam | None = None, thin_rows: int = 0) -> None:
        """team: for thin products, thin_rows rows at a time; None where they are not wanted or cannot be."""
        sizes = weights.sizes
        self._team, self._thin_rows = team, thin_rows
        self._weights = weights
        self._sizes = sizes
        self._scaling = sizes.head_dim**-0.5
        self._rotated_heads = sizes.num_heads + sizes.num_kv_heads
        self._is_fp32 = weights.embedding.dtype == torch.float32
        device = weights.embedding.device
        self._hidden_epsilon = torch.tensor(sizes.epsilon * sizes.hidden_len, device=device)
        self._head_epsilon = torch.tensor(sizes.epsilon * sizes.head_dim, device=device)
        self._final_scale = weights.final_norm * sizes.hidden_len**0.5
        self._qk_scales = [None if layer.qk_norm is None else layer.qk_norm * sizes.head_dim**0.5 for layer in weights.layers]
        layers = (LayerShape(sizes.num_kv_heads, sizes.head_dim),) * sizes.num_layers
        self._shape = DecoderShape(
            layers, sizes.hidden_len, weights.head.shape[1], sizes.max_positions, sizes.num_heads // sizes.num_kv_heads
        )

    @property
    def shape(self) -> DecoderShape:
        """Sizes, known once loaded."""
        return self._shape

    def array_forward(self, cache: PagedCache) -> ArrayForward | None:
        """See DecoderForward."""
        if self._team is not None:
            return LeanThin(self._weights, cache, self._team, self._thin_rows)
        return LeanArrays(self._weights, cache) if suits_arrays(self._weights) else None

    def card_forward(self) -> CardForward | None:
        """See DecoderForward. In float32 norms are folded into matrices, and nobody serves that on a card for its speed."""
        if self._is_fp32:
            return None
        from outrider.engine.lean_card import LeanCard

        return LeanCard(self._weights)

    def hidden(self, tokens: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        """See DecoderForward."""
        weights, mlp_len = self._weights, self._sizes.mlp_len
        rotations = weights.rotations.index_select(0, positions).unsqueeze_(1)  # [rows, 1, dim / 2]
        states = weights.embedding.index_select(0, tokens)
        for index, layer in enumerate(weights.layers):
            attended = self._attend(index, layer, self._normed(states, layer.input_norm), rotations, attention)
            states = layer.output.add_to(states, attended)
            gate_up = layer.gate_up(self._normed(states, layer.mlp_norm))
            gated = silu(gate_up[:, :mlp_len]).mul_(gate_up[:, mlp_len:])
            states = layer.down.add_to(states, gated)
        if not self._is_fp32:
            return self._normed(states, weights.final_norm)
        return self._normed(states, None).mul_(self._final_scale)

    def logits(self, hidden: Tensor) -> Tensor:
        """See DecoderForward."""
        head = self._weights.head
        return head(hidden if self._is_fp32 or isinstance(head, NarrowHead) else hidden.float())

    def _attend(self, index: int, layer: LeanLayer, normed: Tensor, rotations: Tensor, attention: StepAttention) -> Tensor:
        sizes, num_rows = self._sizes, normed.shape[0]
        heads = layer.qkv(normed).view(num_rows, -1, sizes.head_dim)
        rotated = heads[:, : self._rotated_heads]
        scales = self._qk_scales[index]
        if scales is not None:
            rotated.copy_(self._head_normed(rotated, scales, layer))
        if self._is_fp32:
            torch.view_as_complex(rotated.view(num_rows, self._rotated_heads, -1, 2)).mul_(rotations)
        else:
            wide = torch.view_as_complex(rotated.float().view(num_rows, self._rotated_heads, -1, 2)).mul_(rotations)
            rotated.copy_(torch.view_as_real(wide).flatten(2))
        keys_values = heads[:, sizes.num_heads :].view(num_rows, 2, sizes.num_kv_heads, sizes.head_dim).permute(1, 2, 0, 3)
        out = attention.attend(index, heads[:, : sizes.num_heads], keys_values, Scoring(self._scaling, sizes.windows[index]))
        return out.reshape(num_rows, -1)

    def _normed(self, states: Tensor, weight: Tensor | None) -> Tensor:
        """RMSNorm; without a weight, divided by the norm only: the weight and sqrt(hidden) are in the matrix that follows."""
        if weight is not None:
            return rms_norm(states, (self._sizes.hidden_len,), weight, self._sizes.epsilon)
        norms = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        return states * torch.addcmul(self._hidden_epsilon, norms, norms).rsqrt_()

    def _head_normed(self, heads: Tensor, scales: Tensor, layer: LeanLayer) -> Tensor:
        if not self._is_fp32:
            assert layer.qk_norm is not None
            return rms_norm(heads, (self._sizes.head_dim,), None, self._sizes.epsilon).mul_(layer.qk_norm)
        norms = torch.linalg.vector_norm(heads, dim=-1, keepdim=True)
        return (heads * torch.addcmul(self._head_epsilon, norms, norms).rsqrt_()).mul_(scales)
