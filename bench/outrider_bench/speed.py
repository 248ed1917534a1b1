"""The speed run: transformers against our stack, same prompts, repetitions in rotated order, medians (`outrider bench`).

Settings are chosen on one set of held-out prompts and reported on another. Then the drafter replays drafts of fixed acceptance.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from outrider.cli.console import make_console
from outrider_bench.contestants import Contestant, Stack, verify_ms
from outrider_bench.facts import measurement_facts
from outrider_bench.plot import draw
from outrider_bench.progress import make_progress
from outrider_bench.prompts import REPORTING_SEED, TUNING_SEED, make_prompts
from outrider_bench.replay import ACCEPTANCES, ReplayRun, measure_replay, replay_contestants
from outrider_bench.report import HEADINGS, as_json, cells, markdown
from outrider_bench.results import Cell, Flip, Recorder, Row, best_policy, ratios
from outrider_bench.schedule import turns
from outrider_bench.stage import Stage, set_up
from outrider_bench.tuning import fastest, num_tuning_answers

TEMPERATURES = (0.0, 0.8)
MAX_FLIPS_PER_1000 = 1.0  # near ties flip in `fast` numerics; more than this is a bug


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured: prompts a cell, tokens an answer may have, repetitions."""

    num_prompts: int
    num_tuning_prompts: int
    max_tokens: int
    repeats: int
    replay_temperatures: tuple[float, ...]
    quick: bool

    @staticmethod
    def of(args: argparse.Namespace) -> Amount:
        """From the command line."""
        if args.quick:
            return Amount(args.prompts or 2, 0, args.max_tokens or 128, args.repeats or 1, (0.0,), quick=True)
        return Amount(args.prompts or 4, 1, args.max_tokens or 192, args.repeats or 5, TEMPERATURES, quick=False)


