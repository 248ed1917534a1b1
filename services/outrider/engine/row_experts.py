"""Experts of a mixture in one order of sums, whoever else is in the batch: for `invariant` numerics.

Transformers gathers the rows that chose an expert, so that the shape of its products, and with it a row's bits, depend on what other rows
chose. Here each expert that somebody chose computes every row of the batch, which has one size, and is added in the order of the experts
to those that chose it: what an expert costs is multiplied by the share of rows that did not ask for it. Must not know families: an expert
is computed by the model's own code. Source: transformers' interface for experts (integrations/moe.py).
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from outrider.errors import ModelRefused

_NAME = "outrider_rows"


def row_experts(experts: nn.Module, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """hidden: [rows, dim]; chosen: [rows, k], experts' numbers, different ones in a row; weights: [rows, k]. Returns [rows, dim]."""
    own = inspect.unwrap(type(experts).forward)
    everybody = weights.new_ones(len(hidden), 1)
    total = torch.zeros_like(hidden)
    for expert in torch.unique(chosen).tolist():
        computed = own(experts, hidden, torch.full_like(chosen[:, :1], expert), everybody)
        is_chosen = chosen == expert
        rows = is_chosen.any(dim=-1)
        weight = torch.where(is_chosen, weights, 0.0).sum(dim=-1, keepdim=True)
        total[rows] += (computed[rows] * weight[rows]).to(total.dtype)
    return total


ALL_EXPERTS_FUNCTIONS.register(_NAME, row_experts)


def compute_by_rows(model: PreTrainedModel) -> None:
    """Have the experts of a mixture, if it is one, computed so. Raises ModelRefused for experts that go no other way than their own."""
    model.set_experts_implementation(_NAME)
    parts = list(model.named_modules())
    is_mixture = any("expert" in name or "moe" in name for name, _ in parts)
    if is_mixture and not any(hasattr(part, "_apply_gate") for _, part in parts):
        family = model.config.model_type
        raise ModelRefused(
            f"the sums of {family!r}, a mixture of experts, depend on who else is in a batch: no numerics=invariant; use fast"
        )
