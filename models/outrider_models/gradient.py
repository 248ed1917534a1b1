"""Loss and gradients of one batch, split over worker threads that share the weights.

Each worker runs its rows single-threaded and the sums meet once a batch, so a busy neighbour on one core delays a
batch a little instead of stalling every small matrix product. Knows tensors; must not know schedules or files.
"""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from outrider_models.batches import Batch
from outrider_models.network import Weights, forward
from outrider_models.shapes import Shape


@dataclass(frozen=True, slots=True)
class Gradients:
    """Mean weighted loss of a batch and its gradients by name."""

    loss: float
    by_name: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class GradientPool:
    """How a batch is split: `num_workers` threads of `executor`, `micro_rows` rows a forward."""

    executor: Executor
    shape: Shape
    tables: tuple[Tensor, Tensor]
    num_workers: int
    micro_rows: int
    autocast: torch.dtype | None

    def compute(self, weights: Weights, batch: Batch) -> Gradients:
        """Gradients of the mean loss, weighted by `batch.loss_weights`."""
        shares = [rows for rows in np.array_split(np.arange(len(batch.inputs)), self.num_workers) if len(rows)]
        total = float(batch.loss_weights.sum())
        found = list(self.executor.map(lambda rows: self._share(weights, batch, rows, total), shares))
        sums = found[0][1]
        for _, gradients in found[1:]:
            torch._foreach_add_(sums, gradients)
        return Gradients(sum(loss for loss, _ in found), dict(zip(weights, sums, strict=True)))

    def _share(
        self, weights: Weights, batch: Batch, rows: np.ndarray, total: float
    ) -> tuple[float, list[Tensor]]:
        """One worker's part: loss and gradient sums over its rows, already divided by the batch's weight."""
        leaves = list(weights.values())
        loss_sum, sums = 0.0, list[Tensor]()
        for begin in range(0, len(rows), self.micro_rows):
            loss = self._loss(weights, batch, rows[begin : begin + self.micro_rows]) / total
            gradients = list(torch.autograd.grad(loss, leaves))
            if sums:
                torch._foreach_add_(sums, gradients)
            else:
                sums = gradients
            loss_sum += float(loss.detach())
        return loss_sum, sums

    def _loss(self, weights: Weights, batch: Batch, rows: np.ndarray) -> Tensor:
        device = self.tables[0].device
        inputs, targets, loss_weights = (
            torch.from_numpy(array[rows]).to(device) for array in (batch.inputs, batch.targets, batch.loss_weights)
        )
        with self._precision(device):
            logits = forward(weights, self.shape, inputs, self.tables)
        losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        return (losses * loss_weights.flatten()).sum()

    def _precision(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext() if self.autocast is None else torch.autocast(device.type, dtype=self.autocast)
