"""The speed run: transformers against our stack, same prompts, repetitions in rotated order, medians (`outrider bench`).

Starts a deployment for each thread plan and the baseline in a process of its own; only one of them computes at a time. Settings
are chosen on one set of held-out prompts and reported on another.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from outrider.cli.connection import Connection
from outrider.cli.console import make_console
from outrider.cli.deployment_options import model_path
from outrider.cli.starting import start
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.threads import ThreadPlan, plan_threads, usable_cores
from outrider_bench.baseline import ASSISTANTS, PLAIN_CANDIDATES, GenerateSettings, TransformersBaseline
from outrider_bench.contestants import Contestant, DraftWishes, Stack, Transformers, verify_ms
from outrider_bench.facts import measurement_facts
from outrider_bench.plot import draw
from outrider_bench.prompts import REPORTING_SEED, TUNING_SEED, make_prompts
from outrider_bench.replay import replay_rows
from outrider_bench.report import HEADINGS, as_json, cells, markdown
from outrider_bench.results import ASSISTED, GENERATE, PLAIN, Cell, Recorder, Row, best_policy, ratios
from outrider_bench.schedule import turns
from outrider_bench.tuning import fastest, num_tuning_answers

TEMPERATURES = (0.0, 0.8)
DRAFTLESS = "plain"
WISHES = ((None, None), (4, None), (8, None), (16, None), (16, 0.3), (24, 0.5))
QUICK_WISHES = ((None, None),)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    num_prompts: int
    num_tuning_prompts: int
    max_tokens: int
    repeats: int
    quick: bool

    @staticmethod
    def of(args: argparse.Namespace) -> Plan:
        """From the command line."""
        if args.quick:
            return Plan(2, 0, 128, args.repeats or 1, quick=True)
        return Plan(4, 1, 192, args.repeats or 5, quick=False)


@dataclass(frozen=True, slots=True)
class Stage:
    """What is up during the run: the baseline, and a deployment for each thread plan."""

    baseline: TransformersBaseline
    baseline_threads: int
    deployments: tuple[tuple[ThreadPlan, Deployment, Connection], ...]


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 when an answer of ours differs from plain decoding more often than `fast` numerics may."""
    plan = Plan.of(args)
    console = make_console()
    with ExitStack() as stack, _progress() as progress:
        stage = _set_up(args, stack)
        contestants = _choose(stage, args.tasks, plan, progress)
        recorder = _measure(stage, contestants, args.tasks, plan, progress)
        rows, flips = _rows(stage, contestants, recorder, args.tasks)
        replayed, replay_notes = replay_rows(args, stage.deployments[0][2], plan.quick, progress)
    policies = [contestant.name for contestant in contestants if isinstance(contestant, Stack) and contestant.name != PLAIN]
    best = best_policy(rows, policies)
    settings = {contestant.name: contestant.settings for contestant in contestants}
    notes = [f"Best policy: {best}. A `spread` is (highest - lowest) / median of the repetitions' tokens/s.", *replay_notes]
    facts = measurement_facts()
    _show(console, [*rows, *replayed])
    report = markdown("Speed", facts, settings, [*rows, *replayed], flips, notes)
    if args.out is not None:
        args.out.write_text(report)
        draw(rows, args.out.with_suffix(".svg"))
    result = {
        **ratios(rows, best),
        "best_policy": best,
        "identical": not flips,
        "num_flips": len(flips),
        "settings": settings,
        "facts": facts,
        "cells": [as_json(row) for row in [*rows, *replayed]],
    }
    print("RESULT " + json.dumps(result))
    return 0 if not flips else 1


def _set_up(args: argparse.Namespace, stack: ExitStack) -> Stage:
    """Start everything; the stack ends it."""
    target, draft = model_path(args.target), model_path(args.draft)
    cores = len(usable_cores())
    console = make_console(stderr=True)
    plans = dict.fromkeys(plan_threads(cores, pacing) for pacing in ("serial", "pearl"))
    deployments = []
    for threads in plans:
        spec = DeploymentSpec(target, draft, "serial", threads, dtype=args.dtype)
        deployment = stack.enter_context(start(spec, console))
        deployments.append((threads, deployment, stack.enter_context(Connection(deployment.gateway))))
    baseline = stack.enter_context(TransformersBaseline(target, draft, args.dtype, cores))
    return Stage(baseline, cores, tuple(deployments))


def _policies(stage: Stage) -> list[str]:
    with Connection(stage.deployments[0][1].verifier) as verifier:
        return [name for name in verifier.verifier_info().pacings if name != DRAFTLESS]


