"""The simulator's parts and promises: determinism, luck, cores that are shared, policies that stand still, who was fast where."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mostly_slow import mostly_slow_rows
from outrider.cli.bench import add_parser
from outrider.errors import InvalidRequest
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import PacingPlan, SessionView, StepView
from outrider.session.pacing.explaining import explain_plan, no_choice, plain_promise
from outrider.session.pacing.explanation import PlanExplanation
from outrider.session.pacing.plain import PlainPacing
from outrider.session.pacing.registry import make_pacing
from outrider.types.tree import DraftTree
from outrider_bench.simulate import run
from outrider_bench.simulation.contestants import Contestant
from outrider_bench.simulation.cores import Cores, Role
from outrider_bench.simulation.curves import CURVE_SHAPES, read_shape
from outrider_bench.simulation.event_loop import StuckError, simulate
from outrider_bench.simulation.grid import Axes, Cell, Machine, cells_of
from outrider_bench.simulation.profile import Profile
from outrider_bench.simulation.runner import Plan, run_cells
from outrider_bench.simulation.text import text_of
from outrider_bench.simulation.verdict import CellResult, worst_cells, worst_of
from outrider_bench.simulation.wire import Wire
from outrider_bench.simulation.world import Phase, World

FLAT = CURVE_SHAPES["flat"]
WORLD = World(FLAT.verify_curve(6_000), FLAT.draft_curve(1_200), ((Phase(0.8),),), output_len=96)
MACHINE = Machine(6_000.0, 100, 100, CURVE_SHAPES)


FIXED = ("plain", "serial:2", "serial:4", "pearl")


def plan_of(axes: Axes, judged: tuple[str, ...], share: float = 0.1) -> Plan:
    return Plan(tuple(cells_of(axes)), FIXED, judged, MACHINE, share)


class Seen(PlainPacing):
    """Plain decoding that keeps the views it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.views: list[StepView] = []

    def plan(self, view: StepView) -> PacingPlan:
        self.views.append(view)
        return super().plan(view)


def test_a_policy_is_told_what_guesses_and_further_sequences_cost() -> None:
    policy = Seen()
    simulate(replace(WORLD, num_sessions=4, guess_us=70, session_us=300), policy, 800)
    assert {view.guess_us for view in policy.views} == {70.0}
    newest = next(view for view in reversed(policy.views) if len(view.sessions) == 4)
    assert newest.cost.verify_us(4) == pytest.approx(WORLD.verify.verify_us(4) + 3 * 300, rel=0.02)


# --- determinism and luck -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["serial", "pearl", "adaptive"])
def test_the_same_world_and_policy_give_the_same_outcome(policy: str) -> None:
    world = replace(WORLD, num_sessions=3, delay_us=2_000)
    first, again = (simulate(world, make_pacing(policy), 500) for _ in range(2))
    assert first == again
    assert simulate(replace(world, seed=2), make_pacing(policy), 500) != first


@pytest.mark.parametrize(
    ("acceptance", "num_sessions", "gain"), [(0.7, 1, 1.15), (0.9, 1, 1.05), pytest.param(0.9, 8, 1.03, marks=pytest.mark.slow)]
)
def test_a_step_away_adaptive_beats_every_fixed_policy(acceptance: float, num_sessions: int, gain: float) -> None:
    """Five milliseconds and steps of five: it decodes on while nothing can have come, and uses what comes, and so much of it as pays."""
    knee = CURVE_SHAPES["knee"]
    verify, draft = knee.verify_curve(5_000), knee.draft_curve(500)
    far = World(verify, draft, ((Phase(acceptance),),), delay_us=5_000, output_len=192, num_sessions=num_sessions)
    names = ("plain", "serial:4", "serial:8", "pearl", "adaptive")
    speeds = {name: simulate(far, Contestant.parse(name).pacing(), 1_000 * num_sessions).tokens_per_s for name in names}
    adaptive = speeds.pop("adaptive")
    assert adaptive > gain * max(speeds.values())


def test_side_branches_make_a_far_drafter_worth_more() -> None:
    """A step away: mismatches find a branch where the second choice was right, and there is nobody who waits for it."""
    verify, draft = FLAT.verify_curve(5_000), FLAT.draft_curve(500)
    far = World(verify, draft, ((Phase(0.7),),), delay_us=5_000, output_len=192)
    worlds = [replace(far, hedge_acceptance=share) for share in (0.0, 0.001, 0.5)]
    without, useless, hedged = (simulate(world, make_pacing("adaptive"), 800) for world in worlds)
    assert hedged.tokens_per_s > 1.05 * without.tokens_per_s
    assert useless.tokens_per_s > 0.97 * without.tokens_per_s
    first, again = (simulate(worlds[2], make_pacing("adaptive"), 100) for _ in range(2))
    assert first == again


