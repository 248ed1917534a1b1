"""A compact training forward of the Llama architecture; its parameters carry transformers' own names.

Knows how to initialise and to run whole rows from position 0; no cache, no generation. A test holds its logits
equal to `LlamaForCausalLM` with the same weights. Sources: RMSNorm (Zhang and Sennrich 2019), rotary
positions (Su et al. 2021), grouped queries (Ainslie et al. 2023), SwiGLU (Shazeer 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from outrider_models.shapes import NORM_EPS, ROPE_THETA, Shape

Weights = dict[str, Tensor]
_EMBED, _HEAD, _NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
_EMBED_STD, _TIED_EMBED_STD, _HEAD_STD = 0.2, 0.02, 0.01


def init_weights(shape: Shape, seed: int) -> Weights:
    """Fresh fp32 weights. Matrices that write to the residual stream start at zero (each block starts as identity)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int, std: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * std

    wide, narrow = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    std = shape.hidden**-0.5
    weights = {_EMBED: normal(shape.vocab, shape.hidden, _TIED_EMBED_STD if shape.tied else _EMBED_STD)}
    for layer in range(shape.num_layers):
        at = f"model.layers.{layer}."
        weights |= {
            at + "input_layernorm.weight": torch.ones(shape.hidden),
            at + "self_attn.q_proj.weight": normal(wide, shape.hidden, std),
            at + "self_attn.k_proj.weight": normal(narrow, shape.hidden, std),
            at + "self_attn.v_proj.weight": normal(narrow, shape.hidden, std),
            at + "self_attn.o_proj.weight": torch.zeros(shape.hidden, wide),
            at + "post_attention_layernorm.weight": torch.ones(shape.hidden),
            at + "mlp.gate_proj.weight": normal(shape.mlp, shape.hidden, std),
            at + "mlp.up_proj.weight": normal(shape.mlp, shape.hidden, std),
            at + "mlp.down_proj.weight": torch.zeros(shape.hidden, shape.mlp),
        }
    weights[_NORM] = torch.ones(shape.hidden)
    if not shape.tied:
        weights[_HEAD] = normal(shape.vocab, shape.hidden, _HEAD_STD)
    return weights


def rotary_tables(length: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [length, head_dim] float32."""
    frequencies = ROPE_THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def forward(weights: Weights, shape: Shape, ids: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Logits [rows, length, vocab] of ids [rows, length] int64; `tables` of at least that length."""
    hidden = functional.embedding(ids, weights[_EMBED])
    for layer in range(shape.num_layers):
        at = f"model.layers.{layer}."
        normed = _norm(hidden, weights[at + "input_layernorm.weight"])
        hidden = hidden + _attend(weights, at + "self_attn.", shape, normed, tables)
        normed = _norm(hidden, weights[at + "post_attention_layernorm.weight"])
        gate = functional.silu(functional.linear(normed, weights[at + "mlp.gate_proj.weight"]))
        inner = gate * functional.linear(normed, weights[at + "mlp.up_proj.weight"])
        hidden = hidden + functional.linear(inner, weights[at + "mlp.down_proj.weight"])
    return functional.linear(_norm(hidden, weights[_NORM]), weights[_EMBED if shape.tied else _HEAD])


def _norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(hidden, (hidden.shape[-1],), weight, NORM_EPS)


def _attend(weights: Weights, at: str, shape: Shape, normed: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    rows, length, _ = normed.shape

    def heads(name: str, count: int) -> Tensor:
        projected = functional.linear(normed, weights[f"{at}{name}_proj.weight"])
        return projected.view(rows, length, count, shape.head_dim).transpose(1, 2)  # [rows, count, length, head_dim]

    query = _rotate(heads("q", shape.num_heads), tables)
    group = shape.num_heads // shape.num_kv_heads
    key = _rotate(heads("k", shape.num_kv_heads), tables).repeat_interleave(group, dim=1)
    value = heads("v", shape.num_kv_heads).repeat_interleave(group, dim=1)
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return functional.linear(mixed.transpose(1, 2).reshape(rows, length, -1), weights[at + "o_proj.weight"])


def _rotate(heads: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    cosines, sines = (table[: heads.shape[2]].to(heads.dtype) for table in tables)
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines
