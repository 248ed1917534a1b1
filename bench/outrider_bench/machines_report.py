"""What a three-machine run says: each policy's speed over plain decoding by distance, as tables, a picture and the RESULT line.

Must not measure.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from outrider_bench.markdown_table import markdown_table
from outrider_bench.report import RECONCILING, as_json, table
from outrider_bench.results import ADAPTIVE, MAX_FLIPS_PER_1000, PLAIN, Cell, Flip, Row

TEMPERATURE = 0.0
EVERY_TASK = "all tasks"


@dataclass(frozen=True, slots=True)
class Spot:
    """A distance and a task; EVERY_TASK: the tokens of all tasks over the time of all."""

    delay_us: int
    task: str

    @property
    def cell(self) -> Cell:
        """As a cell of the tables."""
        return Cell(f"{self.delay}, {self.task}", TEMPERATURE)

    @property
    def delay(self) -> str:
        """For people."""
        return f"{self.delay_us / 1000:g} ms"


@dataclass(frozen=True, slots=True)
class ThreeMachines:
    """What was found. rows: of every spot and contestant. flips: answers unlike plain decoding's. facts: threads."""

    spots: Sequence[Spot]
    rows: Sequence[Row]
    flips: Sequence[Flip]
    facts: Mapping[str, str]

    @property
    def contestants(self) -> list[str]:
        """All but plain decoding, in the order of the rows."""
        return [name for name in dict.fromkeys(row.contestant for row in self.rows) if name != PLAIN]

    @property
    def tasks(self) -> list[str]:
        """In the order of the spots, all tasks together among them."""
        return list(dict.fromkeys(spot.task for spot in self.spots))

    @property
    def is_sound(self) -> bool:
        """Whether answers differ from plain decoding no more often than `fast` numerics may."""
        num_tokens = sum(self.row(spot, name).summary.num_tokens for spot in self.single_spots for name in (PLAIN, *self.contestants))
        return 1000.0 * len(self.flips) <= MAX_FLIPS_PER_1000 * num_tokens

    @property
    def single_spots(self) -> list[Spot]:
        """Those of one task."""
        return [spot for spot in self.spots if spot.task != EVERY_TASK]

    def row(self, spot: Spot, contestant: str) -> Row:
        """The one row of both."""
        return next(row for row in self.rows if (row.cell, row.contestant) == (spot.cell, contestant))

    def vs_plain(self, spot: Spot, contestant: str) -> float:
        """Speed over plain decoding's."""
        return self.row(spot, contestant).times(self.row(spot, PLAIN))

    def worst(self, spots: Sequence[Spot], contestant: str) -> tuple[float, Spot]:
        """The least speed over plain decoding, and where."""
        return min(((self.vs_plain(spot, contestant), spot) for spot in spots), key=lambda each: each[0])


def headings(found: ThreeMachines) -> tuple[str, ...]:
    """Of the table of ratios."""
    return ("one-way delay", "task", "plain tokens/s", "spread", *(text for name in found.contestants for text in (_short(name), "spread")))


def cells(found: ThreeMachines, spot: Spot) -> tuple[str, ...]:
    """A row of it: speeds over plain decoding's, and of each the spread of its tokens/s."""
    plain = found.row(spot, PLAIN)
    ratios = [text for name in found.contestants for text in (f"{found.vs_plain(spot, name):.2f}", f"{found.row(spot, name).spread:.0%}")]
    return spot.delay, spot.task, f"{plain.summary.tokens_per_s:.0f}", f"{plain.spread:.0%}", *ratios


def show(console: Console, found: ThreeMachines) -> None:
    """For people."""
    shown = Table(*headings(found), title="three machines: x plain decoding")
    for spot in found.spots:
        shown.add_row(*cells(found, spot))
    console.print(shown)


def markdown(facts: Mapping[str, str], found: ThreeMachines) -> str:
    """The whole report."""
    lines = ["## Three machines", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += markdown_table(headings(found), (cells(found, spot) for spot in found.spots))
    for spot in found.spots:
        lines += ["", f"### {spot.cell.name}", "", *table([row for row in found.rows if row.cell == spot.cell])]
    lines += ["", f"Answers that differ from plain decoding: {len(found.flips)}."]
    lines += [f"- {flip.cell}, {flip.contestant}, prompt {flip.prompt}: token {flip.position}" for flip in found.flips]
    lines += ["", "Columns of policies: tokens/s over plain decoding's. spread: (highest - lowest) / median of the repetitions' tokens/s."]
    lines += [RECONCILING]
    lines += ["Guesses are the draft model's alone: none from the text itself, and prompts are read anew for every answer."]
    lines += ["Gateway, client and relay share the two cores with verifier and drafter, which are pinned to one each.", ""]
    return "\n".join(lines)


def draw(found: ThreeMachines, path: Path) -> bool:
    """Write the picture: a panel for each task, a line for each policy, the delay across; False where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        1, len(found.tasks), figsize=(3.4 * len(found.tasks), 3.6), layout="constrained", sharex=True, sharey=True, squeeze=False
    )
    for axes, task in zip(grid.flat, found.tasks, strict=True):
        line = [spot for spot in found.spots if spot.task == task]
        delays_ms = [spot.delay_us / 1000 for spot in line]
        for name in found.contestants:
            axes.plot(delays_ms, [found.vs_plain(spot, name) for spot in line], marker="o", label=_short(name))
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_title(task, fontsize="medium")
        axes.set_xlabel("one-way delay, ms")
    grid.flat[0].set_ylabel("tokens/s over plain decoding's")
    grid.flat[0].legend(fontsize="small")
    figure.savefig(path)
    pyplot.close(figure)
    return True


def result(found: ThreeMachines, facts: Mapping[str, str]) -> dict[str, object]:
    """The RESULT line's values. adaptive_min_vs_plain: over every distance and task by itself."""
    least, at = found.worst(found.single_spots, ADAPTIVE)
    pooled = [spot for spot in found.spots if spot.task == EVERY_TASK]
    by_delay = {
        _short(name): {f"{spot.delay_us / 1000:g}": round(found.vs_plain(spot, name), 3) for spot in pooled} for name in found.contestants
    }
    return {
        "adaptive_min_vs_plain": round(least, 3),
        "adaptive_min_at": at.cell.name,
        "adaptive_min_vs_plain_all_tasks": round(found.worst(pooled, ADAPTIVE)[0], 3),
        "vs_plain_by_delay_ms": by_delay,
        "identical": not found.flips,
        "num_flips": len(found.flips),
        "facts": dict(facts),
        "cells": [as_json(row) for row in found.rows],
    }


def _short(contestant: str) -> str:
    return contestant.removeprefix("outrider ")
