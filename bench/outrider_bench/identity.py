"""The identity run (`outrider bench identity`): is every answer, with any pacing and any drafts, exactly the plain one?

For fp32 and bf16 a deployment in `invariant` numerics answers every request plainly and under one of the kinds of drafts, in turn; not
one token may differ. A deployment in `fast` numerics shows its flips and what `invariant` costs. An independent oracle judges the answers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from outrider.cli.connection import Connection
from outrider.cli.console import make_console
from outrider.cli.deployment_options import model_path
from outrider.cli.starting import start
from outrider.errors import InvalidRequest
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.threads import plan_threads, usable_cores
from outrider_bench.contestants import DRAFTLESS, DraftWishes
from outrider_bench.facts import measurement_facts
from outrider_bench.identity_cases import Case, make_cases
from outrider_bench.identity_check import CONCURRENCY, PLAIN_WISHES, Batch, Difference, ask_all, differences
from outrider_bench.oracle import NEAR_TIE_GAP, Disagreement, Oracle

FULL_CASES = 200
QUICK_CASES = 30
MAX_TOKENS = 64
SHAPES = ({"max_len": 4}, {"max_len": 16, "stop_below": 0.3}, {"max_len": 6, "tree_width": 3})
LISTED = 20
DRAFT_LEN = 6  # fixed: a length that follows the clock may settle on drafting nothing, and a cell without drafts proves nothing


@dataclass(slots=True)
class NumericsReport:
    """One deployment's batches, what differed from its own plain answers, and what the oracle says of those."""

    dtype: str
    numerics: str
    plain: Batch
    cells: list[tuple[Batch, list[Difference]]] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)

    @property
    def num_differences(self) -> int:
        """Answers that are not the plain ones, over all cells."""
        return sum(len(found) for _, found in self.cells)

    @property
    def idle_cells(self) -> list[str]:
        """Cells that prove nothing: nothing accepted, or nothing rejected."""
        return [batch.wishes.text for batch, _ in self.cells if not (batch.num_accepted and batch.num_rejected)]

    @property
    def num_beyond_ties(self) -> int:
        """Disagreements with the oracle that no near tie explains."""
        return sum(not disagreement.near_tie for disagreement in self.disagreements)

    @property
    def flips_per_1000(self) -> float:
        """Disagreements with the oracle per 1,000 plain tokens."""
        return 1000 * len(self.disagreements) / self.plain.num_tokens

    @property
    def drafted_tokens_per_s(self) -> float:
        """All drafted cells together, CONCURRENCY requests at a time."""
        return sum(batch.num_tokens for batch, _ in self.cells) / sum(batch.total_s for batch, _ in self.cells)


def run(args: argparse.Namespace) -> int:
    """1 when an answer in `invariant` differs from plain decoding, when a cell proves nothing, or when the fp32 oracle disagrees."""
    if "invariant" not in args.numerics:
        raise InvalidRequest("numerics", "identity is promised in invariant numerics: name them too")
    num_cases = args.prompts or (QUICK_CASES if args.quick else FULL_CASES)
    max_tokens = args.max_tokens or MAX_TOKENS
    console = make_console()
    reports = []
    for dtype in args.dtypes:
        oracle = Oracle(model_path(args.target), dtype)
        for numerics in args.numerics:
            report = check_numerics(args.target, args.draft, dtype, numerics, num_cases, max_tokens, oracle)
            reports.append(report)
            show(report, console)
    result = verdict(reports) | {"num_requests": num_cases, "tokens_each": max_tokens, "concurrency": CONCURRENCY}
    console.print(summary_table(reports))
    if args.out is not None:
        args.out.write_text(markdown(reports, num_cases, max_tokens))
    failures = why_failed(reports)
    for failure in failures:
        console.print(failure, markup=False)
    print("RESULT " + json.dumps(result))
    return 1 if failures else 0


def check_numerics(target: str, draft: str, dtype: str, numerics: str, num_cases: int, max_tokens: int, oracle: Oracle) -> NumericsReport:
    """Every cell of one deployment."""
    threads = plan_threads(len(usable_cores()), "serial")
    fixed = ("--draft-len", str(DRAFT_LEN))
    models = model_path(target), model_path(draft)
    spec = DeploymentSpec(*models, "serial", threads, dtype=dtype, draft_weights="auto", numerics=numerics, verifier_extra=fixed)
    progress = make_console(stderr=True)
    with start(spec, progress) as deployment, Connection(deployment.gateway) as gateway, Connection(deployment.verifier) as verifier:
        cells = draft_cells(list(verifier.verifier_info().pacings))
        cases = make_cases(gateway, num_cases, max_tokens, len(cells))
        ask_all(gateway, cases[:CONCURRENCY], PLAIN_WISHES)  # warm
        report = NumericsReport(dtype, numerics, ask_all(gateway, cases, PLAIN_WISHES))
        for index, wishes in enumerate(cells):
            chosen = cases[index :: len(cells)]
            with progress.status(f"{dtype} {numerics}: {wishes.text} ..."):
                batch = ask_all(gateway, chosen, wishes)
            report.cells.append((batch, differences(chosen, report.plain.every(index, len(cells)), batch)))
    report.disagreements = judge(oracle, cases, report.plain)
    return report