@dataclass(slots=True)
class SpeedRun:
    """A run in progress: what is up, who takes part, what was found so far."""

    stage: Stage
    tasks: Sequence[str]
    amount: Amount
    progress: Progress
    recorder: Recorder
    step_us: int = 0

    def choose(self, families: Sequence[list[Contestant]]) -> list[Contestant]:
        """One contestant of each family, the fastest of its candidate settings over all tasks and temperatures."""
        gateway = self.stage.served[0].gateway
        prompts = [each for task in self.tasks for each in make_prompts(gateway, task, self.amount.num_tuning_prompts, TUNING_SEED)]
        total = sum(num_tuning_answers(len(family), len(prompts), len(TEMPERATURES)) for family in families)
        bar = self.progress.add_task("choosing settings", total=total)
        return [fastest(each, prompts, TEMPERATURES, self.amount.max_tokens, lambda: self.progress.advance(bar)) for each in families]

    def measure(self, contestants: Sequence[Contestant]) -> list[Row]:
        """Every contestant in every cell, in rotated order; one unrecorded answer each to warm up."""
        gateway = self.stage.served[0].gateway
        prompts = {task: make_prompts(gateway, task, self.amount.num_prompts, REPORTING_SEED) for task in self.tasks}
        grid = [Cell(task, temperature) for task in self.tasks for temperature in TEMPERATURES]
        for contestant in contestants:
            contestant.answer(prompts[self.tasks[0]][0], self.amount.max_tokens, 0.0, seed=0)
        bar = self.progress.add_task("measuring", total=len(grid) * len(contestants) * self.amount.repeats)
        for turn in turns(grid, len(contestants), self.amount.repeats):
            contestant = contestants[turn.contestant]
            for number, prompt in enumerate(prompts[turn.cell.task]):
                answer = contestant.answer(prompt, self.amount.max_tokens, turn.cell.temperature, seed=number)
                self.recorder.add(turn.cell, contestant.name, turn.repetition, answer)
            self.progress.advance(bar)
        return self._rows(grid, contestants)

    def replay(self) -> list[Row]:
        """Drafts of fixed acceptance, at the pace the draft model had in the cells before."""
        served = self.stage.served[0]
        prompts = tuple(make_prompts(served.gateway, self.tasks[0], self.amount.num_prompts, REPORTING_SEED))
        contestants = replay_contestants(served.gateway, self.stage.policies, served.threads.describe())
        total = len(self.amount.replay_temperatures) * len(ACCEPTANCES) * len(contestants) * self.amount.repeats
        bar = self.progress.add_task("replayed drafts", total=total)
        self.step_us = self.recorder.draft_us_per_token()
        rows: list[Row] = []
        for temperature in self.amount.replay_temperatures:
            run = ReplayRun(prompts, temperature, self.amount.max_tokens, self.amount.repeats, self.step_us)
            grid = measure_replay(served.deployment, contestants, run, self.recorder, lambda: self.progress.advance(bar))
            rows += self._rows(grid, contestants)
        return rows

    def flips(self, rows: Sequence[Row]) -> list[Flip]:
        """Every answer of ours that is not the plain one."""
        ours = [row for row in rows if row.bound_share is not None]
        return [flip for row in ours for flip in self.recorder.flips(row.cell, row.contestant)]

    def _rows(self, grid: Sequence[Cell], contestants: Sequence[Contestant]) -> list[Row]:
        costs = {id(served.gateway): served.verifier for served in self.stage.served}
        rows = []
        for cell in grid:
            for contestant in contestants:
                summary, spread = self.recorder.summary(cell, contestant.name)
                bound_share = None
                if isinstance(contestant, Stack):
                    forward_ms = verify_ms(costs[id(contestant.gateway)], 1 + summary.drafted_per_round)
                    bound_share = summary.tokens_per_s * forward_ms / (1000.0 * summary.mean_emitted_per_round)
                rows.append(Row(cell, contestant.name, summary, spread, bound_share))
        return rows


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 when answers differ from plain decoding more often than `fast` numerics may."""
    with ExitStack() as stack, make_progress() as progress:
        speed = SpeedRun(set_up(args, stack), args.tasks, Amount.of(args), progress, Recorder())
        contestants = speed.choose(list(speed.stage.families(speed.amount.quick)))
        rows = speed.measure(contestants)
        policies = [f"outrider {policy}" for policy in speed.stage.policies]
        replayed = speed.replay()
        flips = speed.flips([*rows, *replayed])
    best = best_policy(rows, policies)
    settings = {contestant.name: contestant.settings for contestant in contestants}
    facts = measurement_facts()
    _show(make_console(), [*rows, *replayed])
    if args.out is not None:
        args.out.write_text(markdown("Speed", facts, settings, [*rows, *replayed], flips, _notes(best, speed.step_us)))
        draw(rows, args.out.with_suffix(".svg"))
    num_tokens = sum(row.summary.num_tokens for row in [*rows, *replayed] if row.bound_share is not None)
    result = {
        **ratios(rows, best),
        "best_policy": best,
        "identical": not flips,
        "num_flips": len(flips),
        "flips": [f"{flip.cell}, {flip.contestant}, prompt {flip.prompt}, token {flip.position}" for flip in flips],
        "settings": settings,
        "facts": facts,
        "cells": [as_json(row) for row in [*rows, *replayed]],
    }
    print("RESULT " + json.dumps(result))
    return 0 if 1000.0 * len(flips) <= MAX_FLIPS_PER_1000 * num_tokens else 1


def _notes(best: str, step_us: int) -> list[str]:
    return [
        f"Best policy: {best}: of all policies, its worst ratio to plain decoding over arithmetic and copying is the highest.",
        f"A replayed draft token costs {step_us} us, what the draft model took.",
        "spread: (highest - lowest) / median of the repetitions' tokens/s. in target forwards: share of wall time.",
        "of the bound: tokens/s over (tokens per round / the verify forward alone, as the verifier measured it before the first request).",
    ]


def _show(console: Console, rows: Sequence[Row]) -> None:
    for cell in dict.fromkeys(row.cell for row in rows):
        table = Table(*HEADINGS, title=cell.name)
        inside = [row for row in rows if row.cell == cell]
        for row in inside:
            table.add_row(*cells(row, inside))
        console.print(table)
