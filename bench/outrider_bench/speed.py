"""The speed run: transformers against our stack, same prompts, repetitions in balanced orders, medians (`outrider bench`).

Settings are chosen on one set of held-out prompts and reported on another. Policies that can take turns also run in one process, without
gateway and gRPC. Then the drafter replays drafts of fixed acceptance, which the simulator predicts from micro-benchmarks, and a full run
ends with the goal's world of two machines.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from outrider.cli.connection import Connection
from outrider.cli.console import make_console
from outrider.v1 import verifier_pb2
from outrider_bench import network, predictions
from outrider_bench.contestants import Contestant, Stack
from outrider_bench.facts import measurement_facts, pair_name
from outrider_bench.goals import (
    best_policy,
    bound_fraction,
    draft_token_share,
    prose_ratios,
    ratios,
    reconcile_share,
    stack_name,
    stack_ratio,
    worst_cell,
)
from outrider_bench.measurement import Prompt
from outrider_bench.network_report import TwoMachines
from outrider_bench.one_process import InOneProcess, twins
from outrider_bench.plot import draw
from outrider_bench.predictions import Prediction, predicted, shapes_in
from outrider_bench.progress import make_progress
from outrider_bench.prompts import TUNING_SEED, PromptSource, make_prompts, source_of
from outrider_bench.replay import ACCEPTANCES, ReplayRun, measure_replay, micro_of_cells, replay_contestants
from outrider_bench.report import HEADINGS, RECONCILING, as_json, cells, markdown
from outrider_bench.results import MAX_FLIPS_PER_1000, Cell, Flip, Recorder, Row
from outrider_bench.rows import rows_of
from outrider_bench.schedule import turns
from outrider_bench.stage import Stage, set_up
from outrider_bench.tuning import fastest, num_tuning_answers

TEMPERATURES = (0.0, 0.8)
NUM_MACHINES = 2
# Replayed drafts keep its pace: in turns nothing is drafted in vain, and many drafted tokens share the reading of a prompt.
PACE_OF = "serial"


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured: prompts a cell, tokens an answer may have, repetitions; and on which prompts."""

    num_prompts: int
    num_tuning_prompts: int
    max_tokens: int
    repeats: int
    replay_temperatures: tuple[float, ...]
    quick: bool
    prompt_seed: int

    @property
    def replay_repeats(self) -> int:
        """Of cells with replayed drafts: what is compared there is told from a prediction, and such a cell is soon measured."""
        return 2 * self.repeats

    @staticmethod
    def of(args: argparse.Namespace) -> Amount:
        """From the command line."""
        if args.quick:
            return Amount(args.prompts or 2, 0, args.max_tokens or 128, args.repeats or 1, (0.0,), True, args.prompt_seed)
        return Amount(args.prompts or 4, 1, args.max_tokens or 192, args.repeats or 5, TEMPERATURES, False, args.prompt_seed)