@pytest.mark.parametrize(("acceptance", "gain"), mostly_slow_rows([(0.5, 1.04), (0.7, 1.01)], 1))
def test_branches_verified_in_the_step_make_a_drafter_worth_more_where_rows_are_free(acceptance: float, gain: float) -> None:
    """Rounds that verify a chain only, though branches are there, against rounds that verify branches too."""
    verify, draft = FLAT.verify_curve(10_000), FLAT.draft_curve(500)
    away = World(verify, draft, ((Phase(acceptance),),), delay_us=4_000, output_len=192, hedge_acceptance=0.35)
    chains = simulate(away, ChainsOnly(), 800)
    trees = simulate(away, make_pacing("adaptive"), 800)
    assert trees.tokens_per_s > gain * chains.tokens_per_s
    assert trees.rows_per_step > chains.rows_per_step


def test_close_by_branches_are_asked_for_where_they_pay_and_left_where_they_make_the_chain_slow() -> None:
    verify, draft = FLAT.verify_curve(5_000), FLAT.draft_curve(1_000)
    near = World(verify, draft, ((Phase(0.5),),), delay_us=100, output_len=192)
    worlds = [replace(near, hedge_acceptance=share, hedge_toll=toll) for share, toll in ((0.0, 1.0), (0.35, 1.0), (0.35, 3.0))]
    without, hedged, dear = (simulate(world, make_pacing("adaptive"), 1_000) for world in worlds)
    assert hedged.tokens_per_s > 1.04 * without.tokens_per_s
    assert dear.tokens_per_s > 0.96 * without.tokens_per_s


class ChainsOnly(AdaptivePacing):
    """`adaptive` without side nodes in its steps."""

    def plan(self, view: StepView) -> PacingPlan:
        plan = super().plan(view)
        return replace(plan, take=tuple(replace(part, side_nodes=0) for part in plan.take))


def test_the_truth_goes_along_a_tree_as_an_engine_would() -> None:
    text = text_of(replace(WORLD, hedge_acceptance=0.5), 0, 0)
    begin = WORLD.prompt_len
    first, second, third = (int(token) for token in text.truth[begin : begin + 3])
    tree = DraftTree(np.array([1, first, 0, second, 1, third], np.int32), np.array([-1, -1, 1, 1, 3, 3], np.int32))
    assert text.path_along(begin, tree) == (1, 3, 5)
    assert text.path_along(begin + 1, tree) == ()
    assert text.path_along(begin, DraftTree.empty()) == ()


def test_luck_belongs_to_client_request_and_position_alone() -> None:
    texts = [text_of(WORLD, client, request) for client, request in ((0, 0), (0, 1), (1, 0))]
    rights = [text.guesses == text.truth for text in texts]
    assert (rights[0] == (text_of(WORLD, 0, 0).guesses == texts[0].truth)).all()
    assert not (rights[0] == rights[1]).all()
    assert not (rights[0] == rights[2]).all()


def test_guesses_are_right_as_often_as_each_phase_says() -> None:
    world = replace(WORLD, phases=((Phase(0.9, 20_000), Phase(0.2)),), output_len=40_000)
    text = text_of(world, 0, 0)
    right = (text.guesses == text.truth)[world.prompt_len :]
    assert right[:20_000].mean() == pytest.approx(0.9, abs=0.01)
    assert right[20_000:].mean() == pytest.approx(0.2, abs=0.01)


def test_acceptance_that_changes_in_mid_answer_changes_what_a_round_emits() -> None:
    always, never, half = (
        simulate(replace(WORLD, phases=phases), make_pacing("serial", 4), 2_000).mean_emitted_per_round
        for phases in (((Phase(0.9),),), ((Phase(0.0),),), ((Phase(0.9, 48), Phase(0.0)),))
    )
    assert never == pytest.approx(1.0)
    assert never + 0.3 < half < always - 0.3


def test_a_drafter_that_knows_when_it_is_wrong_wastes_nothing() -> None:
    """Stopping before every wrong guess and no right one, what is drafted is accepted, but for single guesses."""
    blind, sighted = (
        simulate(replace(WORLD, unsure_when_wrong=share, output_len=1_000), make_pacing("serial", 8), 2_000) for share in (0.0, 1.0)
    )
    assert sighted.acceptance_rate > 0.8 > blind.acceptance_rate + 0.2
    assert sighted.tokens_per_s > blind.tokens_per_s
    assert sighted.mean_emitted_per_round == pytest.approx(blind.mean_emitted_per_round, rel=0.1)


