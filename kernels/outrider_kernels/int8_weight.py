"""A matrix as int8 with one scale for each output channel: a quarter of float32's bytes, half of bfloat16's.

Symmetric, by the channel's largest magnitude, rounded to nearest, from the weights alone: no calibration text, and nothing is clipped. The
activations that meet it stay what they were. Must not know models or products. Source: the "weight-only" half of Dettmers et al. 2022
(LLM.int8(), section 2.1: absmax, a constant for each column of the weights).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 127  # -128 is left out, so that a weight and its negative have the same error


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """values: int8 [outputs, inputs]. scale: float32 [outputs], of one step of the channel's values; 1 where all of them are zero."""

    values: Tensor
    scale: Tensor

    @staticmethod
    def of(weight: Tensor) -> Int8Weight:
        """The nearest to weight: off by half a scale at most. weight: [outputs, inputs] of any floating-point type. Raises ValueError when
        something in it is no number."""
        wide = weight.float()
        largest = wide.abs().amax(dim=1)
        if not bool(torch.isfinite(largest).all()):
            raise ValueError("a matrix with infinities, or with what is no number, has no int8 form")
        scale = largest / LARGEST
        scale = torch.where(scale > 0, scale, 1.0)
        values = (wide / scale[:, None]).round_().clamp_(-LARGEST, LARGEST)
        return Int8Weight(values.to(torch.int8), scale)

    def dequantised(self) -> Tensor:
        """float32 [outputs, inputs]: the matrix that this one is."""
        return self.values.float() * self.scale[:, None]
