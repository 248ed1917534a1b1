"""`outrider bench grid`: tokens per second of 1, 2 drafters x 1, 2 verifiers as real processes on this machine, beside the simulation's.

Each cell is placed by a coordinator of its own and asked the same seeded requests, some at a time; cells take turns in balanced orders.
The prediction is made of micro-benchmarks that are sampled between turns. Answers must be plain decoding's, token for token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from outrider.cli.connection import CollectedAnswer
from outrider.cli.console import make_console
from outrider.cli.deployment_options import model_path
from outrider.errors import InvalidRequest
from outrider.launch.threads import usable_cores
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider_bench.contestants import DraftWishes, Stack
from outrider_bench.facts import measurement_facts, pair_name
from outrider_bench.grid.costs import Costs, Pair, Trace, acceptance
from outrider_bench.grid.direct_drafts import Asked, traces_of
from outrider_bench.grid.micro import GridMicro
from outrider_bench.grid.report import GridFound, GridRow, markdown, result, show
from outrider_bench.grid.simulated_grid import GridWorld, SimulatedGrid
from outrider_bench.grid.site import COMMON, GridSite
from outrider_bench.grid.step_times import load_target
from outrider_bench.measurement import Prompt
from outrider_bench.progress import make_progress
from outrider_bench.prompts import TUNING_SEED, make_prompts
from outrider_bench.results import PLAIN
from outrider_bench.schedule import turns

PAIRS = tuple(Pair(drafters, verifiers) for verifiers in (1, 2) for drafters in (1, 2))
TEMPERATURES = (0.0, 0.8)  # in turn, by request
AT_A_TIME, QUICK_AT_A_TIME = 4, 2
TURNS_A_SAMPLE = 2  # of the micro-benchmarks: the machine's slow moments should be theirs as often as the cells'
MAX_AT_A_TIME = 64


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured: prompts of each task, tokens an answer may have, bursts of each cell, requests at a time."""

    tasks: tuple[str, ...]
    num_prompts: int
    max_tokens: int
    repeats: int
    at_a_time: int
    policy: str

    @staticmethod
    def of(args: argparse.Namespace) -> Amount:
        """From the command line; raises InvalidRequest naming the option."""
        few = (1, 32, 1, QUICK_AT_A_TIME) if args.quick else (4, 128, 5, AT_A_TIME)
        at_a_time = args.requests or [few[3]]
        if len(at_a_time) != 1 or not 1 <= at_a_time[0] <= MAX_AT_A_TIME:
            raise InvalidRequest("requests", f"is one number here, in [1, {MAX_AT_A_TIME}]: how many at a time")
        if len(args.policies) != 1:
            raise InvalidRequest("policies", "is one name here: the policy of every request")
        return Amount(
            tuple(args.tasks), args.prompts or few[0], args.max_tokens or few[1], args.repeats or few[2], at_a_time[0], args.policies[0]
        )


@dataclass(frozen=True, slots=True)
class Question:
    """A seeded request, and plain decoding's answer to it."""

    prompt: Prompt
    temperature: float
    seed: int
    truth: tuple[int, ...]

    def asked(self) -> Asked:
        """As a drafter is asked directly."""
        tokens = (*self.prompt.token_ids, *self.truth)
        return Asked(tokens, len(self.prompt.token_ids), SamplingParams(temperature=self.temperature), NoiseAddress(self.seed))


@dataclass(frozen=True, slots=True)
class Burst:
    """What all requests gave together, so many at a time. num_different: answers that are not the truth. num_drafted: with guesses."""

    tokens_per_s: float
    num_different: int
    num_drafted: int


def run(args: argparse.Namespace) -> int:
    """Measure, predict, print, write; 1 when an answer differs from plain decoding."""
    found = measure(args, Amount.of(args))
    facts = measurement_facts() | {"pair": pair_name(args)} | dict(found.facts)
    show(make_console(), found)
    if args.out is not None:
        args.out.write_text(markdown(facts, found), encoding="utf-8")
    print("RESULT " + json.dumps({"pair": pair_name(args)} | result(found, facts)))
    return 0 if not found.num_different else 1


