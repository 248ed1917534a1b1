"""`outrider bench fleet`: the coordinator's placement against round-robin and least-loaded, in a simulated fleet of up to thousands.

Everything but the wall time of placements is virtual and the same on every machine. Measures no service of ours but `Fleet`; with --actor
a real coordinator, and nothing else (real_places.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from outrider.cli.console import make_console
from outrider.errors import InvalidRequest
from outrider_bench.facts import measurement_facts
from outrider_bench.fleet import real_places
from outrider_bench.fleet.event_loop import EventLoop, Run
from outrider_bench.fleet.strategies import STRATEGIES, Coordinator
from outrider_bench.fleet.world import make_world
from outrider_bench.markdown_table import markdown_table

MAX_VERIFIERS, MAX_DRAFTERS, MAX_SESSIONS = 4_096, 8_192, 1_000_000
MAX_LIVE = 100_000  # of --actor
MAX_PLACES = 3_000  # at a real coordinator, where --sessions does not say
_TIMES = ("token_ms_p50", "token_ms_p99", "first_token_ms_p50", "first_token_ms_p99")
_KEYS = ("tokens_per_s", *_TIMES, "warm_share", "warm_drafter_share", "refused")
_TIME_HEADINGS = ("ms/token p50", "p99", "first token ms p50", "p99")
_HEADINGS = ("placement", "tokens/s", *_TIME_HEADINGS, "warm further turns", "their drafters", "refused")


@dataclass(frozen=True, slots=True)
class Size:
    """Of the simulated fleet; sessions: requests in all."""

    verifiers: int = 1_000
    drafters: int = 2_000
    sessions: int = 100_000


FULL, QUICK = Size(), Size(64, 128, 4_000)


def run(args: argparse.Namespace) -> int:
    """Simulate, or with --actor place, and show."""
    size = size_of(args)
    if args.ray and not args.actor:
        raise InvalidRequest("ray", "says where the coordinator of --actor runs; give both")
    live = live_of(args)
    if args.actor:
        num_places = min(size.sessions, MAX_PLACES) if args.sessions is None else size.sessions
        return real_places.run(args, make_world(size.verifiers, size.drafters, args.sim_seed), num_places, live)
    simulation = Run(make_world(size.verifiers, size.drafters, args.sim_seed), size.sessions, args.sim_seed)
    numbers: dict[str, dict[str, float]] = {}
    place_ms: dict[str, float] = {}
    for strategy_of in STRATEGIES:
        loop = EventLoop(simulation, strategy_of)
        numbers[loop.strategy.name] = loop.outcome().numbers()
        if isinstance(loop.strategy, Coordinator):
            place_ms = _percentiles_ms("wall", loop.strategy.wall_s) | _percentiles_ms("cpu", loop.strategy.cpu_s)
    _show(size, numbers, place_ms)
    if args.out is not None:
        args.out.write_text(_markdown(size, numbers, place_ms), encoding="utf-8")
    sizes = {"verifiers": size.verifiers, "drafters": size.drafters, "sessions": size.sessions, "seed": args.sim_seed}
    print("RESULT " + json.dumps(sizes | {"strategies": numbers, "place_ms": place_ms}))
    return 0


def live_of(args: argparse.Namespace) -> int:
    """Placements that --actor leaves unfinished; raises InvalidRequest naming the option."""
    if args.live is not None and not args.actor:
        raise InvalidRequest("live", "says how many placements of --actor are unfinished; give both")
    return _within("live", real_places.LIVE if args.live is None else args.live, 1, MAX_LIVE)


def size_of(args: argparse.Namespace) -> Size:
    """What the options ask for; raises InvalidRequest naming the option."""
    base = QUICK if args.quick else FULL
    if args.sessions is not None and len(args.sessions) != 1:
        raise InvalidRequest("sessions", "is one number here: requests in all")
    return Size(
        _within("verifiers", base.verifiers if args.verifiers is None else args.verifiers, 1, MAX_VERIFIERS),
        _within("drafters", base.drafters if args.drafters is None else args.drafters, 0, MAX_DRAFTERS),
        _within("sessions", base.sessions if args.sessions is None else args.sessions[0], 1, MAX_SESSIONS),
    )


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequest(name, f"must be in [{low}, {high}], got {value}")
    return value


def _percentiles_ms(clock: str, times_s: list[float]) -> dict[str, float]:
    return {f"{clock}_p{at}": round(float(np.percentile(times_s, at)) * 1e3, 3) for at in (50, 99)}


def _rows(numbers: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    return [[name, *(f"{found[key]:g}" for key in _KEYS)] for name, found in numbers.items()]


def _title(size: Size, place_ms: Mapping[str, float]) -> str:
    world = f"{size.verifiers} verifiers, {size.drafters} drafters, {size.sessions} requests"
    times = f"{place_ms['wall_p50']:g} ms, at p99 {place_ms['wall_p99']:g} ms"
    return f"{world}; a placement takes {times} ({place_ms['cpu_p99']:g} ms of a core)"


def _show(size: Size, numbers: Mapping[str, Mapping[str, float]], place_ms: Mapping[str, float]) -> None:
    table = Table(title=_title(size, place_ms))
    for heading in _HEADINGS:
        table.add_column(heading)
    for row in _rows(numbers):
        table.add_row(*row)
    make_console().print(table)


def _markdown(size: Size, numbers: Mapping[str, Mapping[str, float]], place_ms: Mapping[str, float]) -> str:
    facts = measurement_facts()
    lines = ["# A simulated fleet", "", _title(size, place_ms), "", *markdown_table(_HEADINGS, _rows(numbers)), ""]
    return "\n".join([*lines, *(f"- {name}: {facts[name]}" for name in ("date", "commit", "command", "machine")), ""])
