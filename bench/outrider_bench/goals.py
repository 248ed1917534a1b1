"""The numbers the speed goals are stated in, from the rows of a speed run: ratios, the worst cell, the bound, the price of being a service.

Ratios are medians of ratios within a repetition (measurement.times). Every number that is a minimum comes with where it was found. Must not
know how anything was measured or how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from outrider_bench.results import ADAPTIVE, ASSISTED, GENERATE, PLAIN, Cell, Row

GOAL_TASKS = ("arithmetic", "copying")
# Label in the RESULT line -> contestant.
GOAL_OTHERS = MappingProxyType({"generate": GENERATE, "assisted": ASSISTED, "own_plain": PLAIN})
GOAL_TEMPERATURES = MappingProxyType({"t0": 0.0, "t08": 0.8})
PROSE = "prose"
_Placed = Mapping[tuple[Cell, str], Row]  # by cell and contestant
SAME_IN_BOTH = "serial"  # the policy that does the same in the stack and in one process, whatever it measures there


def stack_name(policy: str) -> str:
    """The contestant that is our stack under a policy."""
    return f"outrider {policy}"


def one_process_name(policy: str) -> str:
    """The contestant that is the same policy without processes, sockets and gateway."""
    return f"one process {policy}"


def ratios(rows: Iterable[Row], best: str, others: Mapping[str, str] = GOAL_OTHERS) -> dict[str, float]:
    """The best policy over other contestants (label -> name), the worst of the goal's tasks."""
    found_rows = _by_place(rows)
    result: dict[str, float] = {}
    for key, temperature in GOAL_TEMPERATURES.items():
        for label, other in others.items():
            found = _over(found_rows, best, other, temperature)
            if found:
                result[f"iso_{key}_vs_{label}"] = round(min(found.values()), 3)
    return result


def best_policy(rows: Iterable[Row], policies: Sequence[str]) -> str:
    """The policy whose worst ratio to plain decoding over the goal's tasks is highest; over all tasks where none of them was run."""
    rows = list(rows)
    plain = {row.cell: row for row in rows if row.contestant == PLAIN}
    tasks = _goal_tasks(plain)
    goal = {cell for cell in plain if cell.task in tasks}

    def worst(policy: str) -> float:
        return min(row.times(plain[row.cell]) for row in rows if row.contestant == policy and row.cell in goal)

    return max(policies, key=worst)


def prose_ratios(rows: Iterable[Row], contestant: str = ADAPTIVE) -> dict[str, float]:
    """A contestant over plain decoding on prose, where drafts are rarely right."""
    placed = _by_place(rows)
    found = {key: (placed.get((cell, contestant)), placed.get((cell, PLAIN))) for key, cell in _prose_cells().items()}
    return {f"prose_{key}_vs_own_plain": round(one.times(plain), 3) for key, (one, plain) in found.items() if one and plain}


def worst_cell(rows: Iterable[Row], contestant: str = ADAPTIVE) -> dict[str, object]:
    """Where a contestant comes off worst against plain decoding, over every cell that has both."""
    placed = _by_place(rows)
    both = ((cell, row) for (cell, name), row in placed.items() if name == contestant and (cell, PLAIN) in placed)
    found = {cell: row.times(placed[cell, PLAIN]) for cell, row in both}
    if not found:
        return {}
    cell = min(found, key=found.__getitem__)
    return {"min_cell_vs_plain": round(found[cell], 3), "min_cell_vs_plain_at": f"{contestant}, {cell.name}"}


def bound_fraction(rows: Iterable[Row], best: str) -> dict[str, object]:
    """What of (tokens per round / time of the verify forward alone) the best policy reaches at T = 0, in the worst of the goal's tasks."""
    of_best = {row.cell: row.bound_share for row in rows if row.contestant == best}
    found = {cell: of_best[cell] for cell in _goal_cells(of_best, 0.0)}
    shares = {cell: share for cell, share in found.items() if share is not None}
    if not shares:
        return {}
    cell = min(shares, key=shares.__getitem__)
    return {"bound_fraction": round(shares[cell], 3), "bound_fraction_at": f"{best}, {cell.name}"}


def stack_ratio(rows: Sequence[Row], policies: Sequence[str]) -> dict[str, object]:
    """Our stack over one process at T = 0, in the worse of the goal's tasks: of SAME_IN_BOTH, and of the best policy that was also run in
    one process, which may do another thing there."""
    placed = _by_place(rows)
    names = {name for _, name in placed}
    paired = [policy for policy in policies if one_process_name(policy) in names and stack_name(policy) in names]
    if not paired:
        return {}
    best = best_policy(rows, [stack_name(policy) for policy in paired])
    policy = next(policy for policy in paired if stack_name(policy) == best)
    same = _ratio_of_stack(placed, SAME_IN_BOTH, "stack_ratio") if SAME_IN_BOTH in paired else {}
    return same | _ratio_of_stack(placed, policy, "stack_ratio_best")


def reconcile_share(rows: Iterable[Row]) -> dict[str, object]:
    """The largest share of its rounds' time that reconciling took of any policy of the served stack that drafted, and where."""
    found = [row for row in rows if _drafts_served(row)]
    if not found:
        return {}
    row = max(found, key=lambda each: each.summary.reconcile_share)
    return {"reconcile_share": round(row.summary.reconcile_share, 4), "reconcile_share_at": f"{row.contestant}, {row.cell.name}"}


def draft_token_share(draft_us: float, verify_us: float) -> dict[str, float]:
    """A drafted token's time over a verify step's; nothing where either was not measured."""
    return {"draft_token_share": round(draft_us / verify_us, 4)} if draft_us and verify_us else {}


def _ratio_of_stack(placed: _Placed, policy: str, key: str) -> dict[str, object]:
    found = _over(placed, stack_name(policy), one_process_name(policy), 0.0)
    if not found:
        return {}
    cell = min(found, key=found.__getitem__)
    return {key: round(found[cell], 3), f"{key}_at": f"{policy}, {cell.name}"}


def _drafts_served(row: Row) -> bool:
    return row.contestant.startswith(stack_name("")) and row.summary.drafted_per_round > 0.0


def _prose_cells() -> dict[str, Cell]:
    return {key: Cell(PROSE, temperature) for key, temperature in GOAL_TEMPERATURES.items()}


def _by_place(rows: Iterable[Row]) -> _Placed:
    return {(row.cell, row.contestant): row for row in rows}


def _over(placed: _Placed, one: str, other: str, temperature: float) -> dict[Cell, float]:
    """one / other in the goal's cells that have both."""
    both = [cell for cell, name in placed if name == one and (cell, other) in placed]
    cells = sorted(_goal_cells(both, temperature), key=lambda cell: cell.task)
    return {cell: placed[cell, one].times(placed[cell, other]) for cell in cells}


def _goal_cells(cells: Iterable[Cell], temperature: float) -> list[Cell]:
    cells = list(cells)
    tasks = _goal_tasks(cells)
    return [cell for cell in cells if cell.task in tasks and cell.temperature == temperature]


def _goal_tasks(cells: Iterable[Cell]) -> frozenset[str]:
    """The goal's tasks that were run, or, where none of them was (prose alone, a user's files), all that were."""
    tasks = frozenset(cell.task for cell in cells)
    return tasks & frozenset(GOAL_TASKS) or tasks
