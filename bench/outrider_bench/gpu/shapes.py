"""Sizes of the random targets: the shapes of Llama 3's models of 1, 3 and 8 billion parameters, and a tiny one for tests.

Knows counts of numbers and bytes. Must not import torch or know what a target is measured for. Embedding and head are two matrices here
(in the smaller originals they are one), and the layers' numbers are bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

BYTES_PER_NUMBER = 2  # bfloat16
MAX_POSITIONS = 4096  # far more than any request here; the original's 131,072 would cost a table of rotations
DRAFT_SHARE = 20  # a draft model whose drafting is stood in for has a twentieth of the target's bytes
WORK_BYTES = 2 << 30  # logits, activations, a step's buffers and what a library takes for itself


@dataclass(frozen=True, slots=True)
class TargetShape:
    """A Llama decoder: layers, width, heads of queries and of keys, numbers of a head, neurons of an MLP, ids."""

    num_layers: int
    hidden_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_len: int
    num_ids: int

    @property
    def layer_numbers(self) -> int:
        """Of one layer, its two norms included."""
        attention = self.hidden_len * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        return attention + 3 * self.hidden_len * self.mlp_len + 2 * self.hidden_len

    @property
    def head_numbers(self) -> int:
        """Of the head, and of the embedding."""
        return self.num_ids * self.hidden_len

    @property
    def num_parameters(self) -> int:
        """Of the whole model."""
        return self.num_layers * self.layer_numbers + 2 * self.head_numbers + self.hidden_len

    @property
    def file_bytes(self) -> int:
        """Of its weights on disk."""
        return BYTES_PER_NUMBER * self.num_parameters

    @property
    def step_bytes(self) -> int:
        """What a step of few rows reads of the weights at least: all but the embedding."""
        return BYTES_PER_NUMBER * (self.num_layers * self.layer_numbers + self.head_numbers)

    @property
    def kv_bytes(self) -> int:
        """Of one token in the cache."""
        return BYTES_PER_NUMBER * 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def memory_bytes(self, cache_bytes: int) -> int:
        """What serving it takes at most, with a cache of this size, beside a baseline of as many requests: at first it is there twice
        because it is checked (once as served, once as the checking library loads it), and then because the baseline has it too, with a
        cache of its own."""
        return 2 * self.file_bytes + 2 * (cache_bytes + WORK_BYTES)


SIZES: Mapping[str, TargetShape] = MappingProxyType(
    {
        "tiny": TargetShape(2, 128, 4, 2, 32, 256, 4096),
        "1b": TargetShape(16, 2048, 32, 8, 64, 8192, 128_256),
        "3b": TargetShape(28, 3072, 24, 8, 128, 8192, 128_256),
        "8b": TargetShape(32, 4096, 32, 8, 128, 14_336, 128_256),
    }
)


def draft_us(shape: TargetShape, bytes_per_s: float) -> int:
    """What a draft model of a twentieth of the target's bytes would take for a token, if it read them as fast as memory is copied."""
    return round(1e6 * shape.step_bytes / DRAFT_SHARE / bytes_per_s)
