"""Muon for the hidden matrices, AdamW for embedding, head and norms.

Muon (Jordan et al. 2024): the momentum of each matrix is replaced by its nearest semi-orthogonal matrix, found with
a few quintic Newton-Schulz iterations. Knows tensors by name; must not know models, data or schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)  # drives every singular value towards 1, fast rather than exactly
_BETAS, _EPS = (0.9, 0.95), 1e-8


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates and decay; a schedule scales all of them alike."""

    matrix: float = 0.02
    embedding: float = 0.006
    head: float = 0.003
    norm: float = 0.003
    momentum: float = 0.95
    weight_decay: float = 0.02  # of the matrices, a step, times the matrix rate
    iterations: int = 3  # of Newton-Schulz


@dataclass(slots=True)
class Optimizer:
    """State and update rule for one set of weights, updated in place."""

    weights: dict[str, Tensor]
    rates: Rates
    num_steps: int = 0
    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            self.first.setdefault(name, torch.zeros_like(weight))
            if not is_hidden_matrix(name, weight):
                self.second.setdefault(name, torch.zeros_like(weight))

    @torch.no_grad()
    def step(self, gradients: dict[str, Tensor], scale: float, executor: Executor) -> None:
        """One update with every rate multiplied by `scale`; the work is spread over `executor`."""
        self.num_steps += 1

        def update(name: str) -> None:
            rule = self._orthogonal if is_hidden_matrix(name, self.weights[name]) else self._adaptive
            with torch.no_grad():
                rule(name, gradients[name], scale)

        _run_all(update, self.weights, executor)

    def _orthogonal(self, name: str, gradient: Tensor, scale: float) -> None:
        weight, momentum, rates = self.weights[name], self.first[name], self.rates
        momentum.lerp_(gradient, 1 - rates.momentum)
        direction = orthogonalize(gradient.lerp(momentum, rates.momentum), rates.iterations)
        rate = rates.matrix * scale
        weight.mul_(1 - rate * rates.weight_decay)
        weight.add_(direction, alpha=-rate * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5)

    def _adaptive(self, name: str, gradient: Tensor, scale: float) -> None:
        weight, first, second = self.weights[name], self.first[name], self.second[name]
        first.lerp_(gradient, 1 - _BETAS[0])
        second.lerp_(gradient.square(), 1 - _BETAS[1])
        rate = _adaptive_rate(name, self.rates) * scale / (1 - _BETAS[0] ** self.num_steps)
        spread = (second / (1 - _BETAS[1] ** self.num_steps)).sqrt_().add_(_EPS)
        weight.addcdiv_(first, spread, value=-rate)


def orthogonalize(matrix: Tensor, iterations: int) -> Tensor:
    """Nearest semi-orthogonal matrix, roughly."""
    linear, cubic, quintic = _QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.mT if tall else matrix
    found = found / (found.norm() + 1e-7)
    for _ in range(iterations):
        gram = found @ found.mT
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic), found, beta=linear)
    return found.mT if tall else found


def is_hidden_matrix(name: str, weight: Tensor) -> bool:
    """Whether Muon updates it: a matrix that is neither embedding nor head."""
    return weight.ndim == 2 and ".layers." in name


def _adaptive_rate(name: str, rates: Rates) -> float:
    if "norm" in name:
        return rates.norm
    return rates.head if name.startswith("lm_head") else rates.embedding


def _run_all(update: Callable[[str], None], names: Iterable[str], executor: Executor) -> None:
    for _ in executor.map(update, names):
        pass  # the results are None; iterating raises what an update raised
