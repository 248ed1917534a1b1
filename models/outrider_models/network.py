"""A compact training forward of the Llama architecture; its parameters carry transformers' own names.

Knows how to initialise and to run whole documents laid end to end, each attending only to itself; no cache. A test holds its logits
equal to `LlamaForCausalLM` with the same weights. Sources: RMSNorm (Zhang and Sennrich 2019), rotary
positions (Su et al. 2021), grouped queries (Ainslie et al. 2023), SwiGLU (Shazeer 2020).
"""

from __future__ import annotations

from collections.abc import Sequence

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


def forward(
    weights: Weights,
    shape: Shape,
    ids: Tensor,
    lengths: Sequence[int],
    tables: tuple[Tensor, Tensor],
    wanted: Tensor | None = None,
) -> Tensor:
    """Logits of documents laid end to end: ids [num_tokens] int64, `lengths` of the documents, summing to that.

    Every document starts at position 0 and sees only itself; `tables` reach the longest. With `wanted` (indices into
    `ids`) only those rows of logits are computed. Returns [num_tokens or len(wanted), vocab].
    """
    hidden = functional.embedding(ids, weights[_EMBED])
    turns = _lay_out(tables, lengths)
    for layer in range(shape.num_layers):
        at = f"model.layers.{layer}."
        normed = _norm(hidden, weights[at + "input_layernorm.weight"])
        hidden = hidden + _attend(weights, at + "self_attn.", shape, normed, lengths, turns)
        normed = _norm(hidden, weights[at + "post_attention_layernorm.weight"])
        gate = functional.silu(functional.linear(normed, weights[at + "mlp.gate_proj.weight"]))
        inner = gate * functional.linear(normed, weights[at + "mlp.up_proj.weight"])
        hidden = hidden + functional.linear(inner, weights[at + "mlp.down_proj.weight"])
    hidden = hidden if wanted is None else hidden[wanted]
    return functional.linear(_norm(hidden, weights[_NORM]), weights[_EMBED if shape.tied else _HEAD])


def _lay_out(tables: tuple[Tensor, Tensor], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rotary tables for documents end to end, [num_tokens, 1, head_dim] each."""
    cosines, sines = (torch.cat([table[:length] for length in lengths])[:, None] for table in tables)
    return cosines, sines


def _norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(hidden, (hidden.shape[-1],), weight, NORM_EPS)


def _attend(weights: Weights, at: str, shape: Shape, normed: Tensor, lengths: Sequence[int], turns: tuple[Tensor, Tensor]) -> Tensor:
    def heads(name: str, count: int) -> Tensor:
        return functional.linear(normed, weights[f"{at}{name}_proj.weight"]).view(-1, count, shape.head_dim)

    group = shape.num_heads // shape.num_kv_heads
    query = _rotate(heads("q", shape.num_heads), turns)  # [num_tokens, heads, head_dim]
    key = _rotate(heads("k", shape.num_kv_heads), turns).repeat_interleave(group, dim=1)
    value = heads("v", shape.num_kv_heads).repeat_interleave(group, dim=1)
    queries, keys, values = (torch.split(part.transpose(0, 1)[None], list(lengths), dim=2) for part in (query, key, value))
    documents = zip(queries, keys, values, strict=True)
    mixed = [functional.scaled_dot_product_attention(*document, is_causal=True) for document in documents]
    joined = torch.cat(mixed, dim=2)[0].transpose(0, 1)  # [num_tokens, heads, head_dim]
    return functional.linear(joined.reshape(len(normed), -1), weights[at + "o_proj.weight"])


def _rotate(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosines, sines = (turn.to(heads.dtype) for turn in turns)
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines
