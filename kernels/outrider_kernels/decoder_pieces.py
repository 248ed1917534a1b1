"""What lies between a decoder layer's products of matrices, in plain torch: the definitions that fused kernels are held against.

Each rounds where the model's own operations do: sums and scales in float32, one rounding to the rows' dtype where a tensor would be stored.
Must not know weights' names, caches beyond their pools, or sequences. Source: Zhang & Sennrich 2019 (RMSNorm); Su et al. 2021 (rotations);
Shazeer 2020 (gated units); Qwen3 technical report (norms of queries and keys).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """How a row of queries, keys and values lies: num_heads + 2 num_kv_heads heads of head_dim numbers, rotary partners side by side."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def num_rotated(self) -> int:
        """Queries and keys."""
        return self.num_heads + self.num_kv_heads


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """weight: [num_heads + num_kv_heads, head_dim], of queries and keys before they are rotated."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class KeyPlaces:
    """Where a step's keys and values go. keys, values: a layer's pool [num_kv_heads, num_slots, head_dim]. slots: int64 [rows]."""

    keys: Tensor
    values: Tensor
    slots: Tensor


def reference_add_norm(states: Tensor, added: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """states [rows, hidden] += added, in place; returns its RMSNorm."""
    if added is not None:
        states.add_(added)
    wide = states.float()
    scale = (wide.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt()
    return (wide * scale * weight.float()).to(states.dtype)


def reference_gate(gate_up: Tensor) -> Tensor:
    """[rows, 2 mlp], gates and then values, to [rows, mlp]."""
    gates, values = gate_up.chunk(2, dim=-1)
    return silu(gates) * values


def reference_rotate_and_store(
    joined: Tensor, layout: HeadLayout, rotations: Tensor, positions: Tensor, places: KeyPlaces, norm: HeadNorm | None = None
) -> Tensor:
    """Rotates queries and keys of joined [rows, heads * head_dim], stores keys and values, returns the queries [rows, num_heads, head_dim].

    rotations: float32 [num_positions, head_dim / 2, 2], cosines and sines. positions: int64 [rows].
    """
    heads = joined.view(len(joined), -1, layout.head_dim)
    rotated, values = heads[:, : layout.num_rotated], heads[:, layout.num_rotated :]
    if norm is not None:
        rotated = _head_normed(rotated, norm)
    pairs = rotated.float().reshape(len(joined), layout.num_rotated, -1, 2)
    turned = torch.view_as_complex(pairs)
    turned = turned * torch.view_as_complex(rotations)[positions][:, None]
    rotated = torch.view_as_real(turned).flatten(-2).to(joined.dtype)
    queries, keys = rotated[:, : layout.num_heads], rotated[:, layout.num_heads :]
    places.keys.index_copy_(1, places.slots, keys.transpose(0, 1))
    places.values.index_copy_(1, places.slots, values.transpose(0, 1))
    return queries.contiguous()


def _head_normed(heads: Tensor, norm: HeadNorm) -> Tensor:
    wide = heads.float()
    scale = (wide.square().mean(dim=-1, keepdim=True) + norm.epsilon).rsqrt()
    return (wide * scale).to(heads.dtype) * norm.weight
