"""A sum into the residual stream and the RMSNorm behind it in Triton, one launch and one read of the row.

The definition is `reference_add_norm`. Must not know layers. Source: Zhang & Sennrich 2019.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_WARPS, WARP_NUMBERS = 16, 256  # a warp for so many numbers of a row


def add_norm(states: Tensor, added: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """states [rows, hidden] += added, in place, both dense; returns its RMSNorm [rows, hidden]. weight: [hidden]."""
    num_rows, hidden_len = states.shape
    assert states.is_contiguous()
    assert added is None or added.is_contiguous()
    out = torch.empty_like(states)
    if num_rows:
        tile_len = triton.next_power_of_2(hidden_len)
        num_warps = max(1, min(MOST_WARPS, tile_len // WARP_NUMBERS))
        _add_norm_kernel[(num_rows,)](
            states, states if added is None else added, weight, out, epsilon,
            HIDDEN_LEN=hidden_len, TILE_LEN=tile_len, HAS_ADDED=added is not None, num_warps=num_warps,
        )  # fmt: skip
    return out


@triton.jit
def _add_norm_kernel(
    states: tl.tensor, added: tl.tensor, weight: tl.tensor, out: tl.tensor, epsilon: tl.tensor,
    HIDDEN_LEN: tl.constexpr, TILE_LEN: tl.constexpr, HAS_ADDED: tl.constexpr,
) -> None:  # fmt: skip
    """One row."""
    begin = tl.program_id(0).to(tl.int64) * HIDDEN_LEN
    column = tl.arange(0, TILE_LEN)
    real = column < HIDDEN_LEN
    dtype = states.dtype.element_ty
    factor = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    row = tl.load(states + begin + column, mask=real, other=0.0).to(tl.float32)
    if HAS_ADDED:
        rounded = (row + tl.load(added + begin + column, mask=real, other=0.0).to(tl.float32)).to(dtype)
        tl.store(states + begin + column, rounded, mask=real)
        row = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row, axis=0) / HIDDEN_LEN + epsilon)
    tl.store(out + begin + column, (row * scale * factor).to(dtype), mask=real)
