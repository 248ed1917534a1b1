"""The simulated run (`outrider bench simulate`): is a policy ever slower than the best fixed one, over a grid of worlds?

Runs the services' own policies and sessions on virtual time (outrider_bench.simulation). Its parameters are axes of a grid and curves of
micro-benchmarks; nothing is fitted on what it predicts. Measures no time of its own: the numbers do not depend on this machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from outrider.cli.console import make_console
from outrider.errors import InvalidRequest
from outrider.launch.threads import usable_cores
from outrider_bench.facts import measurement_facts
from outrider_bench.simulation.contestants import Contestant
from outrider_bench.simulation.curves import CURVE_SHAPES, CurveShape, read_shape
from outrider_bench.simulation.event_loop import DrafterKind
from outrider_bench.simulation.grid import QUICK, Axes, Machine, cells_of, widened
from outrider_bench.simulation.picture import draw
from outrider_bench.simulation.profile import Profile
from outrider_bench.simulation.report import as_json, axis_table, markdown, policies_table, worst_table
from outrider_bench.simulation.runner import Plan, run_cells
from outrider_bench.simulation.verdict import CellResult

QUICK_SHARE = 0.5
FILE_CURVE = "file"


def run(args: argparse.Namespace) -> int:
    """Simulate and show; 1 when a judged policy is anywhere below the floor."""
    plan = plan_of(args)
    console = make_console()
    results = _simulate(plan, args.jobs or len(usable_cores()))
    _show(console, plan, results, args.floor)
    result = as_json(results, plan.policies, plan.judged, args.floor)
    if args.out is not None:
        args.out.write_text(markdown(_facts(plan), results, plan.policies, plan.judged, args.floor), encoding="utf-8")
        draw(results, plan.policies, args.out.with_suffix(".svg"))
    print("RESULT " + json.dumps(result))
    below = result["below_floor"]
    assert isinstance(below, list)
    return int(any(policy in below for policy in plan.judged if policy not in plan.fixed))


def plan_of(args: argparse.Namespace) -> Plan:
    """What the options ask for; raises InvalidRequest naming the option."""
    shapes: dict[str, CurveShape] = dict(CURVE_SHAPES)
    if args.curve is not None:
        shapes[FILE_CURVE] = read_shape(args.curve)
    base = QUICK if args.quick else Axes()
    axes = _axes(args, widened(base) if args.wide else base)
    unknown = [curve for curve in axes.curves if curve not in shapes]
    if unknown:
        raise InvalidRequest("curves", f"{unknown[0]!r} is unknown; known: {', '.join(shapes)}")
    for text in axes.acceptances:
        Profile.parse(text)
    for name in (*args.fixed, *args.policies):
        Contestant.parse(name)
    machine = Machine(1000.0 * args.target_ms, args.message_us, args.step_overhead_us, shapes, args.sim_seed)
    share = args.share if args.share is not None else QUICK_SHARE if args.quick else 1.0
    plan = Plan(tuple(cells_of(axes)), tuple(args.fixed), tuple(args.policies), machine, share, DrafterKind(args.drafter))
    for cell in plan.cells:
        cell.world(machine).check()
    if not plan.cells:
        raise InvalidRequest("acceptances", "no cell is left: a|b needs several sessions")
    return plan


def _axes(args: argparse.Namespace, base: Axes) -> Axes:
    return Axes(
        tuple(args.acceptances or base.acceptances),
        tuple(args.cost_ratios or base.cost_ratios),
        tuple(args.delays or base.delays),
        tuple(args.sessions or base.sessions),
        tuple(args.curves or ((FILE_CURVE,) if args.curve is not None else base.curves)),
        tuple(args.shared or base.shared),
        tuple(args.unsure or base.unsure),
        tuple(args.hedged or base.hedged),
    )


def _simulate(plan: Plan, jobs: int) -> list[CellResult]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    results = []
    with Progress(*columns, console=make_console(stderr=True)) as progress:
        task = progress.add_task("worlds", total=len(plan.cells))
        for result in run_cells(plan, jobs):
            results.append(result)
            progress.advance(task)
    return results


def _show(console: Console, plan: Plan, results: list[CellResult], floor: float) -> None:
    console.print(policies_table(results, plan.policies, floor))
    for policy in plan.judged:
        console.print(axis_table(results, policy))
        console.print(worst_table(results, policy))


def _facts(plan: Plan) -> Mapping[str, str]:
    facts = measurement_facts()
    machine = plan.machine
    world = f"a target step of one row {machine.target_us / 1000:g} ms, a message {machine.message_us} us, a step's overhead"
    kept = {name: facts[name] for name in ("date", "commit", "command")}
    return kept | {"world": f"{world} {machine.step_overhead_us} us", "seed": str(machine.seed), "drafter": plan.drafter.value}
