"""Attention of the rows of one sequence (a prefill chunk, a decode row, a draft tree) over its cache, read in place.

Keys arrive as views of the cache, one per run of neighbouring slots; a run is never copied, so a step costs what a contiguous
cache costs. Only the tail of the keys (this step's rows and live tree nodes) needs a mask: everything before is visible to every
row. A cache in several runs shares one softmax: scores are laid side by side and the weighted values added up, which is exact.
Must not know block tables, sequences or trees: only tensors. Source: Vaswani et al. 2017 section 3.2.1; tree masks as in
SpecInfer (Miao et al. 2024, section 4.2); logit soft cap as in Gemma 2 (section 2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WIDE_ROWS = 32  # from here on the fused kernel of torch wins over three plain operations, and scores would grow large


def reference_tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The definition, in fp64, row by row.

    query: [rows, heads, dim]. keys, values: [kv_heads, num_keys, dim]. visible: bool [rows, num_keys], at least one True a row.
    sinks: [heads], scores of a key of each head that every row sees and whose value is 0 (gpt-oss, OpenAI 2025).
    Returns float64 [rows, heads, dim].
    """
    num_rows, num_heads, _ = query.shape
    group_len = num_heads // keys.shape[0]
    out = torch.empty(query.shape, dtype=torch.float64)
    for row in range(num_rows):
        for head in range(num_heads):
            head_keys, head_values = keys[head // group_len].double(), values[head // group_len].double()
            scores = head_keys @ query[row, head].double() * scaling
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            scores = scores.masked_fill(~visible[row], -torch.inf)
            if sinks is not None:
                scores = torch.cat((scores, sinks[head : head + 1].double()))
            out[row, head] = torch.softmax(scores, dim=0)[: len(head_keys)] @ head_values
    return out


def tree_attention(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    tail_mask: Tensor | None,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax attention over the runs of one sequence's cache.

    query: [rows, heads, dim]. keys, values: runs [kv_heads, run_len, dim] in logical order, any strides but a dense last axis.
    tail_mask: added to the scores of the last tail_len keys, [rows, tail_len] of the query's dtype (0 visible, -inf hidden); None:
    every row sees every key. Each row must see at least one key. sinks: [heads], as in the reference. Returns [rows, heads, dim] in the
    query's dtype.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys[0].shape[0]
    group_len = num_heads // num_kv_heads
    if num_rows == 1:
        folded = query.view(num_kv_heads, group_len, head_dim)
    else:
        folded = query.view(num_rows, num_kv_heads, group_len, head_dim).permute(1, 2, 0, 3)
        folded = folded.reshape(num_kv_heads, group_len * num_rows, head_dim)
    if num_rows >= WIDE_ROWS and len(keys) == 1 and softcap is None and sinks is None:
        out = _fused(folded, keys[0], values[0], tail_mask, scaling, group_len)
    else:
        out = _plain(folded, keys, values, tail_mask, scaling, softcap, group_len, sinks)
    if num_rows == 1:
        return out.view(1, num_heads, head_dim)
    return out.view(num_kv_heads, group_len, num_rows, head_dim).permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim)


def _plain(
    folded: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    tail_mask: Tensor | None,
    scaling: float,
    softcap: float | None,
    group_len: int,
    sinks: Tensor | None,
) -> Tensor:
    nothing = folded.new_empty(1)  # beta is 0: never read
    products = [torch.baddbmm(nothing, folded, run.transpose(1, 2), beta=0.0, alpha=scaling) for run in keys]
    scores = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if tail_mask is not None:
        num_rows, tail_len = tail_mask.shape
        by_row = scores.view(folded.shape[0], group_len, num_rows, scores.shape[-1])
        by_row[..., scores.shape[-1] - tail_len :].add_(tail_mask)
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        by_row = sinks.to(scores.dtype).view(folded.shape[0], group_len, 1).expand(-1, -1, folded.shape[1] // group_len)
        weights = torch.softmax(torch.cat((scores, by_row.reshape(*scores.shape[:2], 1)), dim=-1), dim=-1)[..., :-1]
    if len(keys) == 1:
        return torch.bmm(weights, values[0])
    out = torch.zeros(folded.shape, dtype=folded.dtype, device=folded.device)
    begin = 0
    for run in values:
        out.baddbmm_(weights[..., begin : begin + run.shape[1]], run)
        begin += run.shape[1]
    return out


def _fused(folded: Tensor, keys: Tensor, values: Tensor, tail_mask: Tensor | None, scaling: float, group_len: int) -> Tensor:
    mask: Tensor | None = None
    if tail_mask is not None:
        num_rows, tail_len = tail_mask.shape
        mask = tail_mask.new_zeros(num_rows, keys.shape[1])
        mask[:, keys.shape[1] - tail_len :] = tail_mask
        mask = mask.repeat(group_len, 1)
    out = torch.nn.functional.scaled_dot_product_attention(
        folded.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, scale=scaling
    )
    return out.squeeze(0)