# --- time -----------------------------------------------------------------------------------------------------------------


def test_work_on_shared_cores_takes_longer_only_while_both_compute() -> None:
    cores = Cores(1.5, 2.0)
    cores.start(Role.VERIFIER, 300, 0)
    assert cores.dues_us[Role.VERIFIER] == 300
    cores.start(Role.DRAFTER, 50, 60)
    assert cores.dues_us[Role.DRAFTER] == 160
    assert cores.dues_us[Role.VERIFIER] == 60 + 360
    cores.finish(Role.DRAFTER, 160)
    assert cores.dues_us[Role.DRAFTER] is None
    assert cores.dues_us[Role.VERIFIER] == 334  # 60 alone, 100 at a speed of 2 / 3, the remaining 173.3 alone


def test_messages_arrive_in_order_after_their_delay() -> None:
    wire: Wire[str] = Wire(100)
    wire.send(["a", "b"], 0)
    wire.send([], 10)
    wire.send(["c"], 30)
    assert wire.due_us() == 100
    assert wire.arrived(99) == []
    assert wire.arrived(130) == [(100, "a"), (100, "b"), (130, "c")]
    assert wire.due_us() is None


class _NeverTakes:
    """Waits for drafts for ever, or until a time that is over."""

    name = "never"
    drafts = looks_up = hedges = False

    def __init__(self, wake_us: int | None) -> None:
        self._wake_us = wake_us

    def plan(self, view: StepView) -> PacingPlan:
        return PacingPlan((), self._wake_us, "never")

    def explain(self, view: StepView, plan: PacingPlan) -> PlanExplanation:
        return explain_plan(self.name, view, plan, view.cost, lambda session: no_choice(plain_promise(view)))

    def draft_ahead(self, session: SessionView) -> int:
        return 0

    def lets_rest(self, session: int, committed_len: int) -> bool:
        return True

    def takes_up_text(self, kind: int, shorter_kind: int) -> bool:
        return False

    def hedge_nodes(self, session: SessionView) -> int:
        return 0

    def flush_len(self, session: SessionView) -> int:
        return 0


@pytest.mark.parametrize("wake_us", [None, 5])
def test_a_policy_that_stands_still_is_named_so(wake_us: int | None) -> None:
    with pytest.raises(StuckError, match="policy"):
        simulate(WORLD, _NeverTakes(wake_us), 10)


def test_a_slow_way_costs_plain_decoding_nothing_and_serial_two_delays_a_round() -> None:
    near = replace(WORLD, output_len=1_000)
    far = replace(near, delay_us=5_000)
    assert simulate(near, PlainPacing(), 300) == simulate(far, PlainPacing(), 300)
    outcomes = [simulate(world, make_pacing("serial", 4), 1_000) for world in (near, far)]
    per_round = [outcome.elapsed_us / outcome.num_rounds for outcome in outcomes]
    assert per_round[1] - per_round[0] == pytest.approx(10_000, rel=0.05)


# --- worlds and grids -----------------------------------------------------------------------------------------------------


def test_profiles_are_read_as_they_are_written() -> None:
    assert Profile.parse("0.8").phases(100) == ((Phase(0.8),),)
    assert Profile.parse("0.9>0.2").phases(100) == ((Phase(0.9, 50), Phase(0.2)),)
    assert Profile.parse("0.9|0.3").phases(100) == ((Phase(0.9),), (Phase(0.3),))
    assert Profile.parse("0.9>0.2|0.5").mean == pytest.approx(1.6 / 3)


@pytest.mark.parametrize("text", ["", "x", "0.5>", "1.2", "-0.1", "0.5||0.6"])
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Profile.parse(text)


@pytest.mark.parametrize("text", ["serial:0", "serial:x", "serial:99", "nobody"])
def test_unknown_policies_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Contestant.parse(text)


def test_sessions_of_different_acceptance_need_several_sessions() -> None:
    cells = cells_of(Axes(("0.5", "0.9|0.1"), (2,), (0,), (1, 4), ("flat",)))
    assert [(cell.acceptance, cell.num_sessions) for cell in cells] == [("0.5", 1), ("0.5", 4), ("0.9|0.1", 4)]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_sessions": 0},
        {"delay_us": -1},
        {"verify_slowdown": 0.5},
        {"output_len": 0},
        {"phases": ((),)},
        {"hedge_acceptance": 1.5},
        {"hedge_toll": 0.5},
        {"hedge_acceptance": 0.5, "unsure_when_wrong": 0.5},
    ],
)
def test_worlds_that_cannot_be_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        replace(WORLD, **changes).check()  # type: ignore[arg-type]


