"""What a two-machine run says: `adaptive` in each world over the best fixed policy and over plain decoding; tables, picture, RESULT line.

Must not measure.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from outrider_bench import predictions
from outrider_bench.distant_pair import World
from outrider_bench.goals import reconcile_share
from outrider_bench.markdown_table import markdown_table
from outrider_bench.predictions import Prediction
from outrider_bench.report import RECONCILING, as_json, table
from outrider_bench.results import ADAPTIVE, MAX_FLIPS_PER_1000, PLAIN, Row

GOAL = World(5_000, 0.7)
_HEADINGS = (
    "one-way delay",
    "acceptance",
    "adaptive tokens/s",
    "x plain",
    "best fixed",
    "x best fixed",
    "overlap",
    "of the bound",
    "reconciling",
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One world. best_fixed: the fastest of the fixed policies and plain decoding. vs_*: adaptive's speed over theirs."""

    world: World
    tokens_per_s: float
    best_fixed: str
    vs_best_fixed: float
    vs_plain: float
    overlap_share: float
    bound_share: float
    reconcile_share: float


@dataclass(frozen=True, slots=True)
class TwoMachines:
    """What was found. num_flips: answers unlike plain decoding. facts: threads and pace of drafting."""

    rows: list[Row]
    judged: list[Judgement]
    num_flips: int
    predictions: list[Prediction]
    facts: dict[str, str]

    @property
    def is_sound(self) -> bool:
        """Whether answers differ from plain decoding no more often than `fast` numerics may."""
        return 1000.0 * self.num_flips <= MAX_FLIPS_PER_1000 * sum(row.summary.num_tokens for row in self.rows)

    def goal_result(self) -> dict[str, object]:
        """The goal's own world, where it was measured."""
        goal = next((each for each in self.judged if each.world == GOAL), None)
        if goal is None:
            return {}
        at = f"{ADAPTIVE}, {goal.world.delay_us / 1000:g} ms, acceptance {goal.world.acceptance:g}"
        return {
            "two_machine_5ms_a07_vs_best_fixed": round(goal.vs_best_fixed, 3),
            "two_machine_bound_fraction": round(goal.bound_share, 3),
            "two_machine_bound_fraction_at": at,
        }

    def tables(self) -> list[str]:
        """Judgements, every world's contestants, and what was predicted, as markdown."""
        lines = markdown_table(_HEADINGS, map(_cells, self.judged))
        for cell in dict.fromkeys(row.cell for row in self.rows):
            lines += ["", f"### {cell.name}", "", *table([row for row in self.rows if row.cell == cell])]
        return [*lines, "", "### simulated from micro-benchmarks", "", *predictions.tables(self.predictions)]


def judge(world: World, rows: Sequence[Row]) -> Judgement:
    """From all rows of the world's cell."""
    found = {row.contestant: row for row in rows}
    own = found[ADAPTIVE]
    assert own.bound_share is not None
    best = max((row for row in rows if row.contestant != ADAPTIVE), key=lambda row: row.summary.tokens_per_s)
    return Judgement(
        world=world,
        tokens_per_s=own.summary.tokens_per_s,
        best_fixed=best.contestant,
        vs_best_fixed=own.times(best),
        vs_plain=own.times(found[PLAIN]),
        overlap_share=own.summary.overlap_share,
        bound_share=own.bound_share,
        reconcile_share=own.summary.reconcile_share,
    )


def show(console: Console, judged: Sequence[Judgement]) -> None:
    """The judgement as a table for people."""
    shown = Table(*_HEADINGS, title="two machines")
    for each in judged:
        shown.add_row(*_cells(each))
    console.print(shown)


def markdown(facts: Mapping[str, str], found: TwoMachines) -> str:
    """The whole report."""
    lines = ["## Two machines", "", *(f"- {name}: {value}" for name, value in facts.items()), "", *found.tables()]
    lines += ["", f"Answers that differ from plain decoding: {found.num_flips}."]
    lines += [RECONCILING]
    lines += ["The relay between the processes adds tens of microseconds to each delay; gateway and client share the two cores.", ""]
    return "\n".join(lines)


def draw(judged: Sequence[Judgement], path: Path) -> bool:
    """Write the picture: a line for each acceptance, the delay across; False where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharex=True)
    for acceptance in dict.fromkeys(each.world.acceptance for each in judged):
        line = [each for each in judged if each.world.acceptance == acceptance]
        delays_ms = [each.world.delay_us / 1000 for each in line]
        left.plot(delays_ms, [each.vs_plain for each in line], marker="o", label=f"acceptance {acceptance:g}")
        right.plot(delays_ms, [each.vs_best_fixed for each in line], marker="o", label=f"acceptance {acceptance:g}")
    for axes, title in ((left, "adaptive over plain decoding"), (right, "adaptive over the best fixed policy")):
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("one-way delay, ms")
    left.legend(fontsize="small")
    figure.savefig(path)
    pyplot.close(figure)
    return True


def result(found: TwoMachines, facts: Mapping[str, str]) -> dict[str, object]:
    """The RESULT line's values; the goal's own world only where it was measured."""
    judged = found.judged
    return {
        **found.goal_result(),
        "two_machine_min_vs_best_fixed": round(min(each.vs_best_fixed for each in judged), 3),
        "two_machine_min_vs_plain": round(min(each.vs_plain for each in judged), 3),
        **reconcile_share(found.rows),
        **predictions.as_result(found.predictions),
        "identical": found.num_flips == 0,
        "num_flips": found.num_flips,
        "facts": dict(facts),
        "cells": [as_json(row) for row in found.rows],
        "simulated": [each.as_json() for each in found.predictions],
    }


def _cells(each: Judgement) -> tuple[str, ...]:
    return (
        f"{each.world.delay_us / 1000:g} ms",
        f"{each.world.acceptance:g}",
        f"{each.tokens_per_s:.0f}",
        f"{each.vs_plain:.2f}",
        each.best_fixed.removeprefix("outrider "),
        f"{each.vs_best_fixed:.2f}",
        f"{each.overlap_share:.0%}",
        f"{each.bound_share:.0%}",
        f"{each.reconcile_share:.1%}",
    )