@dataclass(slots=True)
class SpeedRun:
    """A run in progress: what is up, who takes part, what was found so far."""

    stage: Stage
    tasks: Sequence[str]
    source: PromptSource
    amount: Amount
    progress: Progress
    recorder: Recorder
    step_us: int = 0
    verify_us: float = 0.0
    predictions: list[Prediction] = field(default_factory=list)

    def choose(self, families: Sequence[list[Contestant]]) -> list[Contestant]:
        """One contestant of each family, the fastest of its candidate settings over all tasks and temperatures."""
        gateway = self.stage.served[0].gateway
        num = self.amount.num_tuning_prompts
        prompts = [each for task in self.tasks for each in make_prompts(gateway, task, num, TUNING_SEED, self.source)]
        total = sum(num_tuning_answers(len(family), len(prompts), len(TEMPERATURES)) for family in families)
        bar = self.progress.add_task("choosing settings", total=total)
        return [fastest(each, prompts, TEMPERATURES, self.amount.max_tokens, lambda: self.progress.advance(bar)) for each in families]

    def reported(self, gateway: Connection, task: str) -> list[Prompt]:
        """A task's prompts that settings are not chosen on."""
        return make_prompts(gateway, task, self.amount.num_prompts, self.amount.prompt_seed, self.source)

    def measure(self, contestants: Sequence[Contestant]) -> list[Row]:
        """Every contestant in every cell, in balanced orders; one unrecorded answer each to warm up."""
        gateway = self.stage.served[0].gateway
        prompts = {task: self.reported(gateway, task) for task in self.tasks}
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
        return rows_of(grid, contestants, self.recorder, self._info)

    def replay(self) -> list[Row]:
        """Drafts of fixed acceptance, at the pace the draft model had in the cells before."""
        served = self.stage.apart
        prompts = tuple(self.reported(served.gateway, self.tasks[0]))
        contestants = replay_contestants(served.gateway, self.stage.policies, served.describe())
        total = len(self.amount.replay_temperatures) * len(ACCEPTANCES) * len(contestants) * self.amount.replay_repeats
        bar = self.progress.add_task("replayed drafts", total=total)
        self.step_us = self.recorder.draft_us_per_token(stack_name(PACE_OF))
        self.verify_us = self.recorder.verify_us_per_step(stack_name(PACE_OF))
        (apart,) = make_prompts(served.gateway, self.tasks[0], 1, TUNING_SEED, self.source)
        wishes = {contestant.name: contestant.wishes for contestant in contestants}
        rows: list[Row] = []

        for temperature in self.amount.replay_temperatures:
            micro = micro_of_cells(contestants, served.verifier, apart, temperature)
            run = ReplayRun(prompts, temperature, self.amount.max_tokens, self.amount.replay_repeats, self.step_us)
            at = measure_replay(served.deployment, contestants, run, self.recorder, micro, lambda: self.progress.advance(bar))
            found = rows_of(list(at), contestants, self.recorder, self._info)
            self.predictions += predicted(found, wishes, at, shapes_in(self.recorder, prompts))
            rows += found
        return rows

    def flips(self, rows: Sequence[Row]) -> list[Flip]:
        """Every answer of ours that is not the plain one."""
        ours = [row for row in rows if row.bound_share is not None]
        return [flip for row in ours for flip in self.recorder.flips(row.cell, row.contestant)]

    def _info(self, contestant: Contestant) -> verifier_pb2.VerifierServiceGetInfoResponse | None:
        stack = contestant.stack if isinstance(contestant, InOneProcess) else contestant
        return self.stage.serving(stack.gateway).verifier if isinstance(stack, Stack) else None


