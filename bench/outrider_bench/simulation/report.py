"""A simulated grid for people and programs: tables, markdown, and the values of the RESULT line. Must not simulate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from outrider_bench.markdown_table import markdown_table
from outrider_bench.simulation.verdict import CellResult, by_value, worst_cells, worst_of

NUM_WORST = 10
AXES = ("acceptance", "cost_ratio", "delay", "num_sessions", "curve", "shared", "unsure", "hedged")
_CELL_HEADINGS = ("cell", "best fixed", "its tokens/s", "ratio", "emitted/round", "drafts accepted", "overlap", "p99 ms/token")


def policies_table(results: Sequence[CellResult], policies: Sequence[str], floor: float) -> Table:
    """Every policy over all cells."""
    table = Table(title=f"{len(results)} cells: tokens/s over those of the best fixed policy")
    for heading in ("policy", "worst", "mean", f"cells below {floor:g}", "worst cell", "best there"):
        table.add_column(heading)
    for row in policy_rows(results, policies, floor):
        table.add_row(*row)
    return table


def policy_rows(results: Sequence[CellResult], policies: Sequence[str], floor: float) -> list[tuple[str, ...]]:
    """One row a policy."""
    rows: list[tuple[str, ...]] = []
    for policy in policies:
        worst = worst_of(policy, results, floor)
        where = worst.at.cell.describe()
        rows.append((policy, f"{worst.ratio:.3f}", f"{worst.mean_ratio:.3f}", str(worst.below), where, worst.at.best_fixed))
    return rows


def worst_table(results: Sequence[CellResult], policy: str) -> Table:
    """The cells in which a judged policy does worst."""
    table = Table(title=f"worst cells of {policy}")
    for heading in _CELL_HEADINGS:
        table.add_column(heading)
    for row in worst_rows(results, policy):
        table.add_row(*row)
    return table


def worst_rows(results: Sequence[CellResult], policy: str) -> list[tuple[str, ...]]:
    """One row a cell, worst first."""
    rows: list[tuple[str, ...]] = []
    for result in worst_cells(policy, results, NUM_WORST):
        mine, best = result.outcomes[policy], result.outcomes[result.best_fixed]
        rows.append(
            (
                *(result.cell.describe(), result.best_fixed, f"{best.tokens_per_s:.0f}", f"{result.ratio(policy):.3f}"),
                *(f"{mine.mean_emitted_per_round:.2f}", f"{mine.acceptance_rate:.2f}", f"{mine.overlap_share:.0%}"),
                f"{mine.token_ms_p99:.2f}",
            )
        )
    return rows


def axis_rows(results: Sequence[CellResult], policy: str) -> list[tuple[str, ...]]:
    """Worst and mean ratio by value of each axis that has several."""
    rows: list[tuple[str, ...]] = []
    for axis in AXES:
        groups = by_value(results, axis)
        for value, group in groups.items() if len(groups) > 1 else ():
            worst = worst_of(policy, group)
            rows.append((axis.replace("_", " "), str(value), f"{worst.ratio:.3f}", f"{worst.mean_ratio:.3f}", str(worst.below)))
    return rows


def axis_table(results: Sequence[CellResult], policy: str) -> Table:
    """The same for a terminal."""
    table = Table(title=f"{policy} by axis")
    for heading in ("axis", "value", "worst", "mean", "cells below"):
        table.add_column(heading)
    for row in axis_rows(results, policy):
        table.add_row(*row)
    return table


def markdown(facts: Mapping[str, str], results: Sequence[CellResult], policies: Sequence[str], judged: Sequence[str], floor: float) -> str:
    """The whole report, for bench/RESULTS.md."""
    lines = ["## Simulated policies", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    headings = ("policy", "worst", "mean", f"cells below {floor:g}", "worst cell", "best there")
    lines += markdown_table(headings, policy_rows(results, policies, floor))
    for policy in judged:
        lines += ["", f"### {policy}", "", *markdown_table(("axis", "value", "worst", "mean", "cells below"), axis_rows(results, policy))]
        lines += ["", *markdown_table(_CELL_HEADINGS, worst_rows(results, policy))]
    return "\n".join([*lines, ""])


def as_json(results: Sequence[CellResult], policies: Sequence[str], judged: Sequence[str], floor: float) -> dict[str, object]:
    """worst_ratio by policy, with the cell and the fixed policy that was best there."""
    worst = {policy: worst_of(policy, results, floor) for policy in policies}
    return {
        "num_cells": len(results),
        "floor": floor,
        "worst_ratio": {policy: one.as_json() for policy, one in worst.items()},
        "judged": list(judged),
        "below_floor": [policy for policy, one in worst.items() if one.ratio < floor],
    }
