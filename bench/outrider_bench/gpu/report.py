"""What a run on a card says: every contestant in every cell beside plain decoding and the simulator; tables, picture, RESULT line.

Must not measure.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from outrider_bench.gpu.bursts import Burst
from outrider_bench.gpu.micro import BurstCosts
from outrider_bench.markdown_table import markdown_table
from outrider_bench.measurement import median_summary
from outrider_bench.micro import steps_text
from outrider_bench.results import GENERATE, MAX_FLIPS_PER_1000, PLAIN, first_difference

_HEADINGS = (
    "T", "requests", "acceptance", "contestant", "tokens/s", "spread", "ms a token", "tokens a round", "right drafts", "x generate",
    "x plain", "simulated tokens/s", "simulated x plain", "error",
)  # fmt: skip
_COST_HEADINGS = (
    "T", "requests", "acceptance", "a round beside its step us", "a further request us", "guesses in a round us", "first tokens ms",
    "a drafted token us", "a message us", "a step by rows, ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuCell:
    """requests: at a time."""

    temperature: float
    num_requests: int
    acceptance: float

    @property
    def name(self) -> str:
        """For reports."""
        return f"T = {self.temperature:g}, {self.num_requests} at a time, acceptance {self.acceptance:g}"

    @property
    def axes(self) -> tuple[str, str, str]:
        """For tables."""
        return f"{self.temperature:g}", str(self.num_requests), f"{self.acceptance:g}"


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A contestant in a cell: medians over bursts. token_ms: a client's, the prompt's reading included. spread: of tokens_per_s, (highest -
    lowest) / median. right_share: of drafts. vs_generate, vs_plain: speed over transformers' and over plain decoding's;
    simulated_vs_plain: both as simulated. simulated_*: None of transformers, which is not simulated."""

    cell: GpuCell
    contestant: str
    tokens_per_s: float
    spread: float
    token_ms: float
    tokens_per_round: float
    right_share: float
    vs_generate: float | None
    vs_plain: float
    simulated_per_s: float | None
    simulated_vs_plain: float | None

    @property
    def error(self) -> float | None:
        """How far the simulator is off, as a share of what was measured; None of what it was not asked."""
        return None if self.simulated_per_s is None else abs(self.simulated_per_s / self.tokens_per_s - 1.0)


@dataclass(frozen=True, slots=True)
class GpuFound:
    """num_flips: answers of ours unlike plain decoding's first ones. num_answers, num_tokens: of all that were compared. engine_log: how
    the target's steps ran, in the engine's words. num_generate_unlike: transformers' answers at T = 0 unlike plain decoding's;
    generate_settings: what was quickest for it."""

    rows: list[GpuRow]
    costs: Mapping[GpuCell, BurstCosts]
    num_flips: int
    num_answers: int
    num_tokens: int
    engine_log: str = ""
    num_generate_unlike: int = 0
    generate_settings: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether answers differ from plain decoding's no more often than `fast` numerics may."""
        return 1000.0 * self.num_flips <= MAX_FLIPS_PER_1000 * self.num_tokens


Bursts = Mapping[tuple[GpuCell, str], Sequence[Burst]]
Speeds = Mapping[tuple[GpuCell, str], float]


def rows_of(bursts: Bursts, simulated: Speeds) -> list[GpuRow]:
    """bursts: of every contestant in every cell, plain decoding among them, and generate unless it was left out.
    simulated: tokens per second of ours."""
    speeds = {key: statistics.median(each.tokens_per_s for each in found) for key, found in bursts.items()}
    return [_row(key, found, speeds, simulated) for key, found in bursts.items()]


def _row(key: tuple[GpuCell, str], found: Sequence[Burst], speeds: Speeds, simulated: Speeds) -> GpuRow:
    (cell, contestant), speed, summary = key, speeds[key], median_summary([each.summary for each in found])
    each_speed = [each.tokens_per_s for each in found]
    return GpuRow(
        cell=cell,
        contestant=contestant,
        tokens_per_s=speed,
        spread=(max(each_speed) - min(each_speed)) / speed,
        token_ms=statistics.median(each.token_ms for each in found),
        tokens_per_round=summary.mean_emitted_per_round,
        right_share=summary.acceptance_rate,
        vs_generate=speed / speeds[cell, GENERATE] if (cell, GENERATE) in speeds else None,
        vs_plain=speed / speeds[cell, PLAIN],
        simulated_per_s=simulated.get(key),
        simulated_vs_plain=simulated[key] / simulated[cell, PLAIN] if key in simulated else None,
    )


def count_flips(bursts: Bursts, truths: Mapping[float, Sequence[Sequence[int]]]) -> tuple[int, int, int]:
    """Answers of ours unlike plain decoding's first ones, answers and tokens in all. truths: by temperature, in the order of prompts."""
    num_flips = num_answers = num_tokens = 0
    for (cell, name), found in bursts.items():
        if name == GENERATE:
            continue
        for each in found:
            for answer, truth in zip(each.answers, truths[cell.temperature], strict=False):  # a small burst asks the first prompts
                num_flips += first_difference(answer.tokens, truth) is not None
                num_answers, num_tokens = num_answers + 1, num_tokens + len(answer.tokens)
    return num_flips, num_answers, num_tokens


