"""The gated unit of an MLP in Triton: silu of the gates times the values, one launch.

The definition is `reference_gate`. Must not know layers. Source: Shazeer 2020.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TILE_LEN = 1024


def gate(gate_up: Tensor) -> Tensor:
    """[rows, 2 mlp], dense, gates and then values, to [rows, mlp]."""
    num_rows, mlp_len = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.is_contiguous()
    out = gate_up.new_empty(num_rows, mlp_len)
    if num_rows:
        _gate_kernel[(num_rows, triton.cdiv(mlp_len, TILE_LEN))](gate_up, out, MLP_LEN=mlp_len, TILE_LEN=TILE_LEN)
    return out


@triton.jit
def _gate_kernel(gate_up: tl.tensor, out: tl.tensor, MLP_LEN: tl.constexpr, TILE_LEN: tl.constexpr) -> None:
    """One row, one tile."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE_LEN + tl.arange(0, TILE_LEN)
    real = column < MLP_LEN
    dtype = out.dtype.element_ty
    gates = tl.load(gate_up + row * 2 * MLP_LEN + column, mask=real, other=0.0).to(tl.float32)
    values = tl.load(gate_up + row * 2 * MLP_LEN + MLP_LEN + column, mask=real, other=0.0).to(tl.float32)
    opened = (gates / (1.0 + tl.exp(-gates))).to(dtype).to(tl.float32)
    tl.store(out + row * MLP_LEN + column, (opened * values).to(dtype), mask=real)
