"""A peers run as tables and as markdown, with what each contestant costs beside its speed. Must not measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider_bench.markdown_table import markdown_table
from outrider_bench.report import SPEED_HEADINGS, as_json, speed_cells
from outrider_bench.results import Row

HEADINGS = (
    *SPEED_HEADINGS,
    "tokens/round",
    "cores",
    "tokens/s per core",
    "CPU ms/token",
    "unlike plain",
)
NOTES = (
    "spread: (highest - lowest) / median of the repetitions' tokens/s. tokens/round: per forward of the target, where that is counted.",
    "cores: set aside for the contestant, busy or not: its threads; of ours the verifier's and, if it drafts, the drafter's, at most all.",
    "tokens/s per core: tokens/s over cores. CPU ms/token: processor time of all its processes while it answered, over its tokens.",
    "unlike plain: prompts whose answer is not that of our plain decoding. At T > 0 only ours are compared.",
    "No contestant keeps a prompt's cache from one answer to the next. OpenVINO's first token is timed by itself, the others' by who asks.",
)


@dataclass(frozen=True, slots=True)
class BilledRow:
    """A row with its bill. num_unlike: prompts answered otherwise than by our plain decoding, None where that says nothing."""

    row: Row
    num_cores: int
    num_unlike: int | None
    num_prompts: int

    @property
    def tokens_per_s_per_core(self) -> float:
        """Speed over the cores set aside for it."""
        return self.row.summary.tokens_per_s / self.num_cores


def cells(billed: BilledRow, rows: Sequence[Row]) -> list[str]:
    """A row's texts; what does not apply is empty. rows: those of the same cell."""
    row, summary = billed.row, billed.row.summary
    drafts = summary.mean_emitted_per_round != 1.0
    return [
        *speed_cells(row, rows),
        f"{summary.mean_emitted_per_round:.2f}" if drafts else "",
        str(billed.num_cores),
        f"{billed.tokens_per_s_per_core:.0f}",
        f"{summary.cpu_ms_per_token:.1f}",
        "" if billed.num_unlike is None else f"{billed.num_unlike} of {billed.num_prompts}",
    ]


def tables(rows: Sequence[BilledRow]) -> dict[str, list[list[str]]]:
    """Texts of every cell's rows, by the cell's name."""
    names = dict.fromkeys(billed.row.cell.name for billed in rows)
    grouped = {name: [billed for billed in rows if billed.row.cell.name == name] for name in names}
    return {name: [cells(billed, [each.row for each in group]) for billed in group] for name, group in grouped.items()}


def markdown(
    facts: Mapping[str, str], settings: Mapping[str, str], rows: Sequence[BilledRow], judged: Sequence[str], plot: str | None
) -> str:
    """The whole report. judged: lines about answers unlike plain decoding and about samples. plot: a picture beside it."""
    lines = ["## Peers", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "Settings (the fastest of their candidates, on other prompts than these):", ""]
    lines += [f"- {name}: {value}" for name, value in settings.items()]
    for name, texts in tables(rows).items():
        lines += ["", f"### {name}", "", *markdown_table(HEADINGS, texts)]
    lines += ["", "Answers unlike plain decoding, and how each samples:", "", *(f"- {line}" for line in judged)]
    lines += [] if plot is None else ["", f"![tokens per second by cell and contestant]({plot})"]
    return "\n".join([*lines, "", *NOTES, ""])


def billed_json(billed: BilledRow) -> dict[str, object]:
    """A row of the RESULT line's cells."""
    return as_json(billed.row) | {
        "cores": billed.num_cores,
        "tokens_per_s_per_core": round(billed.tokens_per_s_per_core, 1),
        "cpu_ms_per_token": round(billed.row.summary.cpu_ms_per_token, 3),
        "unlike_plain": billed.num_unlike,
    }
