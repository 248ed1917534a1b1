"""Who was fast where: every policy of every cell against the best fixed one of that cell.

Knows outcomes by policy name. Must not simulate. A ratio is tokens per second over those of the cell's best fixed policy, so that a fixed
policy reaches at most 1, and an adaptive one is judged by its worst cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_bench.simulation.grid import Cell
from outrider_bench.simulation.outcome import Outcome

FLOOR = 0.97


@dataclass(frozen=True, slots=True)
class CellResult:
    """Outcomes by policy, in the order they were run; fixed: the names of those that are the yardstick."""

    cell: Cell
    outcomes: dict[str, Outcome]
    fixed: tuple[str, ...]

    @property
    def best_fixed(self) -> str:
        """The fastest of the fixed policies."""
        return max(self.fixed, key=lambda name: self.outcomes[name].tokens_per_s)

    def ratio(self, name: str) -> float:
        """A policy's speed over the best fixed one's."""
        return self.outcomes[name].tokens_per_s / self.outcomes[self.best_fixed].tokens_per_s


@dataclass(frozen=True, slots=True)
class Worst:
    """A policy over all cells. below: cells in which its ratio lies under the floor. at: its worst cell."""

    policy: str
    ratio: float
    mean_ratio: float
    below: int
    at: CellResult

    def as_json(self) -> dict[str, object]:
        """For the RESULT line."""
        return {
            "ratio": round(self.ratio, 4),
            "mean": round(self.mean_ratio, 4),
            "below": self.below,
            "cell": self.at.cell.describe(),
            "best": self.at.best_fixed,
        }


def worst_of(policy: str, results: Sequence[CellResult], floor: float = FLOOR) -> Worst:
    """The policy's worst cell."""
    ratios = [result.ratio(policy) for result in results]
    at = min(range(len(results)), key=lambda index: ratios[index])
    return Worst(policy, ratios[at], sum(ratios) / len(ratios), sum(ratio < floor for ratio in ratios), results[at])


def worst_cells(policy: str, results: Sequence[CellResult], count: int) -> list[CellResult]:
    """The cells in which a policy does worst, worst first."""
    return sorted(results, key=lambda result: result.ratio(policy))[:count]


def by_value(results: Sequence[CellResult], axis: str) -> dict[object, list[CellResult]]:
    """Results grouped by the value of one of Cell's fields, in the order they were run."""
    groups: dict[object, list[CellResult]] = {}
    for result in results:
        groups.setdefault(getattr(result.cell, axis), []).append(result)
    return groups
