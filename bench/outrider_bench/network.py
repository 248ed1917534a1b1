"""The two-machine table: every policy with a drafter on a core of its own, some milliseconds away (`outrider bench network`).

Drafts are replayed with a fixed acceptance at a fixed pace, so that a cell is a world: a delay and an acceptance. Repetitions in rotated
order, medians, each beside what the simulator makes of the same world. With the real draft model, over
TCP: `outrider bench machines`. Must not know how worlds are judged or shown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from outrider.cli.console import make_console
from outrider_bench.contestants import DraftWishes, Stack
from outrider_bench.distant_pair import DistantPair, World, two_machines
from outrider_bench.facts import measurement_facts, pair_name
from outrider_bench.measurement import Prompt
from outrider_bench.micro import MicroBenchmark, replayed_text
from outrider_bench.network_report import GOAL, TwoMachines, draw, judge, markdown, result, show
from outrider_bench.predictions import Circumstances, circumstances, predicted, shapes_in
from outrider_bench.progress import make_progress
from outrider_bench.prompts import TUNING_SEED, make_prompts, source_of
from outrider_bench.replay import REPLAY_SEED, ReplayRun, record
from outrider_bench.results import ADAPTIVE, PLAIN, Cell, Recorder
from outrider_bench.rows import rows_of

# What an operator could have fixed: either policy with the length it finds by itself, and held to shorter ones.
FIXED = tuple(DraftWishes(policy, longest) for policy in ("serial", "pearl") for longest in (None, 2, 4, 8))
QUICK_FIXED = (DraftWishes("serial"), DraftWishes("pearl"))
DELAYS_MS, ACCEPTANCES = (0.0, 1.0, 5.0, 20.0), (0.5, 0.7, 0.9)
QUICK_DELAYS_MS, QUICK_ACCEPTANCES = (5.0,), (0.7,)
TASK = "arithmetic"
TEMPERATURE = 0.0


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured: worlds, prompts a world, tokens an answer may have, repetitions, fixed policies to compare with."""

    worlds: tuple[World, ...]
    num_prompts: int
    max_tokens: int
    repeats: int
    fixed: tuple[DraftWishes, ...]

    @staticmethod
    def of(args: argparse.Namespace) -> Amount:
        """From the command line."""
        delays_ms = args.delays_ms or (QUICK_DELAYS_MS if args.quick else DELAYS_MS)
        acceptances = args.replay_acceptances or (QUICK_ACCEPTANCES if args.quick else ACCEPTANCES)
        named = (World(round(1000 * delay_ms), acceptance) for delay_ms in delays_ms for acceptance in acceptances)
        worlds = tuple(dict.fromkeys(named))  # each once: two of one name would be taken for one cell with twice the answers
        if args.quick:
            return Amount(worlds, args.prompts or 1, args.max_tokens or 64, args.repeats or 1, QUICK_FIXED)
        return Amount(worlds, args.prompts or 2, args.max_tokens or 96, args.repeats or 5, FIXED)

    @staticmethod
    def of_goal() -> Amount:
        """The goal's own world, as the end of a speed run."""
        return Amount((GOAL,), num_prompts=2, max_tokens=96, repeats=5, fixed=FIXED)


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 when answers differ from plain decoding more often than `fast` numerics may."""
    found = measure(args, Amount.of(args))
    facts = measurement_facts() | {"pair": pair_name(args)} | found.facts
    show(make_console(), found.judged)
    if args.out is not None:
        args.out.write_text(markdown(facts, found))
        draw(found.judged, args.out.with_suffix(".svg"))
    print("RESULT " + json.dumps({"pair": pair_name(args)} | result(found, facts)))
    return 0 if found.is_sound else 1


def measure(args: argparse.Namespace, amount: Amount) -> TwoMachines:
    """Every contestant in every world, judged and predicted. Raises InvalidRequest where there are no two cores."""
    recorder, at = Recorder(), dict[Cell, Circumstances]()
    with ExitStack() as stack, make_progress() as progress:
        pair = stack.enter_context(DistantPair(args, two_machines(), hedge_acceptance=args.replay_hedge_acceptance))
        contestants = contestants_of(pair, amount.fixed)
        source = source_of(args, amount.max_tokens)
        prompts = make_prompts(pair.gateway, source.task(TASK), amount.num_prompts, args.prompt_seed, source)
        (apart,) = make_prompts(pair.gateway, source.task(TASK), 1, TUNING_SEED, source)
        pair.know([*_texts(contestants[0], prompts, amount.max_tokens), replayed_text(contestants[0], apart)])
        bar = progress.add_task("two machines", total=len(amount.worlds) * len(contestants) * amount.repeats)
        policies = [contestant.wishes.pacing for contestant in contestants]
        run = ReplayRun(tuple(prompts), TEMPERATURE, amount.max_tokens, amount.repeats, args.draft_us)
        for world in amount.worlds:
            pair.play(world)
            micro = MicroBenchmark(contestants[0], pair.verifier, pair.drafter, apart, policies=policies)
            record(cell_of(world), contestants, run, recorder, micro, lambda: progress.advance(bar))
            at[cell_of(world)] = circumstances(micro, world.acceptance, REPLAY_SEED, world.delay_us, args.replay_hedge_acceptance)
        rows = rows_of(list(at), contestants, recorder, lambda _: pair.verifier)
    judged = [judge(world, [row for row in rows if row.cell == cell_of(world)]) for world in amount.worlds]
    wishes = {contestant.name: contestant.wishes for contestant in contestants}
    flips = [flip for row in rows for flip in recorder.flips(row.cell, row.contestant)]
    facts = {
        "threads": pair.threads.describe(),
        "a replayed draft token": f"{args.draft_us} us",
        "a replayed second choice": f"right in {args.replay_hedge_acceptance:g} of mismatches",
    }
    return TwoMachines(rows, judged, len(flips), predicted(rows, wishes, at, shapes_in(recorder, prompts)), facts)


def contestants_of(pair: DistantPair, fixed: Sequence[DraftWishes]) -> list[Stack]:
    """Plain decoding, the fixed policies, and the one that is judged."""
    threads = pair.threads.describe()
    named = {PLAIN: DraftWishes("off")} | {f"outrider {wishes.text}": wishes for wishes in fixed} | {ADAPTIVE: DraftWishes("adaptive")}
    return [Stack(name, pair.gateway, wishes, threads) for name, wishes in named.items()]


def cell_of(world: World) -> Cell:
    """A world as a cell of the tables."""
    return Cell(f"{world.delay_us / 1000:g} ms, acceptance {world.acceptance:g}", TEMPERATURE)


def _texts(plain: Stack, prompts: Sequence[Prompt], max_tokens: int) -> list[tuple[int, ...]]:
    return [(*prompt.token_ids, *plain.answer(prompt, max_tokens, TEMPERATURE, seed).tokens) for seed, prompt in enumerate(prompts)]