def draft_cells(pacings: Sequence[str]) -> list[DraftWishes]:
    """Every drafting policy with chains, confidence-stopped chains and trees; guesses from the text itself are always chains."""
    guessing = [pacing for pacing in pacings if pacing != "plain"]
    return [DraftWishes(pacing, **shape) for pacing in guessing for shape in (SHAPES[:1] if pacing in DRAFTLESS else SHAPES)]


def judge(oracle: Oracle, cases: Sequence[Case], batch: Batch) -> list[Disagreement]:
    """The oracle's opinion of every answer."""
    found: list[Disagreement] = []
    for case, answer in zip(cases, batch.answers, strict=True):
        found += oracle.judge(case.prompt.token_ids, answer, case.sampling, case.address)
    return found


def verdict(reports: Sequence[NumericsReport]) -> dict[str, object]:
    """The RESULT line."""
    by_name = {f"{report.numerics}_{report.dtype}": report for report in reports}
    invariant = [report for report in reports if report.numerics == "invariant"]
    result: dict[str, object] = {
        "identical": not any(report.num_differences for report in invariant),
        "cells_prove_something": not any(report.idle_cells for report in reports),
        "oracle_beyond_ties_fp32": sum(report.num_beyond_ties for report in invariant if report.dtype == "float32"),
        "oracle_near_ties_fp32": sum(
            len(report.disagreements) - report.num_beyond_ties for report in invariant if report.dtype == "float32"
        ),
        "near_tie_gap": NEAR_TIE_GAP,
    }
    for name, report in by_name.items():
        result[f"{name}_oracle_flips_per_1000"] = round(report.flips_per_1000, 3)
        result[f"{name}_answers_unlike_plain"] = report.num_differences
        result[f"{name}_plain_tokens_per_s"] = round(report.plain.num_tokens / report.plain.total_s, 1)
        result[f"{name}_drafted_tokens_per_s"] = round(report.drafted_tokens_per_s, 1)
    return result


def why_failed(reports: Sequence[NumericsReport]) -> list[str]:
    """A sentence for each thing that makes a run fail."""
    found = []
    for report in reports:
        name = f"{report.dtype} {report.numerics}"
        if report.numerics == "invariant" and report.num_differences:
            found.append(f"{name}: {report.num_differences} answers are not those of plain decoding")
        if report.numerics == "invariant" and report.dtype == "float32" and report.num_beyond_ties:
            found.append(f"{name}: the oracle disagrees with {report.num_beyond_ties} tokens that no near tie explains")
        if report.idle_cells:
            few = "no guess was accepted, or none rejected, which proves nothing; ask for more --prompts"
            found.append(f"{name}, {', '.join(report.idle_cells)}: {few}")
    return found


def show(report: NumericsReport, console: Console) -> None:
    """One deployment's cells, then what differed."""
    table = Table("drafts", "answers unlike plain", "accepted", "rejected", "tokens/s", title=f"{report.dtype}, {report.numerics}")
    for batch, found in report.cells:
        speed = f"{batch.num_tokens / batch.total_s:.0f}"
        table.add_row(batch.wishes.text, str(len(found)), str(batch.num_accepted), str(batch.num_rejected), speed)
    console.print(table)
    for batch, found in report.cells:
        for difference in found[:LISTED]:
            console.print(f"{batch.wishes.text}: {difference.describe()}", markup=False)
    for disagreement in report.disagreements[:LISTED]:
        console.print(f"oracle: {disagreement}", markup=False)


def summary_table(reports: Sequence[NumericsReport]) -> Table:
    """All deployments."""
    table = Table(
        "dtype", "numerics", "answers unlike plain", "oracle flips per 1,000", "beyond near ties", "plain tokens/s", "drafted tokens/s"
    )
    for report in reports:
        table.add_row(*_summary_cells(report))
    return table


def markdown(reports: Sequence[NumericsReport], num_cases: int, max_tokens: int) -> str:
    """For bench/RESULTS.md."""
    lines = ["## Identity", "", *(f"- {name}: {value}" for name, value in measurement_facts().items())]
    lines += [
        f"- {num_cases} requests of {max_tokens} tokens, each asked plainly and under one kind of drafts, {CONCURRENCY} at a time",
        f"- near tie: a gap below {NEAR_TIE_GAP:g}",
        "",
    ]
    lines += ["| dtype | numerics | answers unlike plain | oracle flips per 1,000 | beyond near ties | plain tokens/s | drafted tokens/s |"]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(_summary_cells(report)) + " |" for report in reports]
    lines += ["", "| dtype | numerics | drafts | answers unlike plain | accepted | rejected |", "|---|---|---|---|---|---|"]
    for report in reports:
        for batch, found in report.cells:
            cells = (report.dtype, report.numerics, batch.wishes.text, len(found), batch.num_accepted, batch.num_rejected)
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, ""])


def _summary_cells(report: NumericsReport) -> list[str]:
    return [
        report.dtype,
        report.numerics,
        f"{report.num_differences} of {sum(len(batch.answers) for batch, _ in report.cells)}",
        f"{report.flips_per_1000:.2f}",
        str(report.num_beyond_ties),
        f"{report.plain.num_tokens / report.plain.total_s:.0f}",
        f"{report.drafted_tokens_per_s:.0f}",
    ]
