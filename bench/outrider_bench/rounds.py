"""What a round costs beside the model: microseconds and function calls by part, of plain and serial rounds, with and without a model; and
what a message and a request cost on the event loop.

The replay engine's forward costs nothing, so its rounds are our Python alone; the target's show what of it the model hides. Times are the
least of each part over all rounds, which other work on the machine lengthens least. Calls are the middle of each part: other work
bears on them only where something falls due by the clock (a snapshot in `rest`, a deadline in `session`). Must not know how rounds are run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table

from outrider.cli.console import make_console
from outrider.cli.deployment_options import model_path
from outrider.engine.config import DType, EngineConfig, EngineKind
from outrider.engine.contract import Engine, EngineLimits
from outrider.engine.load import load_engine
from outrider.engine.replay_engine import ReplayEngine, ReplayScript, replay_identity
from outrider.errors import InvalidRequest
from outrider.types.identity import ModelIdentity, Numerics
from outrider_bench.facts import measurement_facts
from outrider_bench.markdown_table import markdown_table
from outrider_bench.message_cost import MessageLoop
from outrider_bench.part_clock import PartClock
from outrider_bench.request_cost import PHASES, RequestLoop
from outrider_bench.round_loop import PROMPT_LEN, STEP, RoundLoop, Task

DRAFT_LEN = 12
MAX_TOKENS, QUICK_TOKENS = 1500, 200
REPEATS, QUICK_REPEATS = 3, 1
NUM_THREADS = 2
NUM_MESSAGES = 100
MESSAGE_TOKENS = (1, 13)
NUM_REQUESTS = 100
WARM_ROUNDS = 4
LEAST_TOKENS = 2 + WARM_ROUNDS * (1 + DRAFT_LEN)  # of an answer: with guesses too a round is left between the first ones and the last
REPLAY_VOCAB = 4096
TOTAL = "ours in all"


@dataclass(frozen=True, slots=True)
class PartCost:
    """Of one part of a round, or of all."""

    least_us: float
    num_calls: float


Parted = dict[str, dict[str, PartCost]]  # of each kind of message, or phase of a request


@dataclass(frozen=True, slots=True)
class RoundCost:
    """By part, in the order they first come; TOTAL is of those that are ours: the least whole round, and the sum of their calls."""

    engine: str
    pacing: str
    parts: dict[str, PartCost]


def run(args: argparse.Namespace) -> int:
    """Measure and show; nothing can fail but the machine. Raises InvalidRequest for answers of too few rounds."""
    console = make_console()
    max_tokens = args.max_tokens or (QUICK_TOKENS if args.quick else MAX_TOKENS)
    if max_tokens < LEAST_TOKENS:
        raise InvalidRequest("--max-tokens", f"must be at least {LEAST_TOKENS} here, got {max_tokens}")
    repeats = args.repeats or (QUICK_REPEATS if args.quick else REPEATS)
    engines = {"replay": replay_engine(max_tokens), "target": target_engine(args.target, args.dtype)}
    costs = [cost for name, engine in engines.items() for cost in measure(name, engine, max_tokens, repeats)]
    folder, identity = Path(model_path(args.target)), engines["target"].identity
    messages = dict(measure_messages(folder, identity, repeats))
    requests = dict(measure_requests(folder, identity, repeats))
    console.print(as_table("one round: least microseconds / function calls", [(f"{c.engine}, {c.pacing}", c.parts) for c in costs]))
    console.print(as_table("one message to the client: least microseconds / function calls", list(messages.items())))
    console.print(as_table("one request on the event loop, by phase: least microseconds / function calls", list(requests.items())))
    if args.out is not None:
        args.out.write_text(markdown(costs, messages, requests))
    print("RESULT " + json.dumps(result(costs, messages, requests)))
    return 0


def replay_engine(max_tokens: int) -> Engine:
    """An engine whose forward costs nothing and whose text has so many tokens."""
    identity = replay_identity("rounds", REPLAY_VOCAB, 0, 2 * (PROMPT_LEN + max_tokens))
    limits = EngineLimits(512, 32, -(-identity.max_context // 32), identity.max_context, prefix_cache=True)
    return ReplayEngine(identity, limits, ReplayScript([1 + (31 * at * at) % (REPLAY_VOCAB - 1) for at in range(max_tokens)], 0))


def target_engine(model: str, dtype: str) -> Engine:
    """A model as the verifier of a deployment on this machine loads it."""
    return load_engine(EngineConfig(model_path(model), EngineKind.AUTO, DType(dtype), Numerics.INVARIANT, NUM_THREADS, probe=False))


def measure(name: str, engine: Engine, max_tokens: int, repeats: int) -> Iterator[RoundCost]:
    """Plain rounds, whose answer the drafter of the others replays without a mistake, so that rounds are alike; the last one's errs always,
    and goes without leave to guess but for probes: what a drafter costs that is not used."""
    max_tokens = min(max_tokens, engine.identity.max_context - PROMPT_LEN)
    plain = Task("plain", None, max_tokens)
    yield _cost(name, engine, plain, repeats)
    answer = RoundLoop(engine, plain, PartClock()).run()
    for pacing in ("serial", "adaptive"):
        yield _cost(name, engine, replace(plain, pacing=pacing, draft_len=DRAFT_LEN, answer=answer), repeats)
    yield _cost(name, engine, replace(plain, pacing="adaptive", draft_len=DRAFT_LEN, answer=answer, acceptance=0.0), repeats)


def measure_messages(folder: Path, identity: ModelIdentity, repeats: int) -> Iterator[tuple[str, dict[str, PartCost]]]:
    """Messages of few and of many tokens."""
    for num_tokens in MESSAGE_TOKENS:

        def run(clock: PartClock, num_tokens: int = num_tokens) -> None:
            MessageLoop(folder, identity, NUM_MESSAGES, num_tokens, clock).run()

        yield f"{num_tokens} tokens", _parts(run, repeats)


def measure_requests(folder: Path, identity: ModelIdentity, repeats: int) -> Iterator[tuple[str, dict[str, PartCost]]]:
    """By phase, where gateway and verifier share a process."""
    for phase in PHASES:

        def run(clock: PartClock, phase: str = phase) -> None:
            loop = RequestLoop(folder, identity, NUM_REQUESTS, clock)
            loop.run()
            clock.rounds[:] = loop.of_phase(phase)

        yield phase, _parts(run, repeats)


def _cost(name: str, engine: Engine, task: Task, repeats: int) -> RoundCost:
    def run(clock: PartClock) -> None:
        RoundLoop(engine, task, clock).run()
        clock.rounds[:] = [found for found in clock.rounds if STEP in found]

    useless = " (useless drafts)" if task.answer and not task.acceptance else ""
    return RoundCost(name, task.pacing + useless, _parts(run, repeats))


def _parts(run: Callable[[PartClock], None], repeats: int) -> dict[str, PartCost]:
    """Of rounds that are all alike, but for the first and the last ones."""

    def measured(read: Callable[[PartClock], dict[str, float]], *, counts_calls: bool) -> dict[str, float]:
        clock = PartClock(counts_calls=counts_calls)
        run(clock)
        clock.rounds[:] = clock.rounds[WARM_ROUNDS:-1]
        if not counts_calls:
            for found in clock.rounds:
                found[TOTAL] = _ours(found)
        return read(clock)

    timed = [measured(PartClock.least, counts_calls=False) for _ in range(repeats)]
    calls = measured(PartClock.median, counts_calls=True)
    calls[TOTAL] = _ours(calls)
    return {part: PartCost(min(one.get(part, 0.0) for one in timed), calls.get(part, 0.0)) for part in timed[0]}


def _ours(found: dict[str, float]) -> float:
    return sum(spent for part, spent in found.items() if not part.startswith("("))


def result(costs: list[RoundCost], messages: Parted, requests: Parted) -> dict[str, object]:
    """Of all parts together: [microseconds, calls]."""
    rounds = {f"{cost.engine} {cost.pacing}": _numbers(cost.parts[TOTAL]) for cost in costs}
    return {"rounds": rounds, "messages": _totals(messages), "requests": _totals(requests)}


def _totals(found: Parted) -> dict[str, list[float]]:
    return {name: _numbers(parts[TOTAL]) for name, parts in found.items()}


def _numbers(cost: PartCost) -> list[float]:
    return [round(cost.least_us, 1), cost.num_calls]


def as_table(title: str, columns: list[tuple[str, dict[str, PartCost]]]) -> Table:
    """A line a part, a column for each kind of round or message."""
    table = Table(title=title)
    table.add_column("part")
    for name, _ in columns:
        table.add_column(name, justify="right")
    for line in _lines(columns):
        table.add_row(*line)
    return table


def markdown(costs: list[RoundCost], messages: Parted, requests: Parted) -> str:
    """The same for bench/RESULTS.md."""
    lines = [f"- {name}: {fact}" for name, fact in measurement_facts().items()] + [f"- threads: {NUM_THREADS}", ""]
    of_rounds = [(f"{cost.engine}, {cost.pacing}", cost.parts) for cost in costs]
    for columns in (of_rounds, list(messages.items()), list(requests.items())):
        lines += [*markdown_table(["least microseconds / calls", *(name for name, _ in columns)], _lines(columns)), ""]
    return "\n".join(lines)


def _lines(columns: list[tuple[str, dict[str, PartCost]]]) -> list[list[str]]:
    names = dict.fromkeys(part for _, parts in columns for part in parts if part != TOTAL)
    return [[name, *(_text(parts.get(name)) for _, parts in columns)] for name in (*names, TOTAL)]


def _text(cost: PartCost | None) -> str:
    return "" if cost is None else f"{cost.least_us:.0f} / {cost.num_calls:.0f}"
