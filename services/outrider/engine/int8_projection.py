"""One matrix of the lean forward that is kept as int8: widened for each product, and gone again after it.

In thin mode it reads the panels that the thin product packed, so that a matrix is in memory once. Definition: a product with
`Int8Weight.dequantised`. Must not know layers. torch's own product for this (_weight_int8pack_mm, which is not public) took 4 to 26 times
as long for 1 to 16 rows on a processor without units for it, and crashes on odd sizes in bfloat16 (torch 2.13): it is not used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_kernels.int8_weight import Int8Weight
from outrider_kernels.thin_matrix import ThinMatrix


class Int8Projection:
    """rows [rows, inputs] -> [rows, outputs] in the rows' dtype, with the bias if the model has one. shape: (inputs, outputs)."""

    def __init__(self, weight: Int8Weight, bias: Tensor | None, thin: ThinMatrix | None = None) -> None:
        """thin: the same matrix, packed; its values are read then, and `weight`'s let go."""
        num_outputs, num_inputs = weight.values.shape
        self.shape = (num_inputs, num_outputs)
        self.bias = bias
        self._scale = weight.scale
        # [blocks, inputs, outputs of a block]
        self._blocks = weight.values.t().contiguous()[None] if thin is None else torch.from_numpy(thin.panels)

    def __call__(self, rows: Tensor) -> Tensor:
        """The product and the bias."""
        product = self._product(rows)
        return (product if self.bias is None else product.add_(self.bias)).to(rows.dtype)

    def add_to(self, states: Tensor, rows: Tensor) -> Tensor:
        """states plus the product and the bias; a new tensor."""
        return self(rows).add_(states)

    @property
    def num_bytes(self) -> int:
        """Of memory, the packed form that is shared included."""
        return self._blocks.nbytes + self._scale.nbytes

    def _product(self, rows: Tensor) -> Tensor:
        """float32 [rows, outputs]. An int8 value is exact in every type, so it is the sum that is scaled; not in float16, where sums of
        unscaled values may leave the range."""
        if rows.dtype == torch.float16:
            return torch.matmul(rows, (self._joined().float() * self._scale).to(rows.dtype)).float()
        return torch.matmul(rows, self._joined().to(rows.dtype)) * self._scale

    def _joined(self) -> Tensor:
        """int8 [inputs, outputs]."""
        if len(self._blocks) == 1:
            return self._blocks[0, :, : self.shape[1]]
        return self._blocks.transpose(0, 1).reshape(self.shape[0], -1)[:, : self.shape[1]]