def _choose(stage: Stage, tasks: Sequence[str], plan: Plan, progress: Progress) -> list[Contestant]:
    """One contestant of each kind, with the fastest of its candidate settings."""
    gateway = stage.deployments[0][2]
    prompts = [prompt for task in tasks for prompt in make_prompts(gateway, task, plan.num_tuning_prompts, TUNING_SEED)]
    families = list(_families(stage, plan))
    total = sum(num_tuning_answers(len(family), len(prompts), len(TEMPERATURES)) for family in families)
    bar = progress.add_task("choosing settings", total=total)

    def choose(family: Sequence[Contestant]) -> Contestant:
        return fastest(family, prompts, TEMPERATURES, plan.max_tokens, lambda: progress.advance(bar))

    return [choose(family) for family in families]


def _families(stage: Stage, plan: Plan) -> Iterator[list[Contestant]]:
    """Candidates by kind; the quick run takes the first of each."""
    threads = stage.baseline_threads
    plain = [Transformers(GENERATE, stage.baseline, settings, threads) for settings in PLAIN_CANDIDATES]
    assisted = [Transformers(ASSISTED, stage.baseline, GenerateSettings(assistant=assistant), threads) for assistant in ASSISTANTS]
    yield [*plain[:1]] if plan.quick else [*plain]
    yield [*assisted[:1]] if plan.quick else [*assisted]
    yield [
        Stack(PLAIN, connection, DraftWishes("off"), thread_plan.describe())
        for thread_plan, _, connection in stage.deployments[: 1 if plan.quick else None]
    ]
    for policy in _policies(stage):
        family = [
            Stack(f"outrider {policy}", connection, DraftWishes(policy, max_len, stop_below), thread_plan.describe())
            for thread_plan, _, connection in stage.deployments
            for max_len, stop_below in (QUICK_WISHES if plan.quick else WISHES)
            if not plan.quick or thread_plan == plan_threads(threads, policy)
        ]
        yield [*family]


def _measure(stage: Stage, contestants: Sequence[Contestant], tasks: Sequence[str], plan: Plan, progress: Progress) -> Recorder:
    """Every contestant in every cell, in rotated order; one unrecorded answer each to warm up."""
    gateway = stage.deployments[0][2]
    prompts = {task: make_prompts(gateway, task, plan.num_prompts, REPORTING_SEED) for task in tasks}
    grid = [Cell(task, temperature) for task in tasks for temperature in TEMPERATURES]
    for contestant in contestants:
        contestant.answer(prompts[tasks[0]][0], plan.max_tokens, 0.0, seed=0)
    bar = progress.add_task("measuring", total=len(grid) * len(contestants) * plan.repeats)
    recorder = Recorder()
    for turn in turns(grid, len(contestants), plan.repeats):
        contestant = contestants[turn.contestant]
        for number, prompt in enumerate(prompts[turn.cell.task]):
            answer = contestant.answer(prompt, plan.max_tokens, turn.cell.temperature, seed=number)
            recorder.add(turn.cell, contestant.name, turn.repetition, answer)
        progress.advance(bar)
    return recorder


def _rows(stage: Stage, contestants: Sequence[Contestant], recorder: Recorder, tasks: Sequence[str]) -> tuple[list[Row], list]:  # type: ignore[type-arg]
    costs = {}
    for _, deployment, gateway in stage.deployments:
        with Connection(deployment.verifier) as verifier:
            costs[id(gateway)] = verifier.verifier_info()
    rows, flips = [], []
    for cell in (Cell(task, temperature) for task in tasks for temperature in TEMPERATURES):
        for contestant in contestants:
            summary, spread = recorder.summary(cell, contestant.name)
            bound_share = None
            if isinstance(contestant, Stack):
                forward_ms = verify_ms(costs[id(contestant.gateway)], 1 + summary.drafted_per_round)
                bound_share = summary.tokens_per_s * forward_ms / (1000.0 * summary.mean_emitted_per_round)
                flips += recorder.flips(cell, contestant.name)
            rows.append(Row(cell, contestant.name, summary, spread, bound_share))
    return rows, flips


def _show(console: object, rows: Sequence[Row]) -> None:
    for cell in dict.fromkeys(row.cell for row in rows):
        table = Table(*HEADINGS, title=cell.name)
        inside = [row for row in rows if row.cell == cell]
        for row in inside:
            table.add_row(*cells(row, inside))
        console.print(table)  # type: ignore[attr-defined]


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=make_console(stderr=True)
    )
