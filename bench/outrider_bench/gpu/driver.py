"""`outrider bench gpu`: the full stack with a large random target on a card and replayed drafts, against plain decoding with CUDA graphs.

Gateway, verifier and a replaying drafter as real processes of one machine; `serial`, `adaptive` and `pearl` beside plain decoding, and
beside transformers' generate in a process of its own on the same device (`batches.py`), at some acceptances, temperatures and numbers of
requests at a time, in balanced orders, medians, every answer compared with plain decoding's, and every cell beside what the simulator makes
of micro-benchmarks of the same minutes. Must not know how numbers are shown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from rich.progress import Progress

from outrider.cli.console import make_console
from outrider.errors import InvalidRequest
from outrider.launch.threads import ThreadPlan, usable_cores
from outrider_bench.baseline import TransformersBaseline, generate_candidates
from outrider_bench.contestants import DraftWishes, Stack
from outrider_bench.distant_pair import DistantPair, World
from outrider_bench.facts import measurement_facts
from outrider_bench.gpu.batches import Batches, choose
from outrider_bench.gpu.bursts import Burst, burst, random_prompts, texts_of
from outrider_bench.gpu.card import Card, find_card
from outrider_bench.gpu.micro import BurstCosts, BurstMicro
from outrider_bench.gpu.prediction import predict
from outrider_bench.gpu.report import GpuCell, GpuFound, count_flips, draw, markdown, num_generate_unlike, result, rows_of, show
from outrider_bench.gpu.shapes import MAX_POSITIONS, SIZES, TargetShape, draft_us
from outrider_bench.gpu.target_folder import find_or_write, targets_folder
from outrider_bench.measurement import Prompt
from outrider_bench.micro import PLAIN_TOKENS, MicroBenchmark
from outrider_bench.progress import make_progress
from outrider_bench.prompts import TUNING_SEED
from outrider_bench.results import GENERATE, PLAIN
from outrider_bench.schedule import turns
from outrider_bench.simulation.world import Shape

# Plain decoding first; the others with draft lengths of their own finding and no guesses but the drafter's.
CONTESTANTS = {PLAIN: DraftWishes("off")} | {
    f"outrider {policy}": DraftWishes(policy, no_lookup=True) for policy in ("serial", "adaptive", "pearl")
}
ACCEPTANCES, QUICK_ACCEPTANCES = (0.6, 0.8, 0.9), (0.8,)
TEMPERATURES = (0.0, 0.8)
REQUESTS, QUICK_REQUESTS = (1, 16), (1, 4)
MAX_AT_A_TIME = 64
REPEATS, MAX_TOKENS = 5, 128
QUICK_REPEATS, QUICK_MAX_TOKENS = 1, 32
PROMPT_LEN = 64  # as long as the curve of steps is
DTYPE = "bfloat16"
MAX_VERIFIER_THREADS = 4  # beside a card they only prepare steps
MIB = 1 << 20
ENGINE_LOGGER, MAX_ENGINE_LINES = " outrider.engine.", 4
START_S = 900.0  # tens of gigabytes are read three times: for their hash, to be served, and to be checked against
SPARE_TOKENS = 128  # of the cache for each request: guesses, and blocks begun


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured. requests: at a time, one number after another. max_tokens: of every answer."""

    acceptances: tuple[float, ...]
    temperatures: tuple[float, ...]
    requests: tuple[int, ...]
    max_tokens: int
    repeats: int

    @staticmethod
    def of(args: argparse.Namespace) -> Amount:
        """From the command line. Raises InvalidRequest naming the option."""
        quick = args.quick
        requests = tuple(args.requests or (QUICK_REQUESTS if quick else REQUESTS))
        if not all(1 <= num <= MAX_AT_A_TIME for num in requests):
            raise InvalidRequest("--requests", f"must be in [1, {MAX_AT_A_TIME}] here, got {' '.join(map(str, requests))}")
        max_tokens = args.max_tokens or (QUICK_MAX_TOKENS if quick else MAX_TOKENS)
        if not 2 <= max_tokens <= MAX_POSITIONS - PROMPT_LEN - SPARE_TOKENS:
            raise InvalidRequest("--max-tokens", f"must be in [2, {MAX_POSITIONS - PROMPT_LEN - SPARE_TOKENS}] here, got {max_tokens}")
        repeats = args.repeats or (QUICK_REPEATS if quick else REPEATS)
        acceptances = tuple(args.replay_acceptances or (QUICK_ACCEPTANCES if quick else ACCEPTANCES))
        return Amount(acceptances, TEMPERATURES, requests, max_tokens, repeats)

    @property
    def most_requests(self) -> int:
        """At a time."""
        return max(self.requests)

    def cells(self, acceptance: float) -> list[GpuCell]:
        """Of one acceptance."""
        return [GpuCell(temperature, num, acceptance) for temperature in self.temperatures for num in self.requests]

    def cache_bytes(self, shape: TargetShape) -> int:
        """Of the verifier's cache, whole mebibytes."""
        tokens = self.most_requests * (PROMPT_LEN + max(self.max_tokens, PLAIN_TOKENS) + SPARE_TOKENS)
        return -(-tokens * shape.kv_bytes // MIB) * MIB


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 when answers differ from plain decoding more often than `fast` numerics may.

    Raises Unavailable, before anything ran, without the card, the memory or the disk space it takes.
    """
    amount, shape = Amount.of(args), SIZES[args.size]
    card = find_card(args.device)
    card.check_room(args.size, shape, amount.cache_bytes(shape))
    token_us = draft_us(shape, card.copy_bytes_per_s) if args.draft_ms is None else round(1000 * args.draft_ms)
    target, draft = find_or_write(args.size, targets_folder())
    served = argparse.Namespace(target=target, draft=draft, dtype=DTYPE, draft_us=token_us)
    found = measure(served, args.device, shape, amount, args.prompt_seed, has_generate=not args.no_generate)
    facts = measurement_facts() | dict(card.facts) | stack_facts(args, shape, amount, card, token_us)
    facts |= {"engine's log": found.engine_log, GENERATE: found.generate_settings}
    show(make_console(), found)
    if args.out is not None:
        args.out.write_text(markdown(facts, found))
        draw(found.rows, args.out.with_suffix(".svg"))
    print("RESULT " + json.dumps(result(found, facts)))
    return 0 if found.is_sound else 1


def stack_facts(args: argparse.Namespace, shape: TargetShape, amount: Amount, card: Card, token_us: int) -> dict[str, str]:
    """What was served, and how it was asked."""
    paced = "a twentieth of those bytes at the speed of a copy" if args.draft_ms is None else "as the command line says"
    read_gb, speed = shape.step_bytes / 1e9, card.copy_bytes_per_s / 1e12
    return {
        "target": f"{args.size}: {shape.num_parameters / 1e9:.2f} billion random numbers, {DTYPE}, on {args.device}; its text is gibberish",
        "a step reads at least": f"{read_gb:.2f} GB of weights, {1e3 * read_gb / (1e3 * speed):.3f} ms at the speed of a copy",
        "a replayed draft token": f"{token_us} us ({paced}); no guesses but replayed ones",
        "requests": f"prompts of {PROMPT_LEN} random ids, answers of {amount.max_tokens} tokens, {amount.repeats} repetitions",
        "threads": threads().describe(),
    }


def threads() -> ThreadPlan:
    """A replaying drafter waits, so that one thread is more than it needs."""
    return ThreadPlan(verifier=max(1, min(MAX_VERIFIER_THREADS, len(usable_cores()) - 1)), drafter=1)


def measure(
    served: argparse.Namespace, device: str, shape: TargetShape, amount: Amount, prompt_seed: int, *, has_generate: bool
) -> GpuFound:
    """served: target, draft, dtype and draft_us, as DistantPair takes them. has_generate: whether transformers' is a contestant. Raises
    what a start raises."""
    options = ("--device", device, "--kv-mib", str(amount.cache_bytes(shape) // MIB))
    with ExitStack() as stack, make_progress() as progress:
        pair = stack.enter_context(DistantPair(served, threads(), amount.most_requests, verifier_extra=options, start_s=START_S))
        pool = stack.enter_context(ThreadPoolExecutor(amount.most_requests))
        engine_log = said_by_engine(pair.verifier_log)
        prompts = _Prompts(amount, shape.num_ids, prompt_seed)
        batches: Batches | None = None
        if has_generate:
            # Only now: until the verifier is up, its own check holds the target twice.
            baseline = stack.enter_context(TransformersBaseline(served.target, None, DTYPE, threads().verifier, device))
            apart = prompts.apart[amount.temperatures[0]]
            batches = choose(baseline.answer_together, generate_candidates(device), apart, amount.requests, amount.max_tokens)
        bench = _GpuBench(pair, amount, prompts, pool, batches)
        bench.learn_truths()
        bar = progress.add_task("measuring", total=amount.repeats * len(amount.acceptances) * bench.turns_of_an_acceptance)
        for acceptance in amount.acceptances:
            for _ in bench.record(acceptance):
                progress.advance(bar)
        simulated = _simulated(bench.costs, Shape(PROMPT_LEN, amount.max_tokens), progress)
    rows, unlike = rows_of(bench.bursts, simulated), num_generate_unlike(bench.bursts, bench.truths)
    settings = "left out" if batches is None else batches.described
    return GpuFound(rows, bench.costs, *count_flips(bench.bursts, bench.truths), engine_log, unlike, settings)


def said_by_engine(log: str) -> str:
    """The last lines of a verifier's log that its engine wrote while it loaded: whether steps are recorded graphs, or why they are not."""
    lines = [line.split(ENGINE_LOGGER, 1)[1].split(": ", 1)[-1] for line in log.splitlines() if ENGINE_LOGGER in line]
    return "; ".join(lines[-MAX_ENGINE_LINES:]) or "nothing was said"


class _Prompts:
    """By temperature: those of the cells, and those of the micro-benchmarks. No two are alike, for a replaying drafter finds an answer by
    its prompt."""

    def __init__(self, amount: Amount, num_ids: int, seed: int) -> None:
        num = amount.most_requests
        reported = random_prompts(num * len(amount.temperatures), PROMPT_LEN, num_ids, seed)
        apart = random_prompts(num * len(amount.temperatures), PROMPT_LEN, num_ids, TUNING_SEED)
        begins = [(temperature, number * num) for number, temperature in enumerate(amount.temperatures)]
        self.reported = {temperature: reported[begin : begin + num] for temperature, begin in begins}
        self.apart = {temperature: apart[begin : begin + num] for temperature, begin in begins}


class _GpuBench:
    """One deployment. truths: plain answers by temperature. bursts: of every contestant in every cell; costs: of every cell."""

    def __init__(self, pair: DistantPair, amount: Amount, prompts: _Prompts, pool: Executor, batches: Batches | None) -> None:
        self.truths: dict[float, list[tuple[int, ...]]] = {}
        self.bursts: dict[tuple[GpuCell, str], list[Burst]] = {}
        self.costs: dict[GpuCell, BurstCosts] = {}
        self._pair, self._amount, self._prompts, self._pool = pair, amount, prompts, pool
        self._contestants = [Stack(name, pair.gateway, wishes, pair.threads.describe()) for name, wishes in CONTESTANTS.items()]
        self._batches = batches
        self._names = [*CONTESTANTS] if batches is None else [GENERATE, *CONTESTANTS]
        self._apart_texts: dict[float, list[tuple[int, ...]]] = {}

    @property
    def turns_of_an_acceptance(self) -> int:
        """In one repetition."""
        return len(self._amount.cells(0.0)) * len(self._names)

    def learn_truths(self) -> None:
        """Plain answers to all prompts, which the drafter of every later cell replays."""
        known: list[tuple[int, ...]] = []
        for temperature in self._amount.temperatures:
            reported, apart = self._prompts.reported[temperature], self._prompts.apart[temperature]
            found = self._burst(self._contestants[0], reported, temperature, self._amount.max_tokens)
            self.truths[temperature] = [answer.tokens for answer in found.answers]
            self._apart_texts[temperature] = texts_of(apart, self._burst(self._contestants[0], apart, temperature, PLAIN_TOKENS))
            known += [*texts_of(reported, found), *self._apart_texts[temperature]]
        self._pair.know(known)

    def record(self, acceptance: float) -> Iterator[None]:
        """Everything with drafts of this acceptance; yields after every burst that counts."""
        self._pair.play(World(0, acceptance))
        cells = self._amount.cells(acceptance)
        single, together = self._micros(cells)
        for cell in cells:
            for name in self._names:  # warm, and let policies learn this drafter
                self._ask(name, cell)
        sampled = -1
        for turn in turns(cells, len(self._names), self._amount.repeats):
            if turn.repetition != sampled:
                sampled = turn.repetition
                for one in single.values():
                    one.sample()
                for several in together.values():
                    several.sample()
            name = self._names[turn.contestant]
            self.bursts.setdefault((turn.cell, name), []).append(self._ask(name, turn.cell))
            yield
        self.costs |= {cell: together[cell].result(single[cell.temperature].result()) for cell in cells}

    def _micros(self, cells: Sequence[GpuCell]) -> tuple[dict[float, MicroBenchmark], dict[GpuCell, BurstMicro]]:
        plain, pair, apart = self._contestants[0], self._pair, self._prompts.apart
        single = {
            temperature: MicroBenchmark(plain, pair.verifier, pair.drafter, apart[temperature][0], temperature)
            for temperature in self._amount.temperatures
        }
        together = {cell: self._burst_micro(cell) for cell in cells}
        return single, together

    def _burst_micro(self, cell: GpuCell) -> BurstMicro:
        num, temperature, pair = cell.num_requests, cell.temperature, self._pair
        prompts, texts = self._prompts.apart[temperature][:num], self._apart_texts[temperature][:num]
        return BurstMicro(self._contestants[0], prompts, texts, temperature, pair.drafter, pair.verifier.identity, self._pool)

    def _ask(self, name: str, cell: GpuCell) -> Burst:
        prompts = self._prompts.reported[cell.temperature][: cell.num_requests]
        if name == GENERATE:
            assert self._batches is not None
            return self._batches.burst(prompts, self._amount.max_tokens, cell.temperature)
        contestant = next(each for each in self._contestants if each.name == name)
        return self._burst(contestant, prompts, cell.temperature, self._amount.max_tokens)

    def _burst(self, contestant: Stack, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> Burst:
        return burst(contestant, prompts, max_tokens, temperature, self._pool)


def _simulated(costs: Mapping[GpuCell, BurstCosts], shape: Shape, progress: Progress) -> dict[tuple[GpuCell, str], float]:
    """Tokens per second of every contestant in every cell, as the simulator has them."""
    found: dict[tuple[GpuCell, str], float] = {}
    for cell, name in progress.track([(cell, name) for cell in costs for name in CONTESTANTS], description="simulating"):
        found[cell, name] = predict(CONTESTANTS[name], costs[cell], cell.acceptance, cell.num_requests, shape)
    return found
