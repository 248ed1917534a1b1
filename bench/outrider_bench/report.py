"""A speed run as markdown, for bench/RESULTS.md, and as the values of the RESULT line. Must not measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from outrider_bench.markdown_table import markdown_table
from outrider_bench.results import GENERATE, PLAIN, Flip, Row


def markdown(
    title: str,
    facts: Mapping[str, str],
    settings: Mapping[str, str],
    rows: Sequence[Row],
    flips: Sequence[Flip],
    notes: Sequence[str],
    sections: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """The whole report. sections: further tables by heading, behind the cells."""
    lines = [f"## {title}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "Settings (chosen on other prompts than these):", ""]
    lines += [f"- {name}: {value}" for name, value in settings.items()]
    for cell in dict.fromkeys(row.cell for row in rows):
        lines += ["", f"### {cell.name}", "", *table([row for row in rows if row.cell == cell])]
    for heading, content in sections.items():
        lines += ["", f"### {heading}", "", *content]
    lines += ["", f"Answers of ours that differ from plain decoding: {len(flips)}."]
    lines += [
        f"- {flip.cell}, {flip.contestant}, prompt {flip.prompt}: token {flip.position} is {flip.drafted_token}, plain {flip.plain_token}"
        for flip in flips
    ]
    return "\n".join([*lines, "", *notes, ""])


RECONCILING = "reconciling: aligning tails and re-rooting trees at the verifier, of the time from the first token to the last."
SPEED_HEADINGS = ("contestant", "tokens/s", "spread", "x generate", "x plain", "first token ms")
HEADINGS = (
    *SPEED_HEADINGS,
    "acceptance",
    "tokens/round",
    "in target forwards",
    "of the bound",
    "overlap",
    "reconciling",
)


def table(rows: Sequence[Row]) -> list[str]:
    """One cell's contestants as a markdown table."""
    return markdown_table(HEADINGS, (cells(row, rows) for row in rows))


def cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """A row's texts; what does not apply is empty."""
    summary = row.summary
    drafted = summary.drafted_per_round > 0
    ours = summary.verify_share > 0
    return [
        *speed_cells(row, rows),
        f"{summary.acceptance_rate:.3f}" if drafted else "",
        f"{summary.mean_emitted_per_round:.2f}" if drafted else "",
        f"{summary.verify_share:.0%}" if ours else "",
        "" if row.bound_share is None else f"{row.bound_share:.0%}",
        f"{summary.overlap_share:.0%}" if drafted else "",
        f"{summary.reconcile_share:.1%}" if drafted and ours else "",
    ]


def speed_cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """The texts under SPEED_HEADINGS, which every table of contestants begins with. rows: those of the same cell."""
    summary = row.summary
    return [
        row.contestant,
        f"{summary.tokens_per_s:.0f}",
        f"{row.spread:.0%}",
        _ratio(row, rows, GENERATE),
        _ratio(row, rows, PLAIN),
        f"{summary.first_token_ms:.1f}",
    ]


def as_json(row: Row) -> dict[str, object]:
    """A row of the RESULT line's cells."""
    summary = row.summary
    return {
        "task": row.cell.task,
        "temperature": row.cell.temperature,
        "contestant": row.contestant,
        "tokens_per_s": round(summary.tokens_per_s, 1),
        "spread": round(row.spread, 3),
        "first_token_ms": round(summary.first_token_ms, 2),
        "acceptance_rate": round(summary.acceptance_rate, 4),
        "mean_emitted_per_round": round(summary.mean_emitted_per_round, 3),
        "target_forward_share": round(summary.verify_share, 3),
        "bound_share": None if row.bound_share is None else round(row.bound_share, 3),
        "overlap_share": round(summary.overlap_share, 3),
        "reconcile_share": round(summary.reconcile_share, 4),
        "session_share": round(summary.session_share, 4),
        "plan_share": round(summary.plan_share, 4),
        "num_tokens": summary.num_tokens,
    }


def _ratio(row: Row, rows: Sequence[Row], other: str) -> str:
    """Speed over another contestant of the same cell; empty where that one did not run."""
    others = {each.contestant: each for each in rows}
    return f"{row.times(others[other]):.2f}" if other in others else ""
