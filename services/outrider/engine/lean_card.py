"""The lean forward on a card, in 16-bit numbers: five products of matrices, an attention and four small kernels a layer.

The same mathematics as LeanForward.hidden; what lies between the products is fused, because on a card a small step is mostly the number of
its launches, recorded or not. Must not know sequences, sampling or files. Needs Triton: import it where a card is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.engine.attention import Scoring
from outrider.engine.card_attention import CardAttention
from outrider.engine.lean_weights import LeanLayer, LeanWeights
from outrider_kernels.decoder_pieces import HeadLayout, HeadNorm
from outrider_kernels.triton_add_norm import add_norm
from outrider_kernels.triton_gate import gate
from outrider_kernels.triton_rotate import rotate_and_store


class LeanCard:
    """CardForward over LeanWeights whose norms are not folded into matrices."""

    def __init__(self, weights: LeanWeights) -> None:
        sizes = weights.sizes
        self._weights, self._sizes = weights, sizes
        self._layout = HeadLayout(sizes.num_heads, sizes.num_kv_heads, sizes.head_dim)
        self._rotations = torch.view_as_real(weights.rotations).contiguous()
        self._norms = [None if layer.qk_norm is None else HeadNorm(layer.qk_norm.contiguous(), sizes.epsilon) for layer in weights.layers]

    def hidden(self, tokens: Tensor, positions: Tensor, attention: CardAttention) -> Tensor:
        """See CardForward."""
        states = self._weights.embedding.index_select(0, tokens)
        added: Tensor | None = None
        for index, layer in enumerate(self._weights.layers):
            attended = self._attend(index, layer, self._normed(states, added, layer.input_norm), positions, attention)
            gate_up = layer.gate_up(self._normed(states, layer.output(attended), layer.mlp_norm))
            added = layer.down(gate(gate_up))
        return self._normed(states, added, self._weights.final_norm)

    def _attend(self, index: int, layer: LeanLayer, normed: Tensor, positions: Tensor, attention: CardAttention) -> Tensor:
        places = attention.key_places(index)
        queries = rotate_and_store(layer.qkv(normed), self._layout, self._rotations, positions, places, self._norms[index])
        scoring = Scoring(self._sizes.head_dim**-0.5, self._sizes.windows[index])
        return attention.attend_stored(index, queries, scoring).view(len(normed), -1)

    def _normed(self, states: Tensor, added: Tensor | None, weight: Tensor | None) -> Tensor:
        assert weight is not None
        return add_norm(states, added, weight, self._sizes.epsilon)
