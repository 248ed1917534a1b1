"""The peers run: transformers, OpenVINO GenAI and our stack, same prompts, cores and dtype (`outrider bench peers`, `make bench-peers`).
With --device cuda every model is on one card, and OpenVINO, which cannot be, is left out.

Every contestant takes the best of its own settings, chosen on other prompts; repetitions in balanced orders, medians. At temperature 0
every answer is compared with our plain decoding, and what differs is explained; at T > 0 only ours can be, and the peers' samples are
compared as distributions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rich.table import Table

from outrider.cli.console import make_console
from outrider.cli.deployment_options import model_path
from outrider_bench.contestants import Contestant
from outrider_bench.cost import Metered
from outrider_bench.differences import Difference, explain
from outrider_bench.facts import measurement_facts
from outrider_bench.goals import best_policy, ratios, stack_name
from outrider_bench.gpu.card import find_card
from outrider_bench.lineup import OTHERS, POLICIES, WITHOUT_OPENVINO, families, start_openvino
from outrider_bench.openvino_folder import installed_versions
from outrider_bench.peers_report import HEADINGS, BilledRow, billed_json, markdown, tables
from outrider_bench.plot import draw
from outrider_bench.progress import make_progress
from outrider_bench.prompts import make_prompts, source_of
from outrider_bench.results import MAX_FLIPS_PER_1000, PLAIN, Cell, Flip, Recorder, Row
from outrider_bench.sampling_check import Sampled, check_sampling
from outrider_bench.speed import Amount, SpeedRun
from outrider_bench.stage import set_up

NUM_SAMPLES = 300
QUICK_SAMPLES = 100
LEFT_OUT = "left out"  # of the facts


@dataclass(frozen=True, slots=True)
class Found:
    """What a peers run found. differences: every answer unlike our plain one, ours at any temperature and the peers' at 0."""

    rows: list[BilledRow]
    differences: list[Difference]
    sampled: list[Sampled]
    best: str
    settings: dict[str, str]

    @property
    def own_differences(self) -> list[Difference]:
        """Those of our own stack."""
        return [each for each in self.differences if is_ours(each.flip.contestant)]

    @property
    def judged(self) -> list[str]:
        """A line for each answer unlike plain decoding, and for each contestant's samples."""
        return [*(each.text for each in self.differences), *(each.text for each in self.sampled)]

    @property
    def num_own_tokens(self) -> int:
        """Tokens of one repetition of everything ours."""
        return sum(each.row.summary.num_tokens for each in self.rows if is_ours(each.row.contestant))


