"""Runs cells: every policy in the same world with the same luck, on one core or several.

Knows grids, contestants and the event loop. Must not judge. Results come in the order of the cells, whatever the number of processes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from outrider_bench.simulation.contestants import Contestant
from outrider_bench.simulation.event_loop import DrafterKind, StuckError, simulate
from outrider_bench.simulation.grid import Cell, Machine
from outrider_bench.simulation.verdict import CellResult

MAX_JOBS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """fixed, judged: policies by name (contestants.py). share: of the usual number of tokens."""

    cells: tuple[Cell, ...]
    fixed: tuple[str, ...]
    judged: tuple[str, ...]
    machine: Machine
    share: float = 1.0
    drafter: DrafterKind = DrafterKind.CHAIN

    @property
    def policies(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((*self.fixed, *self.judged)))


def run_cell(cell: Cell, plan: Plan) -> CellResult:
    """Every policy in one world. Raises StuckError naming cell and policy."""
    world, num_tokens = cell.world(plan.machine), cell.num_tokens(plan.share)
    outcomes = {}
    for name in plan.policies:
        try:
            outcomes[name] = simulate(world, Contestant.parse(name).pacing(), num_tokens, plan.drafter)
        except StuckError as error:
            raise StuckError(f"{name} in {cell.describe()}: {error}") from error
    return CellResult(cell, outcomes, plan.fixed)


def run_cells(plan: Plan, jobs: int) -> Generator[CellResult]:
    """Yields as they come, in order. jobs: processes; 1 stays in this one. Who stops early waits for no cell that is under way."""
    if jobs == 1:
        yield from (run_cell(cell, plan) for cell in plan.cells)
        return
    with ProcessPoolExecutor(min(jobs, MAX_JOBS)) as pool:
        try:
            yield from pool.map(partial(run_cell, plan=_without_cells(plan)), plan.cells)
        except BaseException:  # a failure, Ctrl-C, or nobody who asks for more; a cell of many sessions takes minutes
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def _without_cells(plan: Plan) -> Plan:
    """What every process needs: the list of cells would be sent along with each of them."""
    return Plan((), plan.fixed, plan.judged, _plain(plan.machine), plan.share, plan.drafter)


def _plain(machine: Machine) -> Machine:
    """With a mapping that can be sent to another process."""
    return Machine(machine.target_us, machine.message_us, machine.step_overhead_us, dict(machine.shapes), machine.seed)
