"""Tree attention against its fp64 definition, odd shapes included; error at most twice that of torch's own attention in the same dtype.

Run: pytest tests/kernels/test_tree_attention.py
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from outrider_kernels.tree_attention import WIDE_ROWS, reference_tree_attention, tree_attention

SHAPES = [  # rows, heads, kv_heads, dim, keys, tail
    (1, 6, 2, 64, 1, 1),
    (1, 6, 2, 64, 300, 1),
    (8, 6, 2, 64, 131, 8),
    (7, 5, 5, 24, 33, 7),
    (13, 9, 3, 20, 77, 21),
    (3, 4, 1, 8, 3, 3),
    (WIDE_ROWS + 5, 6, 2, 16, 90, WIDE_ROWS + 5),
]


def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """query, keys, values (views with foreign strides), visible, tail mask."""
    rows, heads, kv_heads, dim, num_keys, tail = shape
    generator = torch.Generator().manual_seed(sum(shape))
    query = torch.randn(rows, heads, dim, generator=generator).to(dtype)
    pool = torch.randn(2, kv_heads, num_keys + 40, dim, generator=generator).to(dtype)
    visible = torch.ones(rows, num_keys, dtype=torch.bool)
    visible[:, num_keys - tail :] = torch.rand(rows, tail, generator=generator) < 0.5
    visible[torch.arange(rows), num_keys - tail + torch.arange(rows) % tail] = True
    mask = torch.zeros(rows, tail, dtype=dtype).masked_fill(~visible[:, num_keys - tail :], -torch.inf)
    return query, pool[0, :, 17 : 17 + num_keys], pool[1, :, 17 : 17 + num_keys], visible, mask


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_tree_attention_is_as_close_as_torch(shape: tuple[int, ...], dtype: torch.dtype, softcap: float | None) -> None:
    query, keys, values, visible, mask = inputs(shape, dtype)
    expected = reference_tree_attention(query, keys, values, visible, 0.2, softcap)
    got = tree_attention(query, [keys], [values], mask, 0.2, softcap)
    assert got.shape == query.shape
    assert got.dtype == dtype
    group = query.shape[1] // keys.shape[0]
    wide_keys, wide_values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    ordinary = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], wide_keys[None], wide_values[None], attn_mask=visible, scale=0.2
    )[0].transpose(0, 1)
    uncapped = reference_tree_attention(query, keys, values, visible, 0.2)
    allowed = 2 * float((ordinary.double() - uncapped).abs().max()) + (1e-6 if dtype == torch.float32 else 2e-2)
    assert float((got.double() - expected).abs().max()) <= allowed


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[4] > 30])
def test_runs_of_a_fragmented_cache_change_nothing(shape: tuple[int, ...], softcap: float | None) -> None:
    query, keys, values, visible, mask = inputs(shape, torch.float32)
    cuts = [0, 5, 6, 21, keys.shape[1]]
    runs = list(pairwise(cuts))
    got = tree_attention(query, [keys[:, a:b] for a, b in runs], [values[:, a:b] for a, b in runs], mask, 0.2, softcap)
    expected = reference_tree_attention(query, keys, values, visible, 0.2, softcap)
    assert float((got.double() - expected).abs().max()) < 2e-6


@pytest.mark.parametrize("is_cut", [False, True], ids=["one run", "four runs"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[4] > 30])
def test_sinks_take_their_share_of_every_heads_weights(shape: tuple[int, ...], is_cut: bool) -> None:
    query, keys, values, visible, mask = inputs(shape, torch.float32)
    sinks = torch.linspace(-2.0, 4.0, shape[1])
    runs = list(pairwise([0, 5, 6, 21, keys.shape[1]] if is_cut else [0, keys.shape[1]]))
    got = tree_attention(query, [keys[:, a:b] for a, b in runs], [values[:, a:b] for a, b in runs], mask, 0.2, None, sinks)
    expected = reference_tree_attention(query, keys, values, visible, 0.2, None, sinks)
    assert float((got.double() - expected).abs().max()) < 2e-6
    without = reference_tree_attention(query, keys, values, visible, 0.2)
    assert float((got.double() - without).abs().max()) > 1e-2, "sinks that are lost would be seen"


def test_without_a_mask_every_key_counts() -> None:
    query, keys, values, visible, _ = inputs(SHAPES[2], torch.float32)
    expected = reference_tree_attention(query, keys, values, torch.ones_like(visible), 0.3)
    assert float((tree_attention(query, [keys], [values], None, 0.3).double() - expected).abs().max()) < 2e-6


def test_the_comparison_notices_a_lost_mask() -> None:
    query, keys, values, visible, _ = inputs(SHAPES[3], torch.float32)
    expected = reference_tree_attention(query, keys, values, visible, 0.3)
    assert float((tree_attention(query, [keys], [values], None, 0.3).double() - expected).abs().max()) > 1e-2
