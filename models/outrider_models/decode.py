"""Batched decoding of the reference models with a plain contiguous key-value cache, for evaluation only.

Knows the same architecture as `network`, one token at a time; must not know tasks or scores. Prompts are padded on
the left, so all rows write the same cache column. A test holds its greedy text equal to transformers' `generate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from outrider_models.network import Weights, rotary_tables
from outrider_models.shapes import END_ID, NORM_EPS, PAD_ID, Shape


@dataclass(frozen=True, slots=True)
class Sampled:
    """Generated tokens of one row (the end token included if it came) and the noise that chose them."""

    tokens: Tensor  # [length] int64
    noise: Tensor | None  # [length, vocab] float32, None at temperature 0


@dataclass(slots=True)
class _Cache:
    """Keys and values [layers, rows, kv_heads, max_len, head_dim] and which columns of a row are padding."""

    keys: Tensor
    values: Tensor
    is_padding: Tensor  # [rows, max_len] bool
    length: int = 0


@torch.no_grad()
def sample_batch(
    weights: Weights, shape: Shape, prompts: Sequence[Sequence[int]], max_new: int, temperature: float, seed: int
) -> list[Sampled]:
    """Decode all prompts together; every pick is argmax(logits + temperature * noise), noise from `seed`."""
    rows, longest = len(prompts), max(len(prompt) for prompt in prompts)
    ids = torch.full((rows, longest), PAD_ID)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(list(prompt))
    cache = _new_cache(shape, rows, longest + max_new)
    cache.is_padding[:, :longest] = torch.arange(longest) < longest - torch.tensor([[len(p)] for p in prompts])
    offsets = cache.is_padding[:, :longest].sum(1)
    generator = torch.Generator().manual_seed(seed)
    tables = rotary_tables(longest + max_new, shape.head_dim, torch.device("cpu"))
    picked, noises = list[Tensor](), list[Tensor]()
    live = torch.ones(rows, dtype=torch.bool)
    for _ in range(max_new):
        logits = _extend(weights, shape, ids, cache, offsets, tables)
        noise = _gumbel(rows, shape.vocab, generator) if temperature else torch.zeros(())
        ids = (logits + temperature * noise).argmax(-1, keepdim=True)
        picked.append(ids[:, 0])
        noises.append(noise)
        live &= ids[:, 0] != END_ID
        if not live.any():
            break
    return _cut(torch.stack(picked, 1), torch.stack(noises, 1) if temperature else None)


def _gumbel(rows: int, vocab: int, generator: torch.Generator) -> Tensor:
    return -torch.log(-torch.log(torch.rand(rows, vocab, generator=generator).clamp_(1e-20, 1 - 1e-7)))


def _cut(tokens: Tensor, noise: Tensor | None) -> list[Sampled]:
    """Each row up to and including its first end token."""
    found = []
    for row in range(len(tokens)):
        ends = (tokens[row] == END_ID).nonzero()
        length = int(ends[0]) + 1 if len(ends) else tokens.shape[1]
        found.append(Sampled(tokens[row, :length], None if noise is None else noise[row, :length]))
    return found


def _new_cache(shape: Shape, rows: int, max_len: int) -> _Cache:
    size = (shape.num_layers, rows, shape.num_kv_heads, max_len, shape.head_dim)
    return _Cache(torch.zeros(size), torch.zeros(size), torch.zeros(rows, max_len, dtype=torch.bool))


def _extend(weights: Weights, shape: Shape, ids: Tensor, cache: _Cache, offsets: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Run new columns ids [rows, width]; logits [rows, vocab] of the last one."""
    begin, end = cache.length, cache.length + ids.shape[1]
    positions = (torch.arange(begin, end) - offsets[:, None]).clamp_(min=0)  # [rows, width]
    turns = (tables[0][positions][:, None], tables[1][positions][:, None])
    causal = torch.arange(end) <= torch.arange(begin, end)[:, None]
    mask = causal & ~cache.is_padding[:, None, :end]
    mask |= torch.eye(end, dtype=torch.bool)[begin:]  # a padding query sees itself: no empty softmax
    hidden = functional.embedding(ids, weights["model.embed_tokens.weight"])
    for layer in range(shape.num_layers):
        at = f"model.layers.{layer}."
        normed = _norm(hidden, weights[at + "input_layernorm.weight"])
        hidden = hidden + _attend(weights, at + "self_attn.", shape, layer, normed, cache, turns, mask)
        normed = _norm(hidden, weights[at + "post_attention_layernorm.weight"])
        gate = functional.silu(functional.linear(normed, weights[at + "mlp.gate_proj.weight"]))
        inner = gate * functional.linear(normed, weights[at + "mlp.up_proj.weight"])
        hidden = hidden + functional.linear(inner, weights[at + "mlp.down_proj.weight"])
    cache.length = end
    head = "model.embed_tokens.weight" if shape.tied else "lm_head.weight"
    return functional.linear(_norm(hidden[:, -1], weights["model.norm.weight"]), weights[head])


def _norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(hidden, (hidden.shape[-1],), weight, NORM_EPS)


def _attend(
    weights: Weights, at: str, shape: Shape, layer: int, normed: Tensor, cache: _Cache,
    turns: tuple[Tensor, Tensor], mask: Tensor,
) -> Tensor:  # fmt: skip
    rows, width, _ = normed.shape
    begin, end = cache.length, cache.length + width

    def heads(name: str, count: int) -> Tensor:
        projected = functional.linear(normed, weights[f"{at}{name}_proj.weight"])
        return projected.view(rows, width, count, shape.head_dim).transpose(1, 2)

    cache.keys[layer, :, :, begin:end] = _rotate(heads("k", shape.num_kv_heads), turns)
    cache.values[layer, :, :, begin:end] = heads("v", shape.num_kv_heads)
    group = shape.num_heads // shape.num_kv_heads
    key = cache.keys[layer, :, :, :end].repeat_interleave(group, dim=1)
    value = cache.values[layer, :, :, :end].repeat_interleave(group, dim=1)
    query = _rotate(heads("q", shape.num_heads), turns)
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None])
    return functional.linear(mixed.transpose(1, 2).reshape(rows, width, -1), weights[at + "o_proj.weight"])


def _rotate(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * turns[0] + torch.cat((-second, first), dim=-1) * turns[1]
