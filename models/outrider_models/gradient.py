"""Loss and gradients of one batch, split over worker threads that share the weights.

Each worker runs its rows single-threaded and the sums meet once a batch, so a busy neighbour on one core delays a
batch a little instead of stalling every small matrix product. Knows tensors; must not know schedules or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from outrider_models.batches import Row
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

    def compute(self, weights: Weights, batch: Sequence[Row]) -> Gradients:
        """Gradients of the mean loss, weighted by each row's `loss_weights`."""
        starts: SimpleQueue[int] = SimpleQueue()  # shared: a worker whose core is busy elsewhere takes fewer
        for begin in range(0, len(batch), self.micro_rows):
            starts.put(begin)
        total = float(sum(row.loss_weights.sum() for row in batch))
        found = list(self.executor.map(lambda _: self._share(weights, batch, starts, total), range(self.num_workers)))
        busy = [(loss, gradients) for loss, gradients in found if gradients]
        sums = busy[0][1]
        for _, gradients in busy[1:]:
            torch._foreach_add_(sums, gradients)
        return Gradients(sum(loss for loss, _ in busy), dict(zip(weights, sums, strict=True)))

    def _share(self, weights: Weights, batch: Sequence[Row], starts: SimpleQueue[int], total: float) -> tuple[float, list[Tensor]]:
        """What one worker took from `starts`: its loss and gradient sums, already divided by the batch's weight."""
        leaves = list(weights.values())
        loss_sum, sums = 0.0, list[Tensor]()
        while True:
            try:
                begin = starts.get_nowait()
            except Empty:
                return loss_sum, sums
            loss = self._loss(weights, batch[begin : begin + self.micro_rows]) / total
            gradients = list(torch.autograd.grad(loss, leaves))
            if sums:
                torch._foreach_add_(sums, gradients)
            else:
                sums = gradients
            loss_sum += float(loss.detach())

    def _loss(self, weights: Weights, rows: Sequence[Row]) -> Tensor:
        device = self.tables[0].device
        inputs, targets, loss_weights = (
            torch.from_numpy(np.concatenate(parts)).to(device)
            for parts in zip(*((row.inputs, row.targets, row.loss_weights) for row in rows), strict=True)
        )
        wanted = loss_weights.nonzero()[:, 0]
        lengths = [length for row in rows for length in row.lengths]
        with self._precision(device):
            logits = forward(weights, self.shape, inputs, lengths, self.tables, wanted)
        losses = functional.cross_entropy(logits.float(), targets[wanted], reduction="none")
        return (losses * loss_weights[wanted]).sum()

    def _precision(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext() if self.autocast is None else torch.autocast(device.type, dtype=self.autocast)