@dataclass(frozen=True, slots=True)
class Found:
    """What a speed run found. replayed: rows with drafts of fixed acceptance. step_us: of a drafted token, verify_us: of a step that
    verifies such tokens, both of the draft model's cells. two_machines: None where it was not measured."""

    rows: list[Row]
    replayed: list[Row]
    predictions: list[Prediction]
    flips: list[Flip]
    policies: list[str]
    settings: dict[str, str]
    facts: dict[str, str]
    step_us: int
    two_machines: TwoMachines | None
    verify_us: float = 0.0

    @property
    def all_rows(self) -> list[Row]:
        """Of one machine."""
        return [*self.rows, *self.replayed]

    @property
    def best(self) -> str:
        """The best policy of our stack, as a contestant."""
        return best_policy(self.rows, [stack_name(policy) for policy in self.policies])

    @property
    def is_sound(self) -> bool:
        """Whether answers differ from plain decoding no more often than `fast` numerics may."""
        num_tokens = sum(row.summary.num_tokens for row in self.all_rows if row.bound_share is not None)
        return 1000.0 * len(self.flips) <= MAX_FLIPS_PER_1000 * num_tokens and (self.two_machines is None or self.two_machines.is_sound)


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 when answers differ from plain decoding more often than `fast` numerics may."""
    found = _measure(args)
    _show(make_console(), found.all_rows)
    if args.out is not None:
        args.out.write_text(markdown("Speed", found.facts, found.settings, found.all_rows, found.flips, _notes(found), _sections(found)))
        draw(found.rows, args.out.with_suffix(".svg"))
    print("RESULT " + json.dumps({"pair": pair_name(args)} | result(found)))
    return 0 if found.is_sound else 1


def _measure(args: argparse.Namespace) -> Found:
    with ExitStack() as stack, make_progress() as progress:
        stage = set_up(args, stack)
        amount = Amount.of(args)
        speed = SpeedRun(stage, args.tasks, source_of(args, amount.max_tokens), amount, progress, Recorder())
        contestants = speed.choose(list(stage.families(speed.amount.quick)))
        contestants += twins(contestants, stage, stack)
        rows = speed.measure(contestants)
        replayed = speed.replay()
        flips = speed.flips([*rows, *replayed])
    has_two_machines = not speed.amount.quick and stage.num_cores >= NUM_MACHINES
    return Found(
        rows=rows,
        replayed=replayed,
        predictions=speed.predictions,
        flips=flips,
        policies=stage.policies,
        settings={contestant.name: contestant.settings for contestant in contestants},
        facts=measurement_facts() | {"pair": pair_name(args)},
        step_us=speed.step_us,
        verify_us=speed.verify_us,
        two_machines=network.measure(args, network.Amount.of_goal()) if has_two_machines else None,
    )


def result(found: Found) -> dict[str, object]:
    """Of the RESULT line."""
    two = found.two_machines
    num_flips = len(found.flips) + (0 if two is None else two.num_flips)
    all_rows = [*found.all_rows, *(() if two is None else two.rows)]
    simulated = [*found.predictions, *(() if two is None else two.predictions)]
    return {
        **ratios(found.rows, found.best),
        "best_policy": found.best,
        **prose_ratios(found.rows),
        **worst_cell(all_rows),
        **stack_ratio(found.rows, found.policies),
        **bound_fraction(found.rows, found.best),
        **reconcile_share(all_rows),
        **draft_token_share(found.step_us, found.verify_us),
        **({} if two is None else two.goal_result()),
        **predictions.as_result(simulated),
        "identical": num_flips == 0,
        "num_flips": num_flips,
        "flips": [f"{flip.cell}, {flip.contestant}, prompt {flip.prompt}, token {flip.position}" for flip in found.flips],
        "settings": found.settings,
        "facts": found.facts,
        "cells": [as_json(row) for row in all_rows],
        "simulated": [each.as_json() for each in simulated],
    }


def _sections(found: Found) -> dict[str, list[str]]:
    sections = {"replayed drafts, simulated from micro-benchmarks": predictions.tables(found.predictions)}
    return sections | ({} if found.two_machines is None else {"two machines": found.two_machines.tables()})


def _notes(found: Found) -> list[str]:
    return [
        f"Best policy: {found.best}: of all policies, its worst ratio to plain decoding over arithmetic and copying is the highest.",
        f"A replayed draft token costs {found.step_us} us, what the draft model took under {PACE_OF}, the reading of prompts included.",
        "spread: (highest - lowest) / median of the repetitions' tokens/s. in target forwards: share of wall time.",
        "of the bound: tokens/s over (tokens per round / the verify forward alone, as the verifier measured it before the first request).",
        RECONCILING,
        "one process: the same models, policy and draft options in turns in one thread of one process, without gateway, sockets and gRPC.",
        "simulated: from micro-benchmarks alone; no cell of the table went into them.",
    ]


def _show(console: Console, rows: Sequence[Row]) -> None:
    for cell in dict.fromkeys(row.cell for row in rows):
        table = Table(*HEADINGS, title=cell.name)
        inside = [row for row in rows if row.cell == cell]
        for row in inside:
            table.add_row(*cells(row, inside))
        console.print(table)