def is_ours(contestant: str) -> bool:
    """Whether a contestant is our own stack."""
    return contestant == PLAIN or contestant in {stack_name(policy) for policy in POLICIES}


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 when our answers differ from plain decoding more often than `fast` numerics may.

    Raises InvalidRequest without the extra, and with --device cuda Unavailable without a card, before anything ran.
    """
    where = facts_of_device(args.device)
    found = _measure(args)
    facts = measurement_facts()
    facts["versions"] += where.pop("versions", "")
    facts |= where
    facts["dtype"] = f"{args.dtype}, weights, activations and caches of every contestant"
    _show(found, facts)
    if args.out is not None:
        picture = args.out.with_suffix(".svg")
        drawn = draw([each.row for each in found.rows], picture)
        args.out.write_text(markdown(facts, found.settings, found.rows, found.judged, picture.name if drawn else None))
    print("RESULT " + json.dumps(result(found, facts)))
    return 0 if 1000.0 * len(found.own_differences) <= MAX_FLIPS_PER_1000 * found.num_own_tokens else 1


def facts_of_device(device: str) -> dict[str, str]:
    """Of the report. Raises InvalidRequest where OpenVINO takes part and is not installed, Unavailable without the card."""
    if device == "cpu":
        return {"versions": "".join(f", {name} {version}" for name, version in installed_versions().items())}
    card = find_card(device, "bench peers", "without --device every contestant runs on the processor, OpenVINO among them")
    return {**card.facts, LEFT_OUT: WITHOUT_OPENVINO}


def _measure(args: argparse.Namespace) -> Found:
    with ExitStack() as stack, make_progress() as progress:
        stage = set_up(args, stack)
        target, draft = model_path(args.target), model_path(args.draft)
        openvino = start_openvino(target, draft, args.dtype, stage.num_cores, stack) if args.device == "cpu" else None
        amount = Amount.of(args)
        speed = SpeedRun(stage, args.tasks, source_of(args, amount.max_tokens), amount, progress, Recorder())
        contestants = speed.choose(families(stage, openvino, speed.amount.quick))
        rows = speed.measure(contestants)
        flips = [flip for row in rows for flip in comparable(speed.recorder, row)]
        differences = _explained(speed, rows, flips, args) if flips else []
        sampled = _sampled(speed, contestants)
    num_prompts = speed.amount.num_prompts
    return Found(
        rows=bill(rows, contestants, flips, num_prompts),
        differences=differences,
        sampled=sampled,
        best=best_policy(rows, [stack_name(policy) for policy in POLICIES if policy in stage.policies]),
        settings={contestant.name: contestant.settings for contestant in contestants},
    )


def comparable(recorder: Recorder, row: Row) -> list[Flip]:
    """Answers of a row unlike our plain ones; none where other noise makes others."""
    return recorder.flips(row.cell, row.contestant) if _is_comparable(row) else []


def _is_comparable(row: Row) -> bool:
    return row.cell.temperature == 0.0 or is_ours(row.contestant)


def bill(rows: Sequence[Row], contestants: Sequence[Contestant], flips: Sequence[Flip], num_prompts: int) -> list[BilledRow]:
    """Every row with its contestant's cores and the number of its prompts that were answered otherwise."""
    num_cores = {each.name: each.num_cores for each in contestants if isinstance(each, Metered)}
    billed = []
    for row in rows:
        unlike = {flip.prompt for flip in flips if (flip.cell, flip.contestant) == (row.cell.name, row.contestant)}
        billed.append(BilledRow(row, num_cores[row.contestant], len(unlike) if _is_comparable(row) else None, num_prompts))
    return billed


def _explained(speed: SpeedRun, rows: Sequence[Row], flips: Sequence[Flip], args: argparse.Namespace) -> list[Difference]:
    # Only now: the judge brings torch and a model, which nothing else in this process needs.
    from outrider_bench.oracle import Oracle

    gateway = speed.stage.served[0].gateway
    prompts = {task: speed.reported(gateway, task) for task in speed.tasks}
    cells: dict[str, Cell] = {row.cell.name: row.cell for row in rows}
    return explain(flips, cells, speed.recorder, prompts, Oracle(model_path(args.target), args.dtype), PLAIN)


def _sampled(speed: SpeedRun, contestants: Sequence[Contestant]) -> list[Sampled]:
    """On a prompt of the last task: in the usual order prose, whose answers are the most uncertain."""
    num_samples = QUICK_SAMPLES if speed.amount.quick else NUM_SAMPLES
    (prompt,) = make_prompts(speed.stage.served[0].gateway, speed.tasks[-1], 1, speed.amount.prompt_seed, speed.source)
    bar = speed.progress.add_task("sampling", total=num_samples * len(contestants))
    return check_sampling(contestants, prompt, num_samples, lambda: speed.progress.advance(bar))


def result(found: Found, facts: dict[str, str]) -> dict[str, object]:
    """Of the RESULT line."""
    rows = [each.row for each in found.rows]
    unlike = {name: sum(1 for each in found.differences if each.flip.contestant == name) for name in found.settings}
    return {
        **ratios(rows, found.best, OTHERS),
        "best_policy": found.best,
        "identical": not found.differences,
        "num_unlike_plain": unlike,
        "num_near_ties": sum(each.near_tie for each in found.differences),
        "differences": [each.text for each in found.differences],
        "samples_unlike_plain": [each.contestant for each in found.sampled if not each.is_the_targets],
        "sampling_distances": {each.contestant: round(each.distance, 3) for each in found.sampled},
        "settings": found.settings,
        "facts": facts,
        "cells": [billed_json(each) for each in found.rows],
    }


def _show(found: Found, facts: Mapping[str, str]) -> None:
    console = make_console()
    for name, texts in tables(found.rows).items():
        table = Table(*HEADINGS, title=name)
        for text in texts:
            table.add_row(*text)
        console.print(table)
    for line in (*found.judged, *(facts[name] for name in (LEFT_OUT,) if name in facts)):
        console.print(line, markup=False)
