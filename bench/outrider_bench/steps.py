"""The step run (`outrider bench steps`): what a step of the target costs by rows, by context and by how its cache lies in memory.

Compares the lean torch forward over the paged cache, in one run of blocks and in several, with the same forward over one contiguous tensor
a layer and torch's own attention; then what is served (few rows on numpy) and `invariant`. One thread count for all, repetitions
interleaved, medians. Measures engines alone: no service, no drafts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich.progress import track
from rich.table import Table

from outrider.cli.console import make_console
from outrider.cli.deployment_options import model_path
from outrider.engine.config import DType, EngineConfig, EngineKind
from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import ROOT, IntArray
from outrider_bench.contiguous import ContiguousEngine
from outrider_bench.facts import measurement_facts

ROW_COUNTS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 1900)
REPEATS = 15
QUICK_REPEATS = 5
NUM_THREADS = 1  # with more, the thread pools of torch and numpy, side by side in one process, wait on each other
BLOCK_LEN = 32
MAX_RUNS = 4
CHAIN_LEN = 16  # levels that `invariant` takes
_SEQUENCE = 1
_NOTHING: IntArray = np.empty(0, np.int32)
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Cell:
    """Milliseconds of a whole step, medians by contestant."""

    context: int
    num_rows: int
    step_ms: dict[str, float]

    def ratio(self, name: str, base: str) -> float:
        """step_ms of one over that of another."""
        return self.step_ms[name] / self.step_ms[base]


def run(args: argparse.Namespace) -> int:
    """Measure and show; nothing can fail but the machine."""
    console, repeats = make_console(), args.repeats or (QUICK_REPEATS if args.quick else REPEATS)
    num_threads = NUM_THREADS
    path = model_path(args.target)
    cells = [
        cell
        for context in track(CONTEXTS, description="steps", console=make_console(stderr=True))
        for cell in measure(path, args.dtype, context, num_threads, repeats)
    ]
    console.print(as_table(cells))
    if args.out is not None:
        args.out.write_text(markdown(cells, num_threads))
    print("RESULT " + json.dumps(result(cells) | {"threads": num_threads, "repeats": repeats, "dtype": args.dtype}))
    return 0


def measure(path: str, dtype: str, context: int, num_threads: int, repeats: int) -> list[Cell]:
    """All row counts at one context; the contestants take turns within every repetition."""
    engines: dict[str, Engine | ContiguousEngine] = {
        "contiguous": ContiguousEngine(_config(path, dtype, num_threads, Numerics.FAST), context + max(ROW_COUNTS)),
        "paged": _paged(_config(path, dtype, num_threads, Numerics.FAST, array_rows=0), context, 1),
        f"paged in {MAX_RUNS} runs": _paged(_config(path, dtype, num_threads, Numerics.FAST, array_rows=0), context, MAX_RUNS),
        "served": _paged(_config(path, dtype, num_threads, Numerics.FAST), context, 1),
        "invariant": _paged(_config(path, dtype, num_threads, Numerics.INVARIANT), context, 1),
    }
    steppers: dict[str, Callable[[int], None]] = {}
    for name, engine in engines.items():
        if isinstance(engine, ContiguousEngine):
            engine.prefill(_prompt(context))
            steppers[name] = engine.step
        else:
            steppers[name] = _stepper(engine, context)
    return [Cell(context, num_rows, _timed(steppers, num_rows, repeats)) for num_rows in ROW_COUNTS]


def _config(path: str, dtype: str, num_threads: int, numerics: Numerics, array_rows: int = 64) -> EngineConfig:
    return EngineConfig(
        path, EngineKind.LEAN, DType(dtype), numerics, num_threads, 256, block_len=BLOCK_LEN, array_rows=array_rows, probe=False
    )


def _prompt(context: int) -> IntArray:
    return (np.arange(context, dtype=np.int32) * 7919) % 997 + 5


def _paged(config: EngineConfig, context: int, num_runs: int) -> Engine:
    """An engine whose sequence _SEQUENCE holds the context in this many runs of neighbouring blocks."""
    engine = load_engine(config)
    needed = -(-(context + 2 + max(ROW_COUNTS)) // BLOCK_LEN)
    if num_runs > 1:
        _leave_holes(engine, needed, num_runs)
    engine.open(_SEQUENCE, SequenceSpec(_GREEDY, NoiseAddress(0), context, context + 2, max(ROW_COUNTS)))
    for begin in range(0, context - 1, config.max_rows):
        chunk = _prompt(context)[begin : min(begin + config.max_rows, context - 1)]
        engine.step(StepPlan((SequenceRows(_SEQUENCE, chunk, _NOTHING, _NOTHING, wanted=False),)))
    return engine


def _leave_holes(engine: Engine, needed: int, num_runs: int) -> None:
    """Fill the pool and free num_runs separate stretches that together just hold `needed` blocks."""
    total = engine.limits.num_blocks
    sizes = [needed // num_runs + (at < needed % num_runs) for at in range(num_runs)]
    sequence = 1000
    holes = []
    for size in sizes:
        for num_blocks, is_hole in ((1, False), (size, True)):
            engine.open(sequence, SequenceSpec(_GREEDY, NoiseAddress(0), 0, num_blocks * BLOCK_LEN, 0))
            holes += [sequence] if is_hole else []
            sequence += 1
    left = total - sum(sizes) - num_runs
    while left:
        size = min(left, engine.limits.max_context // BLOCK_LEN)
        engine.open(sequence, SequenceSpec(_GREEDY, NoiseAddress(0), 0, size * BLOCK_LEN, 0))
        left, sequence = left - size, sequence + 1
    for hole in holes:
        engine.close(hole)


def _stepper(engine: Engine, context: int) -> Callable[[int], None]:
    """One round: the newest committed token and a chain of guesses, then back to before it."""
    newest = _prompt(context)[-1:]

    def step(num_rows: int) -> None:
        indices = np.arange(num_rows - 1, dtype=np.int32)
        parents = np.where(indices % CHAIN_LEN == 0, np.int32(ROOT), indices - 1).astype(np.int32)
        engine.step(StepPlan((SequenceRows(_SEQUENCE, newest, indices + 7, parents, acceptance="coupled"),)))
        engine.truncate(_SEQUENCE, context - 1)

    return step


def _timed(steppers: dict[str, Callable[[int], None]], num_rows: int, repeats: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in steppers}
    for repeat in range(repeats + 1):
        for name, step in steppers.items():
            began = time.perf_counter()
            step(num_rows)
            if repeat:  # the first one warms the shapes
                taken[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(times) for name, times in taken.items()}


def result(cells: list[Cell]) -> dict[str, object]:
    """Ratios at the longest context: the largest over the row counts."""
    longest = [cell for cell in cells if cell.context == max(CONTEXTS)]
    return {
        "context": max(CONTEXTS),
        "paged_over_contiguous": {cell.num_rows: round(cell.ratio("paged", "contiguous"), 3) for cell in longest},
        "runs_over_contiguous": {cell.num_rows: round(cell.ratio(f"paged in {MAX_RUNS} runs", "contiguous"), 3) for cell in longest},
        "invariant_over_fast": {cell.num_rows: round(cell.ratio("invariant", "served"), 2) for cell in longest},
        "rows_16_over_1": round(next(c.step_ms["served"] for c in longest if c.num_rows == 16) / longest[0].step_ms["served"], 2),
    }


def as_table(cells: list[Cell]) -> Table:
    """Milliseconds, a line a cell."""
    table = Table(title="milliseconds of one step (median)")
    for name in ("context", "rows", *cells[0].step_ms):
        table.add_column(name, justify="right")
    for cell in cells:
        table.add_row(str(cell.context), str(cell.num_rows), *(f"{ms:.2f}" for ms in cell.step_ms.values()))
    return table


def markdown(cells: list[Cell], num_threads: int) -> str:
    """The same for bench/RESULTS.md."""
    names = list(cells[0].step_ms)
    lines = [f"- {name}: {fact}" for name, fact in measurement_facts().items()] + [f"- threads: {num_threads}", ""]
    lines += ["| context | rows | " + " | ".join(names) + " |", "|---" * (2 + len(names)) + "|"]
    lines += [f"| {c.context} | {c.num_rows} | " + " | ".join(f"{c.step_ms[name]:.2f}" for name in names) + " |" for c in cells]
    return "\n".join(lines) + "\n"
