"""How the lean forward's matrices are laid out: in the model's dtype or as int8, with or without a form for thin products.

One place decides it, so that whoever reads weights says what they are and not where they go. Must not know tensors' names, layers or files.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from outrider.engine.config import WeightFormat
from outrider.engine.int8_projection import Int8Projection
from outrider.engine.lean_projection import Projection
from outrider.engine.panel_projection import PanelProjection
from outrider_kernels.int8_weight import Int8Weight
from outrider_kernels.thin_matrix import PANEL, ThinMatrix

AnyProjection = Projection | Int8Projection | PanelProjection


class ThinRows(Enum):
    """What thin products make of their rows. FLOAT32: nothing. BFLOAT16: they round them, as they do the weights. FLOAT16: they round
    them to float16, which is nearer, and bfloat16 weights stay the numbers they are. FIXED16: they round them to whole numbers by blocks,
    and the weights by columns, which is nearer too. DIGITS: they round them to two digits of a byte each, for weights of guesses."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FIXED16 = "fixed16"
    DIGITS = "digits"


_PACKS = {
    ThinRows.FLOAT32: ThinMatrix.pack,
    ThinRows.BFLOAT16: ThinMatrix.pack_pairs,
    ThinRows.FLOAT16: ThinMatrix.pack_float16,
    ThinRows.FIXED16: ThinMatrix.pack_fixed16,
}
_PART_NUMBERS = 1 << 18  # weights that are packed at a time, so that what lies between their steps stays in a cache
_QUICK_PACKS = {ThinRows.DIGITS: ThinMatrix.pack_quads, ThinRows.FIXED16: ThinMatrix.pack_fixed8}


@dataclass(frozen=True, slots=True)
class PlacedMatrix:
    """A matrix where it will be read. thin: packed for thin products, None without them. norm: the norm in front of it, None when it is
    folded into the matrix, together with the square root of its length."""

    projection: AnyProjection
    thin: ThinMatrix | None
    norm: Tensor | None


@dataclass(frozen=True, slots=True)
class PlacedHead:
    """The same of the head, which is never int8 where answers are not guesses, and has no norm folded into it."""

    projection: Projection | PanelProjection
    thin: ThinMatrix | None


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """weights: what is kept of a matrix; QUICK only where that is not FULL. packed: a second copy for torch's packed products. thin: for
    which thin products, if any; then their form is the only one."""

    weights: WeightFormat
    packed: bool
    thin: ThinRows | None

    def place(self, weight: Tensor, bias: Tensor | None = None, norm: Tensor | None = None) -> PlacedMatrix:
        """weight: [outputs, inputs]. norm: [inputs], of the RMSNorm in front. Raises ValueError where int8 cannot be made of it."""
        if self.weights is WeightFormat.INT8:
            return self._place_int8(weight, bias, norm)
        thin = self._thin(weight)
        if thin is not None:
            return PlacedMatrix(PanelProjection(thin, bias), thin, norm)
        if norm is not None:
            norm, weight = _folded(norm, weight)
        return PlacedMatrix(Projection(weight, bias, self.packed), None, norm)

    def whole(self, weight: Tensor) -> PlacedHead:
        """The head, [num_logits, hidden], in full: of the picks that int8 changed, most were the head's (see docs/architecture.md)."""
        thin = self._thin(weight)
        return PlacedHead(Projection(weight, None, self.packed) if thin is None else PanelProjection(thin, None), thin)

    def _thin(self, weight: Tensor) -> ThinMatrix | None:
        if self.thin is None:
            return None
        rows = max(_PART_NUMBERS // weight.shape[1], PANEL) // PANEL * PANEL
        return ThinMatrix.joined([self._packed(part, self.thin) for part in torch.split(weight, rows)])

    def _packed(self, weight: Tensor, thin: ThinRows) -> ThinMatrix:
        if self.weights is not WeightFormat.QUICK:
            return _PACKS[thin](weight.float().numpy())
        int8 = Int8Weight.of(weight)
        return _QUICK_PACKS[thin](int8.values.numpy(), int8.scale.numpy())

    def _place_int8(self, weight: Tensor, bias: Tensor | None, norm: Tensor | None) -> PlacedMatrix:
        """Nothing is folded: what a norm does to a channel would be in its scale."""
        int8 = Int8Weight.of(weight)
        thin = ThinMatrix.pack_int8(int8.values.numpy(), int8.scale.numpy()) if self.thin is not None else None
        return PlacedMatrix(Int8Projection(int8, bias, thin), thin, norm)


def _folded(norm: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor]:
    """In fp32 a norm's weight goes into the matrix behind it: one operation less. In narrower types that would round twice."""
    if weight.dtype != torch.float32:
        return norm, weight
    return None, weight * (norm * weight.shape[1] ** 0.5)