def test_curves_come_from_a_file_of_measured_times(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    path.write_text(json.dumps({"verify_us": {"8": 3000, "1": 2000}, "draft_us": {"1": 400, "4": 500}}))
    shape = read_shape(path)
    assert shape.verify_curve(6_000).verify_us(8) == pytest.approx(9_000)
    assert shape.draft_curve(600).verify_us(4) == pytest.approx(750)
    path.write_text('{"verify_us": {"2": 1}}')
    with pytest.raises(InvalidRequest):
        read_shape(path)


# --- judging --------------------------------------------------------------------------------------------------------------


def test_a_broken_policy_is_reported_with_the_cell_in_which_it_fails() -> None:
    """Always drafting 16 loses where few are accepted, and the report says where and to whom."""
    results = list(run_cells(plan_of(Axes(("0.1", "0.98"), (2, 30), (0,), (1,), ("flat",)), ("serial:16",), 0.3), 1))
    worst = worst_of("serial:16", results)
    assert worst.ratio < 0.5
    assert worst.below >= 2
    assert worst.at.cell.acceptance == "0.1"
    assert worst.at.cell.cost_ratio == 2
    assert worst.at.best_fixed == "plain"
    assert worst_cells("serial:16", results, 1) == [worst.at]
    assert max(result.ratio("serial:16") for result in results) > 0.85  # where it belongs, it is no loser


def test_no_fixed_policy_exceeds_the_best_and_one_reaches_it() -> None:
    plan = plan_of(Axes(("0.6",), (5,), (0, 1), (1, 4), ("knee",)), ())
    for result in run_cells(plan, 1):
        assert max(result.ratio(name) for name in plan.fixed) == 1.0


def test_several_processes_give_the_results_of_one() -> None:
    plan = plan_of(Axes(("0.3", "0.9"), (5,), (0,), (2,), ("flat",)), ("serial",))
    assert list(run_cells(plan, 2)) == list(run_cells(plan, 1))


BEGUN, OVER = multiprocessing.Semaphore(0), multiprocessing.Semaphore(0)
AT_MOST_S = 20.0


def all_but_the_first_cell_take_long(cell: Cell, plan: Plan) -> CellResult:
    """In place of run_cell."""
    if cell.acceptance != "0.3":
        BEGUN.release()
        threading.Event().wait(AT_MOST_S)  # unless its process is ended
        OVER.release()
    return CellResult(cell, {}, plan.fixed)


def test_who_stops_early_waits_for_no_cell_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C, where a cell of many sessions may have minutes to go."""
    monkeypatch.setattr("outrider_bench.simulation.runner.run_cell", all_but_the_first_cell_take_long)
    plan = plan_of(Axes(("0.3", "0.6", "0.9"), (5,), (0,), (1,), ("flat",)), ())
    results = run_cells(plan, 2)
    assert next(results).cell == plan.cells[0]
    assert BEGUN.acquire(timeout=AT_MOST_S)
    results.close()
    assert not OVER.acquire(block=False)
    assert not multiprocessing.active_children()


def arguments(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["bench", "simulate", "--jobs", "1", "--share", "0.1", "--sessions", "1", "--curves", "flat", *options])


def test_the_command_reports_a_worst_ratio_and_fails_a_policy_below_the_floor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "simulated.md"
    fixed = ["--fixed", "plain", "serial:4", "--acceptances", "0", "0.9", "--cost-ratios", "5", "--delays", "0"]
    assert run(arguments(*fixed, "--policies", "serial:16", "--out", str(out))) == 1
    last = capsys.readouterr().out.strip().splitlines()[-1]
    result = json.loads(last.removeprefix("RESULT "))
    assert result["num_cells"] == 2
    assert result["worst_ratio"]["serial:16"]["ratio"] < 0.97
    assert result["worst_ratio"]["serial:16"]["best"] == "plain"
    assert "acceptance 0," in result["worst_ratio"]["serial:16"]["cell"]
    assert "serial:16" in out.read_text()
    assert out.with_suffix(".svg").stat().st_size > 1_000
    assert run(arguments(*fixed, "--acceptances", "0", "--policies", "serial:16", "--floor", "0.01")) == 0


def test_the_command_refuses_a_curve_it_does_not_know() -> None:
    with pytest.raises(InvalidRequest, match="curves"):
        run(arguments("--curves", "steep"))
