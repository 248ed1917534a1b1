"""What a grid run says: measured and predicted tokens per second of every pair of numbers, as tables and the RESULT line.

Must not measure or predict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from outrider_bench.grid.costs import Costs, Pair
from outrider_bench.markdown_table import markdown_table

HEADINGS = ("drafters x verifiers", "measured tokens/s", "spread", "predicted", "error", "drafted", "drafted, predicted")


@dataclass(frozen=True, slots=True)
class GridRow:
    """A cell. tokens_per_s, spread: the median of its bursts, and (highest - lowest) over it. *_share: of requests in which a guess was
    verified."""

    pair: Pair
    tokens_per_s: float
    spread: float
    drafted_share: float
    predicted_tokens_per_s: float
    predicted_drafted_share: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured; above 0 where it promises too much."""
        return self.predicted_tokens_per_s / self.tokens_per_s - 1.0

    def cells(self) -> tuple[str, ...]:
        """For tables."""
        speeds = f"{self.tokens_per_s:.1f}", f"{self.spread:.0%}", f"{self.predicted_tokens_per_s:.1f}", f"{self.error:+.1%}"
        return self.pair.name, *speeds, f"{self.drafted_share:.0%}", f"{self.predicted_drafted_share:.0%}"

    def as_json(self) -> dict[str, object]:
        """For the RESULT line."""
        return {
            "drafters": self.pair.drafters,
            "verifiers": self.pair.verifiers,
            "tokens_per_s": round(self.tokens_per_s, 1),
            "spread": round(self.spread, 3),
            "predicted_tokens_per_s": round(self.predicted_tokens_per_s, 1),
            "error": round(self.error, 3),
            "drafted_share": round(self.drafted_share, 3),
            "predicted_drafted_share": round(self.predicted_drafted_share, 3),
        }


@dataclass(frozen=True, slots=True)
class GridFound:
    """What was found. num_different: answers unlike plain decoding's. facts: policy, requests, cores."""

    rows: Sequence[GridRow]
    costs: Costs
    num_different: int
    facts: Mapping[str, str]

    @property
    def worst(self) -> GridRow:
        """The cell whose prediction is furthest off."""
        return max(self.rows, key=lambda row: abs(row.error))


def show(console: Console, found: GridFound) -> None:
    """For people."""
    shown = Table(*HEADINGS, title="drafters x verifiers on this machine")
    for row in found.rows:
        shown.add_row(*row.cells())
    console.print(shown)


def markdown(facts: Mapping[str, str], found: GridFound) -> str:
    """The whole report."""
    lines = ["## Drafters x verifiers", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += markdown_table(HEADINGS, (row.cells() for row in found.rows))
    lines += ["", f"Answers that differ from plain decoding: {found.num_different}.", "", "### from micro-benchmarks alone", ""]
    lines += markdown_table(("what", "measured"), found.costs.rows())
    lines += [
        "",
        "predicted: the services' own sessions, pacing and placement on virtual time; nothing is fitted on a cell. Which guesses are",
    ]
    lines += ["right was asked of the draft model place by place. Busy processes share the cores equally, messages and gateway included."]
    lines += ["drafted: requests in which a guess was verified. spread: (highest - lowest) / median of the bursts' tokens/s.", ""]
    return "\n".join(lines)


def result(found: GridFound, facts: Mapping[str, str]) -> dict[str, object]:
    """The RESULT line's values."""
    return {
        "grid_max_error": round(abs(found.worst.error), 3),
        "grid_max_error_at": found.worst.pair.name,
        "identical": found.num_different == 0,
        "num_different": found.num_different,
        "facts": dict(facts),
        "cells": [row.as_json() for row in found.rows],
        "costs": dict(found.costs.rows()),
    }