def num_generate_unlike(bursts: Bursts, truths: Mapping[float, Sequence[Sequence[int]]]) -> int:
    """transformers' answers at T = 0 unlike plain decoding's; where it draws other noise they say nothing."""
    compared = [(cell, each) for (cell, name), found in bursts.items() if name == GENERATE and cell.temperature == 0.0 for each in found]
    pairs = [pair for cell, each in compared for pair in zip(each.answers, truths[cell.temperature], strict=False)]
    return sum(first_difference(answer.tokens, truth) is not None for answer, truth in pairs)


def show(console: Console, found: GpuFound) -> None:
    """The rows as a table for people."""
    shown = Table(*_HEADINGS, title="the full stack, drafts replayed")
    for row in found.rows:
        shown.add_row(*_cells(row))
    console.print(shown)


def markdown(facts: Mapping[str, str], found: GpuFound) -> str:
    """The whole report."""
    lines = ["## The full stack on a card", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += [*markdown_table(_HEADINGS, map(_cells, found.rows)), "", "### what the simulator was told", ""]
    lines += markdown_table(_COST_HEADINGS, (_cost_cells(cell, costs) for cell, costs in found.costs.items()))
    return "\n".join([*lines, "", f"Answers that differ from plain decoding: {found.num_flips} of {found.num_answers}.", ""])


def result(found: GpuFound, facts: Mapping[str, str]) -> dict[str, object]:
    """The RESULT line's values: of ours their least and largest ratios; the simulator's worst and mean error."""
    errors = [(row.error, row) for row in found.rows if row.error is not None]
    worst_error, worst = max(errors, key=lambda each: each[0])
    return {
        **_extremes(found.rows),
        "sim_max_error": round(worst_error, 3),
        "sim_max_error_at": f"{worst.contestant}, {worst.cell.name}",
        "sim_mean_error": round(statistics.mean(error for error, _ in errors), 3),
        "identical": found.num_flips == 0,
        "num_flips": found.num_flips,
        "num_answers": found.num_answers,
        "num_generate_unlike_plain": found.num_generate_unlike,
        "facts": dict(facts),
        "cells": [dict(zip(_HEADINGS, _cells(row), strict=True)) for row in found.rows],
    }


def _extremes(rows: Sequence[GpuRow]) -> dict[str, float]:
    ratios: dict[str, list[float]] = {}
    for row in rows:
        policy = row.contestant.removeprefix("outrider ")
        if row.contestant != GENERATE and row.vs_generate is not None:
            ratios.setdefault(f"{policy}_vs_generate", []).append(row.vs_generate)
        if row.contestant not in (GENERATE, PLAIN):
            ratios.setdefault(f"{policy}_vs_plain", []).append(row.vs_plain)
    named = {"min": min, "max": max}
    return {f"gpu_{name}_{ratio}": round(choose(found), 3) for ratio, found in ratios.items() for name, choose in named.items()}


def draw(rows: Sequence[GpuRow], path: Path) -> bool:
    """Write the picture: ratios to plain decoding by acceptance, simulated ones dashed; False where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((row.cell.temperature, row.cell.num_requests) for row in rows))
    names = [name for name in dict.fromkeys(row.contestant for row in rows) if name != PLAIN]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(1.5 + 3.2 * len(panels), 3.8), layout="constrained", sharey=True, squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        for number, name in enumerate(names):
            own = sorted(
                (row for row in rows if row.contestant == name and (row.cell.temperature, row.cell.num_requests) == panel),
                key=lambda row: row.cell.acceptance,
            )
            across = [row.cell.acceptance for row in own]
            axis.plot(across, [row.vs_plain for row in own], marker="o", color=f"C{number}", label=name)
            simulated = [row.simulated_vs_plain for row in own if row.simulated_vs_plain is not None]
            if len(simulated) == len(own):
                axis.plot(across, simulated, linestyle="--", color=f"C{number}")
        axis.axhline(1.0, color="grey", linewidth=0.8)
        axis.set_title(f"T = {panel[0]:g}, {panel[1]} at a time", fontsize="medium")
        axis.set_xlabel("acceptance")
    axes[0][0].set_ylabel("x plain (dashed: simulated)")
    axes[0][0].legend(fontsize="small")
    figure.savefig(path)
    pyplot.close(figure)
    return True


def _cells(row: GpuRow) -> tuple[str, ...]:
    drafts = "" if row.contestant in (GENERATE, PLAIN) else f"{row.right_share:.0%}"
    measured = (f"{row.tokens_per_s:.0f}", f"{row.spread:.0%}", f"{row.token_ms:.2f}", f"{row.tokens_per_round:.2f}", drafts)
    ratios = ("" if row.vs_generate is None else f"{row.vs_generate:.2f}", f"{row.vs_plain:.2f}")
    simulated = (
        ("", "", "") if row.simulated_per_s is None else (f"{row.simulated_per_s:.0f}", f"{row.simulated_vs_plain:.2f}", f"{row.error:.1%}")
    )
    return (*row.cell.axes, row.contestant, *measured, *ratios, *simulated)


def _cost_cells(cell: GpuCell, costs: BurstCosts) -> tuple[str, ...]:
    one = costs.one
    beside = (str(one.step_overhead_us), str(costs.session_us), str(costs.guess_us), f"{costs.first_us / 1000:.1f}")
    drafts = ", ".join(f"{num}: {us:.0f}" for num, us in costs.draft.points)
    return (*cell.axes, *beside, drafts, f"{one.round_trip_us / 2:.0f}", steps_text(one.verify))
