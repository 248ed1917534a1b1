"""One matrix of the lean forward, multiplied in the way that suits the number of rows.

A single row streams the matrix once and any layout does; from two rows on, the general product first rearranges the matrix on every
call, which costs as much as the arithmetic. So `fast` numerics on a CPU keep a second copy that is rearranged once and use it for the
row counts of drafts. `invariant` has one row count and one product. Must not know layers. Source: oneDNN's weight prepacking.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.types.identity import Numerics

# Row counts for which the packed copy was faster (Zen 3, one thread, matrices of a 10 M model: 10 to 20 %); above, both are alike.
MIN_PACKED_ROWS = 2
MAX_PACKED_ROWS = 12
PACKING_ROWS = 8
# A copy of everything is fine for draft-sized and reference models, not for large ones.
MAX_PACKED_BYTES = 1 << 30
NARROW_CAPABILITY = (8, 0)  # of a card: older ones have no products of bfloat16


class Projection:
    """rows [rows, inputs] -> [rows, outputs], with the bias if the model has one."""

    def __init__(self, weight: Tensor, bias: Tensor | None, packed: bool) -> None:
        """weight: [outputs, inputs] as stored. packed: keep a second, packed copy."""
        # [inputs, outputs]: for a few rows a tenth to a quarter faster than the transposed view
        self.matrix = weight.t().contiguous()
        self.bias = bias
        self._packed: Tensor | None = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKING_ROWS) if packed else None

    @property
    def shape(self) -> tuple[int, int]:
        """(inputs, outputs)."""
        num_inputs, num_outputs = self.matrix.shape
        return num_inputs, num_outputs

    def __call__(self, rows: Tensor) -> Tensor:
        """The product and the bias."""
        if self._packed is not None and MIN_PACKED_ROWS <= len(rows) <= MAX_PACKED_ROWS:
            return self._packed_product(rows)
        return torch.mm(rows, self.matrix) if self.bias is None else torch.addmm(self.bias, rows, self.matrix)

    def add_to(self, states: Tensor, rows: Tensor) -> Tensor:
        """states plus the product and the bias; a new tensor."""
        if self._packed is not None and MIN_PACKED_ROWS <= len(rows) <= MAX_PACKED_ROWS:
            return self._packed_product(rows).add_(states)
        total = torch.addmm(states, rows, self.matrix)
        return total if self.bias is None else total.add_(self.bias)

    def _packed_product(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")
        return product


class NarrowHead(Projection):
    """A head in 16 bits on a card: products of such numbers are exact in fp32, in which they are summed, so that half the bytes do.

    rows: of the matrix' dtype. Returns float32.
    """

    def __init__(self, weight: Tensor) -> None:
        """weight: [outputs, inputs] as stored."""
        super().__init__(weight, None, packed=False)

    def __call__(self, rows: Tensor) -> Tensor:
        """The product."""
        return torch.mm(rows, self.matrix, out_dtype=torch.float32)


def can_narrow(dtype: torch.dtype, device: str, numerics: Numerics) -> bool:
    """Whether a head of this dtype may stay in it: torch has that product on CUDA cards alone, whose picks are not `invariant` by it."""
    if dtype not in (torch.bfloat16, torch.float16) or torch.device(device).type != "cuda" or numerics is not Numerics.FAST:
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= NARROW_CAPABILITY


def can_pack(dtype: torch.dtype, device: str, weight_bytes: int) -> bool:
    """Whether packed copies are possible (this torch, this device, fp32) and affordable."""
    has_operator = hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    is_possible = dtype == torch.float32 and device == "cpu" and torch.backends.mkldnn.is_available() and has_operator  # type: ignore[no-untyped-call]
    return is_possible and weight_bytes <= MAX_PACKED_BYTES
