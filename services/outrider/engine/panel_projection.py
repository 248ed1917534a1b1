"""One matrix of the lean forward that thin products have packed, seen from torch: unpacked for each product, and gone again after it.

Where thin operations take every row, torch's own forward is asked by nobody but the tests, and so keeps no second copy of the weights.
Must not know layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_kernels.thin_matrix import ThinMatrix


class PanelProjection:
    """float32 rows [rows, inputs] -> [rows, outputs], with the bias if the model has one. shape: (inputs, outputs)."""

    def __init__(self, thin: ThinMatrix, bias: Tensor | None) -> None:
        self.shape = (thin.num_inputs, thin.num_outputs)
        self.bias = bias
        self._thin = thin

    def __call__(self, rows: Tensor) -> Tensor:
        """The product and the bias. What thin products round is not rounded here."""
        product = torch.mm(rows, torch.from_numpy(self._thin.unpacked()))
        return product if self.bias is None else product.add_(self.bias)

    def add_to(self, states: Tensor, rows: Tensor) -> Tensor:
        """states plus the product and the bias; a new tensor."""
        return self(rows).add_(states)