def measure(args: argparse.Namespace, amount: Amount) -> GridFound:
    """Every cell, and what is predicted for it."""
    models = model_path(args.target), model_path(args.draft)
    with (
        tempfile.TemporaryDirectory(prefix="outrider-grid-") as folder,
        make_progress() as progress,
        GridSite(*models, args.dtype, PAIRS, Path(folder)) as site,
    ):
        plain = Stack(PLAIN, site.micro_gateway, DraftWishes("off"), "")
        other = Stack(PLAIN, site.gateways[PAIRS[0]], DraftWishes("off"), "")
        questions = make_questions(plain, amount, args.prompt_seed)
        asked = [question.asked() for question in questions]
        traces = traces_of(site.drafters[0].endpoint, site.micro_info.identity, asked)
        (apart,) = make_prompts(site.micro_gateway, amount.tasks[0], 1, TUNING_SEED)
        target = load_target(models[0], ("--dtype", args.dtype, *COMMON))
        micro = GridMicro(
            target, plain, other, site.micro_info.identity, site.drafters[0].endpoint, apart,
            asked[: amount.at_a_time], (site.micro_gateway_pid, site.drafters[0].pid), len(usable_cores()),
        )  # fmt: skip
        bar = progress.add_task("grid", total=len(PAIRS) * (1 + amount.repeats))
        bursts: dict[Pair, list[Burst]] = {pair: [] for pair in PAIRS}
        with ThreadPoolExecutor(amount.at_a_time) as pool:
            stacks = [Stack(pair.name, site.gateways[pair], DraftWishes(amount.policy), "") for pair in PAIRS]
            for stack in stacks:  # warm, and let everybody learn
                ask_all(stack, questions, amount.max_tokens, pool)
                progress.advance(bar)
            for number, turn in enumerate(turns(("grid",), len(PAIRS), amount.repeats)):
                if number % TURNS_A_SAMPLE == 0:
                    micro.sample()
                bursts[PAIRS[turn.contestant]].append(ask_all(stacks[turn.contestant], questions, amount.max_tokens, pool))
                progress.advance(bar)
        costs = micro.result()
    rows = [row_of(pair, found, predict(pair, costs, traces, amount), len(questions)) for pair, found in bursts.items()]
    num_different = sum(burst.num_different for found in bursts.values() for burst in found)
    return GridFound(rows, costs, num_different, facts_of(amount, questions, traces))


def make_questions(plain: Stack, amount: Amount, seed: int) -> list[Question]:
    """The requests of every burst, tasks and temperatures in turn, each answered plainly once."""
    by_task = [make_prompts(plain.gateway, task, amount.num_prompts, seed) for task in amount.tasks]
    prompts = [prompt for together in zip(*by_task, strict=True) for prompt in together]
    questions = []
    for number, prompt in enumerate(prompts):
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        answer = plain.answer(prompt, amount.max_tokens, temperature, number)
        questions.append(Question(prompt, temperature, number, answer.tokens))
    return questions


def ask_all(stack: Stack, questions: Sequence[Question], max_tokens: int, pool: ThreadPoolExecutor) -> Burst:
    """Ask every question, as many at a time as the pool has threads, and wait for the last answer."""

    def ask(question: Question) -> CollectedAnswer:
        return stack.gateway.ask(stack.request(question.prompt, max_tokens, question.temperature, question.seed))

    begun_s = time.perf_counter()
    answers = list(pool.map(ask, questions))
    took_s = time.perf_counter() - begun_s
    different = [tuple(answer.first.token_ids) != question.truth for answer, question in zip(answers, questions, strict=True)]
    num_drafted = sum(answer.first.finished.statistics.num_drafted > 0 for answer in answers)
    return Burst(sum(answer.num_tokens for answer in answers) / took_s, sum(different), num_drafted)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Means over simulated bursts."""

    tokens_per_s: float
    drafted_share: float


def predict(pair: Pair, costs: Costs, traces: Sequence[Trace], amount: Amount) -> Predicted:
    """The same requests on virtual time, as many bursts as were measured. Raises StuckError when the policy makes no progress."""
    world = GridWorld(pair, costs, tuple(traces), amount.at_a_time, len(usable_cores()), amount.policy, amount.max_tokens)
    grid = SimulatedGrid(world)
    grid.burst()  # let everybody learn
    bursts = [grid.burst() for _ in range(amount.repeats)]
    speeds, shares = ([getattr(burst, name) for burst in bursts] for name in ("tokens_per_s", "drafted_share"))
    return Predicted(statistics.mean(speeds), statistics.mean(shares))


def row_of(pair: Pair, bursts: Sequence[Burst], predicted: Predicted, num_questions: int) -> GridRow:
    """Medians over bursts beside the prediction."""
    speeds = [burst.tokens_per_s for burst in bursts]
    median = statistics.median(speeds)
    drafted = statistics.mean(burst.num_drafted for burst in bursts) / num_questions
    return GridRow(pair, median, (max(speeds) - min(speeds)) / median, drafted, predicted.tokens_per_s, predicted.drafted_share)


def facts_of(amount: Amount, questions: Sequence[Question], traces: Sequence[Trace]) -> Mapping[str, str]:
    """What was asked of whom."""
    num_tokens = sum(len(question.truth) for question in questions)
    return {
        "policy": amount.policy,
        "requests": f"{len(questions)} a burst, {amount.at_a_time} at a time, {num_tokens} tokens in all, T = 0 and 0.8 in turn",
        "guesses right": f"{acceptance(traces):.3f} of all places",
        "cores": f"{len(usable_cores())}, shared by whoever is busy; one compute thread a process",
    }
