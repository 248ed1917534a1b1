"""The two-machine table: every policy with a drafter on a core of its own, some milliseconds away (`outrider bench network`).

Drafts are replayed with a fixed acceptance at a fixed pace, so that a cell is a world: a delay and an acceptance. Repetitions in rotated
order, medians. Must not know how worlds are judged or shown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from outrider.cli.console import make_console
from outrider_bench.contestants import DraftWishes, Stack, verify_ms
from outrider_bench.distant_pair import DistantPair, World, two_machines
from outrider_bench.facts import measurement_facts
from outrider_bench.measurement import Prompt
from outrider_bench.network_report import JUDGED, draw, judge, markdown, result, show
from outrider_bench.progress import make_progress
from outrider_bench.prompts import REPORTING_SEED, make_prompts
from outrider_bench.results import PLAIN, Cell, Recorder, Row
from outrider_bench.schedule import turns

# What an operator could have fixed: either policy with the length it finds by itself, and held to shorter ones.
FIXED = tuple(DraftWishes(policy, longest) for policy in ("serial", "pearl") for longest in (None, 2, 4, 8))
QUICK_FIXED = (DraftWishes("serial"), DraftWishes("pearl"))
DELAYS_MS, ACCEPTANCES = (0.0, 1.0, 5.0, 20.0), (0.5, 0.7, 0.9)
QUICK_DELAYS_MS, QUICK_ACCEPTANCES = (5.0,), (0.7,)
TASK = "arithmetic"
TEMPERATURE = 0.0
MAX_FLIPS_PER_1000 = 1.0  # near ties flip in `fast` numerics; more than this is a bug


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
        worlds = tuple(World(round(1000 * delay_ms), acceptance) for delay_ms in delays_ms for acceptance in acceptances)
        if args.quick:
            return Amount(worlds, args.prompts or 1, args.max_tokens or 64, args.repeats or 1, QUICK_FIXED)
        return Amount(worlds, args.prompts or 2, args.max_tokens or 96, args.repeats or 5, FIXED)


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 when answers differ from plain decoding more often than `fast` numerics may."""
    amount, recorder = Amount.of(args), Recorder()
    with ExitStack() as stack, make_progress() as progress:
        pair = stack.enter_context(DistantPair(args, two_machines()))
        contestants = contestants_of(pair, amount.fixed)
        bar = progress.add_task("two machines", total=len(amount.worlds) * len(contestants) * amount.repeats)
        for _ in measure(pair, contestants, amount, recorder):
            progress.advance(bar)
        rows = rows_of(amount.worlds, contestants, recorder, pair)
    flips = [flip for row in rows for flip in recorder.flips(row.cell, row.contestant)]
    judged = [judge(world, [row for row in rows if row.cell == cell_of(world)]) for world in amount.worlds]
    facts = measurement_facts() | {"threads": pair.threads.describe(), "a replayed draft token": f"{args.draft_us} us"}
    show(make_console(), judged)
    if args.out is not None:
        args.out.write_text(markdown(facts, rows, judged, len(flips)))
        draw(judged, args.out.with_suffix(".svg"))
    print("RESULT " + json.dumps(result(judged, rows, len(flips), facts)))
    return 0 if 1000.0 * len(flips) <= MAX_FLIPS_PER_1000 * sum(row.summary.num_tokens for row in rows) else 1


def contestants_of(pair: DistantPair, fixed: Sequence[DraftWishes]) -> list[Stack]:
    """Plain decoding, the fixed policies, and the one that is judged."""
    threads = pair.threads.describe()
    named = {PLAIN: DraftWishes("off")} | {f"outrider {wishes.text}": wishes for wishes in fixed} | {JUDGED: DraftWishes("adaptive")}
    return [Stack(name, pair.gateway, wishes, threads) for name, wishes in named.items()]


def measure(pair: DistantPair, contestants: Sequence[Stack], amount: Amount, recorder: Recorder) -> Iterator[None]:
    """Record every contestant in every world; yields after each turn."""
    prompts = make_prompts(pair.gateway, TASK, amount.num_prompts, REPORTING_SEED)
    pair.know(_texts(contestants[0], prompts, amount.max_tokens))
    for world in amount.worlds:
        pair.play(world)
        for contestant in contestants:  # warm, and let policies learn this world
            contestant.answer(prompts[0], amount.max_tokens, TEMPERATURE, 0)
        for turn in turns([cell_of(world)], len(contestants), amount.repeats):
            contestant = contestants[turn.contestant]
            for seed, prompt in enumerate(prompts):
                answer = contestant.answer(prompt, amount.max_tokens, TEMPERATURE, seed)
                recorder.add(turn.cell, contestant.name, turn.repetition, answer)
            yield


def cell_of(world: World) -> Cell:
    """A world as a cell of the tables."""
    return Cell(f"{world.delay_us / 1000:g} ms, acceptance {world.acceptance:g}", TEMPERATURE)


def rows_of(worlds: Sequence[World], contestants: Sequence[Stack], recorder: Recorder, pair: DistantPair) -> list[Row]:
    """Medians of every contestant in every world, with the share of the bound: the verify forward alone, as measured at start."""
    rows = []
    for cell in map(cell_of, worlds):
        for contestant in contestants:
            summary, spread = recorder.summary(cell, contestant.name)
            forward_ms = verify_ms(pair.verifier, 1 + summary.drafted_per_round)
            bound_share = summary.tokens_per_s * forward_ms / (1000.0 * summary.mean_emitted_per_round)
            rows.append(Row(cell, contestant.name, summary, spread, bound_share))
    return rows


def _texts(plain: Stack, prompts: Sequence[Prompt], max_tokens: int) -> list[tuple[int, ...]]:
    return [(*prompt.token_ids, *plain.answer(prompt, max_tokens, TEMPERATURE, seed).tokens) for seed, prompt in enumerate(prompts)]
