"""The three-machine table: `serial`, `pearl` and `adaptive` over plain decoding, 0 to 20 ms between drafter and verifier
(`outrider bench machines`).

Gateway, verifier and the real draft model are processes on three machines (network namespaces, or loopback addresses where these are not
permitted), verifier and drafter with a core each; prompts are those of the reference tasks. What a policy makes of replayed drafts against
fixed lengths is `outrider bench network`. Must not know how results are judged or shown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider.cli.console import make_console
from outrider_bench.contestants import DraftWishes, Stack
from outrider_bench.distant_pair import NUM_MACHINES, DistantPair, three_machines, two_machines
from outrider_bench.facts import measurement_facts, pair_name
from outrider_bench.goals import stack_name
from outrider_bench.machines_report import EVERY_TASK, TEMPERATURE, Spot, ThreeMachines, draw, markdown, result, show
from outrider_bench.machines_wish import Machines, MachinesWish, machines_for
from outrider_bench.measurement import Prompt
from outrider_bench.network import DELAYS_MS, QUICK_DELAYS_MS
from outrider_bench.progress import make_progress
from outrider_bench.prompts import make_prompts, source_of
from outrider_bench.results import PLAIN, Recorder
from outrider_bench.rows import rows_of
from outrider_bench.schedule import turns

POLICIES = ("serial", "pearl", "adaptive")


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured: delays, tasks, prompts of each, tokens an answer may have, repetitions."""

    delays_us: tuple[int, ...]
    tasks: tuple[str, ...]
    num_prompts: int
    max_tokens: int
    repeats: int

    @staticmethod
    def of(args: argparse.Namespace) -> Amount:
        """From the command line."""
        delays_ms = args.delays_ms or (QUICK_DELAYS_MS if args.quick else DELAYS_MS)
        delays_us = tuple(dict.fromkeys(round(1000 * delay_ms) for delay_ms in delays_ms))
        few = (1, 64, 1) if args.quick else (4, 128, 5)
        return Amount(delays_us, tuple(args.tasks), args.prompts or few[0], args.max_tokens or few[1], args.repeats or few[2])

    @property
    def num_turns(self) -> int:
        """For progress bars."""
        return len(self.delays_us) * len(self.tasks) * (1 + len(POLICIES)) * self.repeats


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 when answers differ from plain decoding more often than `fast` numerics may."""
    console = make_console()
    with machines_for(MachinesWish(args.machines), NUM_MACHINES, console) as machines:
        found = measure(args, Amount.of(args), machines)
    facts = measurement_facts() | {"pair": pair_name(args)} | dict(found.facts)
    show(console, found)
    if args.out is not None:
        args.out.write_text(markdown(facts, found), encoding="utf-8")
        draw(found, args.out.with_suffix(".svg"))
    print("RESULT " + json.dumps({"pair": pair_name(args)} | result(found, facts)))
    return 0 if found.is_sound else 1


def measure(args: argparse.Namespace, amount: Amount, machines: Machines) -> ThreeMachines:
    """Every contestant at every distance. Raises InvalidRequest where there are no two cores."""
    recorder = Recorder()
    with DistantPair(args, two_machines(), places=three_machines(machines.machines)) as pair, make_progress() as progress:
        contestants = contestants_of(pair)
        source = source_of(args, amount.max_tokens)
        prompts = {task: make_prompts(pair.gateway, task, amount.num_prompts, args.prompt_seed, source) for task in amount.tasks}
        bar = progress.add_task("three machines", total=amount.num_turns)
        for delay_us in amount.delays_us:
            pair.play_model(delay_us)
            record(delay_us, contestants, prompts, amount, recorder, lambda: progress.advance(bar))
        spots = [Spot(delay_us, task) for delay_us in amount.delays_us for task in (*amount.tasks, EVERY_TASK)]
        rows = rows_of([spot.cell for spot in spots], contestants, recorder, lambda _: pair.verifier)
        facts = {"threads": pair.threads.describe(), "machines": machines.kind}
    single = [row for row in rows if row.cell.task in {spot.cell.task for spot in spots if spot.task != EVERY_TASK}]
    flips = [flip for row in single for flip in recorder.flips(row.cell, row.contestant)]
    return ThreeMachines(spots, rows, flips, facts)


def contestants_of(pair: DistantPair) -> list[Stack]:
    """Plain decoding and each policy with lengths of its own finding."""
    named = {PLAIN: DraftWishes("off")} | {stack_name(policy): DraftWishes(policy) for policy in POLICIES}
    return [Stack(name, pair.gateway, wishes, pair.threads.describe()) for name, wishes in named.items()]


def record(
    delay_us: int,
    contestants: Sequence[Stack],
    prompts: Mapping[str, Sequence[Prompt]],
    amount: Amount,
    recorder: Recorder,
    on_answers: Callable[[], None],
) -> None:
    """Every contestant on every task at one distance, in balanced orders; what a task's cell gets, the cell of all tasks gets too."""
    for contestant in contestants:  # warm, and let policies learn this distance
        for asked in prompts.values():
            contestant.answer(asked[0], amount.max_tokens, TEMPERATURE, 0)
    for turn in turns(amount.tasks, len(contestants), amount.repeats):
        contestant = contestants[turn.contestant]
        for seed, prompt in enumerate(prompts[turn.cell]):
            answer = contestant.answer(prompt, amount.max_tokens, TEMPERATURE, seed)
            for task in (turn.cell, EVERY_TASK):
                recorder.add(Spot(delay_us, task).cell, contestant.name, turn.repetition, answer)
        on_answers()
