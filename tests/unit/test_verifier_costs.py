"""What a step costs, measured and refined, and how several policies share one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

import fakes_models
from fakes import TableEngine, TruthTable
from outrider.engine.config import EngineConfig
from outrider.engine.load import load_engine
from outrider.session.pacing.contract import CostCurve, SessionView
from outrider.session.pacing.round_model import Pace
from outrider.types.step import StepPlan, StepResult
from verifier_service.cost_model import (
    COPIED_TRUST,
    MAX_SURPRISE,
    MEASURED_ROWS,
    MOST_OF_ONE,
    MOST_US,
    OWN_STEPS,
    REFINE_RATE,
    CostModel,
    StepCosts,
    measure_cost,
)
from verifier_service.policy_key import PolicyKey
from verifier_service.step_planner import StepPlanner

TABLE = TruthTable(vocab_size=40, seed=3)


def test_the_cost_curve_is_measured_refined_and_never_falls() -> None:
    engine = TableEngine(TABLE, step_us=700)
    model = measure_cost(engine)
    assert engine.num_open == 0
    assert model.curve().verify_us(1) == 700
    assert model.curve().verify_us(64) == 700
    for _ in range(200):
        model.observe(16, 2_000)
        model.observe(30, 1_000)
    curve = model.curve()
    assert curve.verify_us(16) == pytest.approx(2_000, rel=0.02)
    costs = [us for _, us in curve.points]
    assert costs == sorted(costs)
    before = curve.verify_us(1)
    model.observe(1, 10_000_000)
    assert model.curve().verify_us(1) < 1.1 * before


def test_a_step_moves_the_point_nearest_by_ratio_and_those_that_saw_none_with_it() -> None:
    measured = (1, 2, 4, 8, 16, 32, 64)
    settled = CostModel({rows: 1_000.0 + rows / 100 for rows in measured})
    for rows in measured:
        for _ in range(100 * OWN_STEPS):
            settled.observe(rows, 1_000)
    before = dict(settled.curve().points)
    for num_rows in range(1, 200):
        model = deepcopy(settled)
        model.observe(num_rows, 2_000)
        nearest = min(measured, key=lambda rows: max(rows, num_rows) / min(rows, num_rows))
        moved = {rows: us / before[rows] - 1.0 for rows, us in model.curve().points}
        assert moved.pop(nearest) > 0.8 * REFINE_RATE
        assert all(change < REFINE_RATE / 20 for rows, change in moved.items() if rows < nearest), "they have seen enough of their own"
    fresh = CostModel({rows: 1_000.0 * rows for rows in measured})
    for _ in range(200):
        fresh.observe(1, 1_500)
    assert fresh.curve().verify_us(16) == pytest.approx(24_000, rel=0.05), "the machine was quieter when they were measured"


class SlowAtFirst(TableEngine):
    """Its first steps take ten times as long as all others."""

    num_slow = 7
    num_steps = 0

    def step(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        self.step_us = 7_000 if self.num_steps <= self.num_slow else 700
        return super().step(plan)


def test_a_slow_moment_while_the_curve_is_measured_is_no_point_s_alone() -> None:
    curve = measure_cost(SlowAtFirst(TABLE)).curve()
    assert {us for _, us in curve.points} == {700.0}
    assert len(curve.points) > SlowAtFirst.num_slow


class FreeToThree(TableEngine):
    """Three rows take what one takes, and each further one a quarter more: a processor with three rows in registers."""

    def step(self, plan: StepPlan) -> StepResult:
        self.step_us = 800 + 200 * max(0, sum(len(part.committed) + len(part.tokens) for part in plan.sequences) - 3)
        return super().step(plan)


def test_rows_that_cost_nothing_are_found_between_powers_of_two() -> None:
    curve = measure_cost(FreeToThree(TABLE)).curve()
    assert [curve.verify_us(rows) for rows in (1, 2, 3, 4, 6)] == [800.0, 800.0, 800.0, 1_000.0, 1_400.0]


class Rows(TableEngine):
    """A row takes so long; memory for steps of more than `most` rows there is none."""

    def __init__(self, us: int = 1_000, most: int = 512, num_blocks: int = 512) -> None:
        super().__init__(TABLE, num_blocks=num_blocks)
        self.us, self.most = us, most
        self.num_together: set[int] = set()

    def step(self, plan: StepPlan) -> StepResult:
        num_rows = sum(len(part.committed) + len(part.tokens) for part in plan.sequences)
        if num_rows > self.most:
            raise RuntimeError("no memory for so many rows")
        self.num_together.add(len(plan.sequences))
        self.step_us = num_rows * self.us
        return super().step(plan)


def test_more_rows_than_one_session_has_are_measured_as_they_come_of_several() -> None:
    engine = Rows(us=100)
    most = max(rows for rows in MEASURED_ROWS if rows <= engine.limits.max_rows)
    assert most > MOST_OF_ONE
    assert measure_cost(engine).curve().points[-1] == (most, 100.0 * most)
    assert max(engine.num_together) == most // MOST_OF_ONE
    assert engine.num_open == 0


def test_a_start_does_not_wait_for_steps_that_take_long() -> None:
    us = int(MOST_US / MOST_OF_ONE) // 2 + 1
    assert max(rows for rows, _ in measure_cost(Rows(us)).curve().points) == MOST_OF_ONE
    assert max(rows for rows, _ in measure_cost(Rows(us - 2)).curve().points) == 2 * MOST_OF_ONE


def test_where_there_is_no_room_for_many_rows_few_are_measured(caplog: pytest.LogCaptureFixture) -> None:
    engine = Rows(most=100)
    assert max(rows for rows, _ in measure_cost(engine).curve().points) == MOST_OF_ONE
    assert "steps of 128 rows and more are not measured: no memory for so many rows" in caplog.text
    assert engine.num_open == 0
    short = Rows()
    object.__setattr__(short, "_limits", replace(short.limits, max_context=120))
    assert max(rows for rows, _ in measure_cost(short).curve().points) <= MOST_OF_ONE, (
        "one has no room for so many levels, nor have several"
    )
    small = Rows(num_blocks=12)
    assert max(rows for rows, _ in measure_cost(small).curve().points) == MOST_OF_ONE
    assert small.num_open == 0


def test_a_step_of_few_rows_has_its_prompt_read_in_as_many(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    engine = load_engine(EngineConfig(str(tmp_path), num_threads=1, num_blocks=16, max_rows=6, probe=False))
    assert [rows for rows, _ in measure_cost(engine).curve().points] == [1, 2, 3, 4, 6]


def test_of_many_rows_few_say_little_and_nothing_that_is_cheaper() -> None:
    """A step of one row that takes a fifth longer for what comes beside it made steps of 512 seem eight milliseconds longer."""
    measured = {1: 1_000.0, 16: 1_600.0, 64: 3_000.0, 256: 12_000.0, 512: 25_000.0}
    model = CostModel(dict(measured))
    for _ in range(100):
        model.observe(1, 1_200)
    assert model.curve().verify_us(16) == pytest.approx(1_920.0, rel=0.02)
    assert model.curve().verify_us(512) == pytest.approx(25_000.0, rel=0.01)
    cheaper = CostModel(dict(measured))
    for _ in range(100):
        cheaper.observe(64, 2_000)
    assert cheaper.curve().verify_us(256) == 12_000.0
    for _ in range(200):
        cheaper.observe(256, 9_000)
    assert cheaper.curve().verify_us(256) == pytest.approx(9_000.0, rel=0.02), "its own steps say so"
    assert cheaper.curve().verify_us(512) == 25_000.0
    dearer = CostModel(dict(measured))
    for _ in range(200):
        dearer.observe(256, 18_000)
    assert dearer.curve().verify_us(512) == pytest.approx(37_500.0, rel=0.05)


def test_a_point_under_a_dearer_one_does_not_drift_away_unseen() -> None:
    model = CostModel({2: 1_000.0, 4: 800.0})
    for _ in range(1_000):
        model.observe(4, 900)  # against the curve's 1,000 a pleasant surprise, each time
    for _ in range(200):
        model.observe(2, 700)
    assert model.curve().verify_us(2) == pytest.approx(700, rel=0.02)
    assert model.curve().verify_us(4) == pytest.approx(900, rel=0.02)


def test_a_point_that_finds_its_own_way_up_says_nothing_of_the_machine() -> None:
    model = CostModel({1: 100.0, 2: 50.0, 4: 200.0})
    for _ in range(300):
        model.observe(2, 100)
    assert model.curve().verify_us(1) == pytest.approx(100, rel=0.02)
    assert model.curve().verify_us(4) == pytest.approx(200, rel=0.02)


def test_a_cache_too_small_to_measure_in_is_no_obstacle() -> None:
    assert measure_cost(TableEngine(TABLE, num_blocks=1)).curve().points
    assert CostModel({1: 1.0}).curve() == CostCurve(((1, 1.0),))


def test_steps_beside_a_drafter_at_work_do_not_make_the_others_look_dear() -> None:
    costs = StepCosts(CostModel({1: 1_000.0, 8: 1_200.0}))
    for _ in range(200):
        costs.observe(8, 2_400, drafting=True)
    assert costs.alone.curve().verify_us(8) == 1_200.0
    assert costs.drafting.curve().verify_us(8) == pytest.approx(2_400, rel=0.02)


def test_steps_that_were_computed_ahead_do_not_make_the_others_look_dear() -> None:
    costs = StepCosts(CostModel({1: 1_000.0, 8: 1_200.0}))
    assert costs.ahead is None
    for drafting in (False, True) * 100:
        costs.observe(8, 2_400, drafting=drafting, was_ahead=True)
    assert [each.curve().verify_us(8) for each in (costs.alone, costs.drafting)] == [1_200.0, 1_200.0]
    assert costs.ahead is not None
    assert costs.ahead.curve().verify_us(8) == pytest.approx(2_400, rel=0.02)


def test_a_plain_step_that_was_computed_ahead_says_what_plain_steps_cost() -> None:
    """Nearly all of them are, where any is: a curve that went by the others alone would know the first ones of each answer only."""
    costs = StepCosts(CostModel({1: 1_000.0, 8: 1_200.0}))
    for _ in range(200):
        costs.observe(1, 1_500, drafting=False, was_ahead=True)
    assert costs.alone.curve().verify_us(1) == pytest.approx(1_500, rel=0.02)
    assert costs.ahead is None, "of steps over drafts nothing was seen"


def test_what_steps_take_beside_a_drafter_is_learned_in_a_few_of_them() -> None:
    """A curve that was measured while drafters rested says nothing of shared cores; one stalled step still does not decide."""
    costs = StepCosts(CostModel({1: 1_000.0}))
    costs.observe(1, 50_000, drafting=True)
    assert costs.drafting.curve().verify_us(1) <= 1_000.0 * (1.0 + (MAX_SURPRISE - 1.0) / COPIED_TRUST)
    for _ in range(8):
        costs.observe(1, 2_000, drafting=True)
        costs.observe(1, 2_000, drafting=False)
    assert costs.drafting.curve().verify_us(1) > 1_650.0
    assert costs.alone.curve().verify_us(1) < 1_450.0, "what was measured as it is holds out longer"
    model = costs.drafting
    for _ in range(40):
        model.observe(1, 2_000)
    settled = model.curve().verify_us(1)
    model.observe(1, 4_000)
    assert model.curve().verify_us(1) == pytest.approx(settled + REFINE_RATE * settled, rel=0.05), "in the end slowly"


def view(session: int, **changes: object) -> SessionView:
    fields: dict[str, object] = {
        "session": session,
        "committed_len": 9,
        "num_uncached": 1,
        "num_nodes": 0,
        "depth": 0,
        "tail_ended": False,
        "has_drafter": True,
        "following": True,
        "waiting_since_us": 0,
        "draft_deadline_us": 500,
        "max_draft_len": 8,
        "remaining": 50,
        "draft_us_per_token": 0.0,
        "acceptance": 0.7,
    }
    return SessionView(**(fields | changes))  # type: ignore[arg-type]


def test_policies_share_a_step_and_its_rows() -> None:
    planner = StepPlanner(4)
    plain, serial, pearl = PolicyKey("plain"), PolicyKey("serial"), PolicyKey("pearl")
    for key in (plain, serial, pearl):
        planner.policy(key)
    cost = CostCurve(((1, 100.0),))
    views = [(plain, view(1)), (serial, view(2)), (pearl, view(3, following=False)), (serial, view(4, draft_deadline_us=300))]
    plan = planner.plan(views, cost, 64, 200)
    assert {entry.session for entry in plan.take} == {1, 3}
    assert plan.wake_us == 300
    for _ in range(4):
        plan = planner.plan([(plain, view(1)), (pearl, view(3, following=False))], cost, 1, 200)
        assert len(plan.take) == 1
    taken = [planner.plan([(plain, view(1)), (pearl, view(3, following=False))], cost, 1, 200).take[0].session for _ in range(4)]
    assert set(taken) == {1, 3}, "no policy starves"


def test_what_trees_take_is_not_taken_for_what_chains_do() -> None:
    """A level of a tree takes nine times as long here: a policy that learned from both would decode chains plainly that pay."""
    planner, chains, trees = StepPlanner(None), PolicyKey("adaptive"), PolicyKey("adaptive", trees=True)
    for key in (chains, trees):
        planner.policy(key)
    cost = CostCurve(((1, 500.0), (9, 900.0)))
    for at in range(40):
        for key, token_us in ((chains, 50.0), (trees, 450.0)):
            drafted = view(
                2 * at + (key is trees),
                committed_len=10 + at,
                draft_us_per_token=token_us,
                draft_alone_us=token_us,
                tells_start=True,
                num_tested=8,
                waiting_since_us=at * 1_000_000,
            )
            planner.plan([(key, drafted)], cost, 64, at * 1_000_000)
    known = {key: planner.policy(key)._rates.draft_us(Pace.SERIAL) for key in (chains, trees)}  # type: ignore[attr-defined]
    assert known == {chains: 50.0, trees: 450.0}
