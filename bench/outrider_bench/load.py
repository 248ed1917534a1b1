"""Many requests at a time: `adaptive` with a good, a middling and a useless drafter beside plain batching (`outrider bench load`).

Two layouts: a core each (two machines), and every core for both (iso-hardware), where a drafter that is of no use must get out of the
way. Plain decoding is asked of a verifier that has a drafter (`draft.off`), and of one that has none: the difference is what a drafter
costs whom it does not help. All requests of a burst start together and have the same length; drafts are replayed. Repetitions in balanced
orders, medians. Then the requests come and go: each load follows the one before at once, up to the most and down again (the ramp),
so that nobody has time to get used to it; as often, and in such orders too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rich.table import Table

from outrider.cli.connection import CollectedAnswer, Connection
from outrider.cli.console import make_console
from outrider.errors import InvalidRequest
from outrider.launch.threads import ThreadPlan, plan_threads, usable_cores
from outrider_bench.contestants import DraftWishes, Stack
from outrider_bench.distant_pair import DistantPair, World, two_machines
from outrider_bench.facts import measurement_facts
from outrider_bench.lone_verifier import lone_verifier, without_drafter
from outrider_bench.markdown_table import markdown_table
from outrider_bench.measurement import Prompt, times
from outrider_bench.progress import make_progress
from outrider_bench.prompts import make_prompts, source_of
from outrider_bench.results import ADAPTIVE, MAX_FLIPS_PER_1000, PLAIN, first_difference
from outrider_bench.schedule import turns

SIZES = (1, 4, 16, 64)
QUICK_SIZES = (1, 8)
MAX_REQUESTS = 1024
ACCEPTANCES = (0.9, 0.7, 0.0)
QUICK_ACCEPTANCES = (0.7, 0.0)
TASK = "arithmetic"
TEMPERATURE = 0.0
TAIL = 0.99
ALONE = "outrider plain, no drafter attached"
CONTESTANTS = (PLAIN, ADAPTIVE, ALONE)
RAMP_ANSWERS = 4  # of each load of the ramp at least, one after another where few ask
WARM_SHARE = 4  # a quarter as many bursts come before those that count
MOST_REPEATED = 8  # so many bursts of a small load for one of the largest: a burst of one request is over in a twentieth of a second


@dataclass(frozen=True, slots=True)
class LoadCell:
    """layout: how the cores are shared. size: requests at a time. acceptance: of a drafted token; 0 is a useless drafter. stage: of the
    ramp; empty for bursts that were warmed up."""

    layout: str
    size: int
    acceptance: float
    stage: str = ""

    @property
    def requests(self) -> str:
        """How many, and when."""
        return f"{self.size} {self.stage}".rstrip()


@dataclass(frozen=True, slots=True)
class Burst:
    """What `size` requests gave together. token_ms: 99th percentile over tokens of the time since the delta before, shared among the
    tokens that came with it; the first delta of each request is left out."""

    tokens_per_s: float
    token_ms: float
    texts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LoadRow:
    """Medians over bursts. vs_plain: over `draft.off` beside a drafter; vs_alone: over plain decoding of a verifier that has none."""

    cell: LoadCell
    contestant: str
    tokens_per_s: float
    token_ms: float
    vs_plain: float
    vs_alone: float


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured."""

    sizes: tuple[int, ...]
    max_tokens: int
    repeats: int
    acceptances: tuple[float, ...] = ACCEPTANCES

    def repeats_of(self, size: int) -> int:
        """Bursts of `size` requests: by the root of how much shorter they are than the largest, so that all are about as sure."""
        return self.repeats * min(MOST_REPEATED, math.isqrt(max(self.sizes) // size))

    def warm_ups_of(self, size: int) -> int:
        """Bursts before those that count: what a policy learned of the drafter before is forgotten within some hundreds of tokens."""
        return max(1, self.repeats_of(size) // WARM_SHARE)

    @staticmethod
    def of(args: argparse.Namespace) -> Amount:
        """From the command line."""
        sizes = tuple(args.requests or (QUICK_SIZES if args.quick else SIZES))
        if any(not 1 <= size <= MAX_REQUESTS for size in sizes):
            raise InvalidRequest("--requests", f"must be in [1, {MAX_REQUESTS}], got {' '.join(map(str, sizes))}")
        acceptances = tuple(args.replay_acceptances or (QUICK_ACCEPTANCES if args.quick else ACCEPTANCES))
        return Amount(sizes, args.max_tokens or (32 if args.quick else 64), args.repeats or (1 if args.quick else 4), acceptances)


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 when texts differ from plain decoding more often than `fast` numerics may."""
    amount = Amount.of(args)
    layouts = {"two machines": two_machines(), "shared cores": plan_threads(len(usable_cores()), "adaptive", lends=True)}
    bursts: dict[tuple[LoadCell, str], list[Burst]] = {}
    with make_progress() as progress:
        asked = sum(map(amount.repeats_of, amount.sizes)) + len(ramp_of(amount.sizes)) * amount.repeats
        bar = progress.add_task("load", total=len(layouts) * len(amount.acceptances) * len(CONTESTANTS) * asked)
        for layout, threads in layouts.items():
            for cell, contestant, burst in measure(args, layout, threads, amount):
                bursts.setdefault((cell, contestant), []).append(burst)
                progress.advance(bar)
    rows = rows_of(bursts)
    num_flips, num_tokens = count_flips(bursts)
    facts = measurement_facts() | {"a replayed draft token": f"{args.draft_us} us"}
    facts |= {layout: f"{threads.describe()}; without a drafter {without_drafter(threads).verifier}" for layout, threads in layouts.items()}
    _show(rows)
    if args.out is not None:
        args.out.write_text(markdown(facts, rows, num_flips))
    print("RESULT " + json.dumps(result(rows, num_flips, facts)))
    return 0 if 1000.0 * num_flips <= MAX_FLIPS_PER_1000 * num_tokens else 1


def measure(args: argparse.Namespace, layout: str, threads: ThreadPlan, amount: Amount) -> Iterator[tuple[LoadCell, str, Burst]]:
    """Every burst of one layout."""
    most = max(amount.sizes)
    with DistantPair(args, threads, most) as pair, lone_verifier(args, threads, most) as alone, ThreadPoolExecutor(most) as pool:
        contestants = contestants_of(pair.gateway, alone, threads)
        source = source_of(args, amount.max_tokens)
        prompts = make_prompts(pair.gateway, source.task(TASK), most, args.prompt_seed, source)
        texts = burst(contestants[0], prompts, amount.max_tokens, pool).texts
        pair.know([(*prompt.token_ids, *text) for prompt, text in zip(prompts, texts, strict=True)])
        for acceptance in amount.acceptances:
            pair.play(World(0, acceptance))
            for size in amount.sizes:
                for contestant in contestants * amount.warm_ups_of(size):  # and let policies learn this drafter
                    burst(contestant, prompts[:size], amount.max_tokens, pool)
                for turn in turns([LoadCell(layout, size, acceptance)], len(contestants), amount.repeats_of(size)):
                    contestant = contestants[turn.contestant]
                    yield turn.cell, contestant.name, burst(contestant, prompts[:size], amount.max_tokens, pool)
            for ramp in turns([ramp_of(amount.sizes)], len(contestants), amount.repeats):
                contestant = contestants[ramp.contestant]
                for size, stage in ramp.cell:
                    rounds = -(-RAMP_ANSWERS // size)
                    asked = burst(contestant, prompts[:size], amount.max_tokens, pool, rounds)
                    yield LoadCell(layout, size, acceptance, stage), contestant.name, asked


def contestants_of(attached: Connection, alone: Connection, threads: ThreadPlan) -> list[Stack]:
    """In the order of CONTESTANTS. attached, alone: to gateways of verifiers with a drafter and without one."""
    described = without_drafter(threads).describe()
    return [
        Stack(PLAIN, attached, DraftWishes("off"), threads.describe()),
        Stack(ADAPTIVE, attached, DraftWishes("adaptive"), threads.describe()),
        Stack(ALONE, alone, DraftWishes("off"), described),
    ]


def ramp_of(sizes: Sequence[int]) -> list[tuple[int, str]]:
    """Loads that follow one another, each with its stage: from the least up to the most and down again."""
    rising = sorted(set(sizes))
    up = [(size, "going up") for size in rising[:-1]]
    return [*up, (rising[-1], "at the top"), *((size, "going down") for size, _ in reversed(up))]


def burst(contestant: Stack, prompts: Sequence[Prompt], max_tokens: int, pool: ThreadPoolExecutor, num_rounds: int = 1) -> Burst:
    """Ask all prompts at once and wait for the last. num_rounds: so often each, again as soon as it was answered."""

    def ask(prompt: Prompt) -> list[CollectedAnswer]:
        request = contestant.request(prompt, max_tokens, TEMPERATURE, seed=0)
        request.ignore_eos = True
        return [contestant.gateway.ask(request) for _ in range(num_rounds)]

    begun_s = time.perf_counter()
    answers = [answer for asked in pool.map(ask, prompts) for answer in asked]
    took_s = time.perf_counter() - begun_s
    times_ms = [each for answer in answers for each in token_times_ms(answer.first.arrivals)]
    texts = tuple(tuple(answer.first.token_ids) for answer in answers)
    return Burst(sum(map(len, texts)) / took_s, percentile(times_ms, TAIL), texts)


def token_times_ms(arrivals: Sequence[tuple[float, int]]) -> list[float]:
    """Per token after the first delta: its share of the time since the delta before. arrivals: (seconds, tokens)."""
    times: list[float] = []
    for (before_s, _), (now_s, num_tokens) in itertools.pairwise(arrivals):
        times += [1000.0 * (now_s - before_s) / num_tokens] * num_tokens
    return times


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them do not exceed; 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * round(1000 * share) // 1000) - 1))]


def rows_of(bursts: dict[tuple[LoadCell, str], list[Burst]]) -> list[LoadRow]:
    """Medians, each beside both kinds of plain decoding in the same cell."""
    speeds = {key: [each.tokens_per_s for each in found] for key, found in bursts.items()}
    return [
        LoadRow(
            cell,
            name,
            statistics.median(own),
            statistics.median(each.token_ms for each in bursts[cell, name]),
            times(own, speeds[cell, PLAIN]),
            times(own, speeds[cell, ALONE]),
        )
        for (cell, name), own in speeds.items()
    ]


def count_flips(bursts: dict[tuple[LoadCell, str], list[Burst]]) -> tuple[int, int]:
    """Texts unlike plain decoding's first ones in the same cell, and tokens in all."""
    num_flips = num_tokens = 0
    for (cell, _), found in bursts.items():
        truth = bursts[cell, PLAIN][0].texts
        for each in found:
            num_flips += sum(first_difference(ours, plain) is not None for ours, plain in zip(each.texts, truth, strict=True))
            num_tokens += sum(map(len, each.texts))
    return num_flips, num_tokens


_HEADINGS = ("cores", "requests", "acceptance", "contestant", "tokens/s", "x plain", "x no drafter", "p99 ms a token")


def _cells(row: LoadRow) -> tuple[str, ...]:
    cell = row.cell
    speed = (f"{row.tokens_per_s:.0f}", f"{row.vs_plain:.2f}", f"{row.vs_alone:.2f}", f"{row.token_ms:.1f}")
    return (cell.layout, cell.requests, f"{cell.acceptance:g}", row.contestant, *speed)


def _show(rows: Sequence[LoadRow]) -> None:
    shown = Table(*_HEADINGS, title="many requests at a time")
    for row in rows:
        shown.add_row(*_cells(row))
    make_console().print(shown)


def markdown(facts: dict[str, str], rows: Sequence[LoadRow], num_flips: int) -> str:
    """The whole report."""
    lines = ["## Many requests at a time", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += markdown_table(_HEADINGS, map(_cells, rows))
    return "\n".join([*lines, "", f"Texts that differ from plain decoding: {num_flips}.", ""])


def result(rows: Sequence[LoadRow], num_flips: int, facts: dict[str, str]) -> dict[str, object]:
    """The RESULT line's values: the worst ratios of each layout, of bursts and of the ramp."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        name, ramp = row.cell.layout.replace(" ", "_"), "ramp_" if row.cell.stage else ""
        if row.contestant == ADAPTIVE:
            ratios.setdefault(f"load_{ramp}min_vs_plain_{name}", []).append(row.vs_plain)
        if row.contestant == PLAIN and not ramp:
            ratios.setdefault(f"load_min_off_vs_no_drafter_{name}", []).append(row.vs_alone)
    worst = {name: round(min(found), 3) for name, found in ratios.items()}
    cells = [dict(zip(_HEADINGS, _cells(row), strict=True)) for row in rows]
    return {**worst, "identical": num_flips == 0, "num_flips": num_flips, "facts": facts, "cells": cells}
