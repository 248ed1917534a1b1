"""The load-time probe's reference for int8 weights: transformers' own model with every matrix replaced by what its int8 form stands for.

The same rounding as the lean engine's, on transformers' own modules: a channel is rounded by itself, so it does not matter which matrices
are joined there. Must not know the lean forward.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from outrider_kernels.int8_weight import Int8Weight


def round_to_int8(model: PreTrainedModel, *, with_head: bool = False) -> None:
    """Every linear layer but the head, or with it, in place; the embedding stays what it is also where the head was made of it."""
    head = None if with_head else model.get_output_embeddings()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear) and module is not head:
                dequantised = Int8Weight.of(module.weight).dequantised()
                module.weight = nn.Parameter(dequantised.to(module.weight.dtype), requires_grad=False)
