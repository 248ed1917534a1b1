"""What several sequences of a step cost beyond its rows, and what this side does for their guesses: learned apart, from steps that tell.

Run: pytest tests/unit/test_verifier_company_costs.py
"""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fakes import TableEngine
from fakes_scheduler import TABLE, Loop, ended
from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionPlan
from outrider.types.step import StepResult
from verifier_service.core_loan import CoreLoan
from verifier_service.cost_model import CostModel, SequenceCost, StepCosts
from verifier_service.guess_handling import RATE, GuessHandling
from verifier_service.target_steps import TargetSteps

ROWS = {1: 900.0, 4: 930.0, 16: 1_200.0, 64: 2_800.0}
SEQUENCE_US = 60
WAIT_US = 7_000


def step_us(num_rows: int, num_sequences: int) -> int:
    """Of a target of which each further sequence adds SEQUENCE_US."""
    return round(CostCurve(tuple(ROWS.items())).verify_us(num_rows) + SEQUENCE_US * (num_sequences - 1))


def after_steps(*steps: tuple[int, int], drafting: bool = False, times: int = 100) -> StepCosts:
    """steps: rows and sequences of each."""
    costs = StepCosts(CostModel(dict(ROWS)))
    for num_rows, num_sequences in steps * times:
        costs.observe(num_rows, step_us(num_rows, num_sequences), drafting=drafting, num_sequences=num_sequences)
    return costs


def test_steps_of_a_row_each_tell_what_a_sequence_adds_and_leave_the_rows_alone() -> None:
    costs = after_steps((16, 16), (4, 4))
    assert costs.sequences.us(16) == pytest.approx(SEQUENCE_US, rel=0.02)
    assert dict(costs.alone.curve().points) == ROWS, "a crowd's step says nothing of the rows of one"


def test_steps_with_guesses_tell_what_rows_cost_once_it_is_known_what_sequences_do() -> None:
    costs = after_steps((16, 16))
    for _ in range(200):
        costs.observe(64, 5_000 + 15 * SEQUENCE_US, drafting=False, num_sequences=16)
    assert costs.alone.curve().verify_us(64) == pytest.approx(5_000, rel=0.05)
    assert costs.sequences.us(16) == pytest.approx(SEQUENCE_US, rel=0.02)


def test_steps_beside_drafters_at_work_tell_nothing_of_sequences() -> None:
    """On shared cores they take longer, and that is the drafters'."""
    costs = after_steps((16, 16))
    for _ in range(50):
        costs.observe(16, 2 * step_us(16, 16), drafting=True, num_sequences=16)
    assert costs.sequences.us(16) == pytest.approx(SEQUENCE_US, rel=0.02)
    assert costs.drafting.curve().verify_us(16) + 15 * SEQUENCE_US == pytest.approx(2 * step_us(16, 16), rel=0.05)
    assert dict(costs.alone.curve().points) == ROWS


def test_what_is_not_known_of_so_many_sequences_is_that_of_the_number_nearest_to_it() -> None:
    costs = SequenceCost()
    assert costs.us(8) == 0.0
    costs.observe(4, 3 * 40.0)
    costs.observe(40, 39 * 90.0)
    assert [costs.us(num) for num in (2, 4, 7, 32, 64)] == [40.0, 40.0, 40.0, 90.0, 90.0]
    costs.observe(4, -500.0)
    assert costs.us(4) >= 0.0


def test_a_step_that_stalled_does_not_make_sequences_dear_and_cheap_ones_may_grow_dear() -> None:
    costs = after_steps((8, 8))
    before_us = costs.sequences.us(8)
    costs.observe(8, 50 * step_us(8, 8), drafting=False, num_sequences=8)
    assert costs.sequences.us(8) < before_us + step_us(8, 8) / 7 / 15
    free = StepCosts(CostModel(dict(ROWS)))
    for _ in range(100):
        free.observe(8, 500, drafting=False, num_sequences=8)  # less than its rows should take
    assert free.sequences.us(8) == 0.0
    for _ in range(60):
        free.observe(8, step_us(8, 8), drafting=False, num_sequences=8)
    assert free.sequences.us(8) == pytest.approx(SEQUENCE_US, rel=0.05)


def test_policies_are_told_what_steps_of_so_many_sessions_cost() -> None:
    loan = CoreLoan(CostModel(dict(ROWS)))
    for _ in range(50):
        loan.observe(8, step_us(8, 8), 0, drafting=False, num_sequences=8)
    for curve in loan.curves(8):
        assert curve.verify_us(8) == pytest.approx(step_us(8, 8), rel=0.01)
        assert curve.verify_us(40) == pytest.approx(step_us(40, 8), rel=0.01), "more rows of the same eight"
        assert curve.verify_us(1) == ROWS[1], "of one of them alone"
        assert curve.shared_by(16).verify_us(16) == pytest.approx(step_us(16, 16), rel=0.01)
    assert loan.curves()[0].verify_us(8) == pytest.approx(step_us(8, 1), rel=0.01)


def test_steps_on_lent_cores_have_sequences_of_their_own() -> None:
    loan = CoreLoan(CostModel(dict(ROWS)), CostModel({rows: us / 2 for rows, us in ROWS.items()}), 1)
    for _ in range(50):
        loan.threads(8, ())
        loan.observe(8, step_us(8, 1) // 2 + 7 * 20, 1, drafting=False, num_sequences=8)
    assert loan.curves(8)[0].sequence_us == pytest.approx(20, rel=0.05)
    loan.observe_drafters(["unix:/run/near.sock"])
    assert loan.curves(8)[1].sequence_us == 0.0, "beside a drafter of this machine nothing is lent, and of that nothing is known"


# --- what this side does for guesses ----------------------------------------------------------------------------------


def test_what_guesses_take_is_what_a_turn_takes_beyond_one_without() -> None:
    handling = GuessHandling()
    handling.observe(16, 16, 9_000.0)
    assert handling.us == 0.0, "what turns take without guesses is not known"
    for _ in range(20):
        handling.observe(16, 0, 800.0)
    for num_guessing in (16, 4) * 60:
        handling.observe(16, num_guessing, 800.0 + 250.0 * num_guessing)
    assert handling.us == pytest.approx(250.0, rel=0.02)
    handling.observe(16, 16, 1e9)
    assert handling.us < 250.0 * (1.0 + 2.1 * RATE)


def test_a_few_probes_among_many_sessions_say_little_of_what_guesses_take() -> None:
    handling, luck = GuessHandling(), random.Random(5)
    for _ in range(200):
        handling.observe(64, 0, luck.uniform(2_000.0, 6_000.0))
    for _ in range(100):
        handling.observe(64, 1, luck.uniform(2_000.0, 6_000.0) + 150.0)
        assert handling.us < 60.0, "a turn of 64 takes 2 ms more or less, and one probe's handling is blamed for it"
    for _ in range(10):
        handling.observe(64, 64, luck.uniform(2_000.0, 6_000.0) + 64 * 150.0)
    assert handling.us == pytest.approx(150.0, rel=0.15)


# --- the steps themselves ---------------------------------------------------------------------------------------------


class Steps:
    """TargetSteps whose sessions, planner and clock are the test's. STEP_US, TURN_US: of a step, and between two."""

    STEP_US, TURN_US = 1_000, 300

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num: int) -> None:
        self.live = dict.fromkeys(range(num))
        self.num_asked, self.now_us, self.num_guessing, self.num_read, self.most_taken = 0, 0, 0, 0, num
        self.seen: list[tuple[int, int, int]] = []
        monkeypatch.setattr("verifier_service.target_steps.monotonic_us", lambda: self.now_us)
        engine = SimpleNamespace(limits=SimpleNamespace(max_rows=512), identity=SimpleNamespace(model="any"), step=self._step)
        loan = SimpleNamespace(
            curves=lambda _num=1: (CostCurve(((1, 1.0),)), None),
            ahead=None,
            plain_ahead=False,
            is_possible=False,
            count=lambda _: None,
            observe=self._observe,
        )
        planner = SimpleNamespace(plan=self._plan)
        nothing = SimpleNamespace(observe=lambda *_: None, bound=lambda *_: None)
        self.sessions = _Sessions(self, SimpleNamespace(price=nothing, observe=lambda *_: None))
        self.steps = TargetSteps(*(cast(Any, one) for one in (engine, loan, self.sessions, planner, None)))
        self.handled: list[tuple[int, int, float]] = []
        monkeypatch.setattr(self.steps._handling, "observe", lambda *told: self.handled.append(told))

    def _plan(self, views: list[Any], *_: object, **__: object) -> PacingPlan:
        self.num_asked += 1
        taken = [view.session for _, view in views][: self.most_taken]
        return PacingPlan(tuple(SessionPlan(session, 1, 0) for session in taken), None, "verify", 15)

    def _step(self, plan: Any) -> StepResult:
        self.now_us += self.STEP_US
        results = tuple(SimpleNamespace(logprobs=None, verdict=None) for _ in plan.sequences)
        return StepResult(cast(Any, results), self.STEP_US, self.STEP_US, len(plan.sequences))

    def _observe(self, num_rows: int, step_us: int, *_: object, num_sequences: int, **__: object) -> None:
        self.seen.append((num_rows, step_us, num_sequences))

    def turn(self, rested_us: int = 0, num_frames: int = 0) -> None:
        """Take in frames, plan, and take the step."""
        self.sessions.num_frames += num_frames
        self.now_us += self.TURN_US + rested_us
        self.steps.rested_us += rested_us
        self.steps.take(self.steps.plan().take)


class _Sessions:
    """All of them ready and alike, and quiet once they were planned."""

    def __init__(self, of: Steps, queue: object) -> None:
        self._of, self.queue = of, queue
        self.planned: set[int] = set()
        self.num_frames = 0

    def __len__(self) -> int:
        return len(self._of.live)

    def __contains__(self, handle: int) -> bool:
        return handle in self._of.live

    def __iter__(self) -> Any:
        return iter([self[handle] for handle in self._of.live])

    def __getitem__(self, handle: int) -> Any:
        at_work = handle < self._of.num_guessing
        view = SimpleNamespace(session=handle, num_uncached=1, is_drafting=at_work, depth=0)
        session = SimpleNamespace(
            is_ready=True, is_reading=False, grows_quietly=not at_work and handle in self.planned, lookup_promise=0.0, lookup_rights=(),
            view=lambda _: view, statistics=SimpleNamespace(plan_ns=0),
        )  # fmt: skip
        row = SimpleNamespace(committed=(1,), tokens=(), sequence=handle)
        return SimpleNamespace(
            session=session, policy="any", handle=handle, is_left_out=lambda _: False, answer=SimpleNamespace(has_begun=True),
            rows=lambda _: row,
        )  # fmt: skip

    def apply(self, hosted: Any, *_: object) -> list[None]:
        self.planned.add(hosted.handle)
        return [None]

    def apply_round(self, *_: object) -> None: ...


def test_a_plan_is_repeated_without_those_that_ended_as_long_as_most_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Steps(monkeypatch, 8)
    made.turn()
    for gone in (0, 1):
        del made.live[gone]
        made.turn()
    assert made.num_asked == 1
    assert [seen[0] for seen in made.seen] == [8, 7, 6]
    del made.live[2]
    made.turn()
    assert made.num_asked == 2, "of five of eight another plan may be better"
    made.live[99] = None
    made.turn()
    assert made.num_asked == 3
    assert made.seen[-1] == (6, made.STEP_US, 6), "whoever comes is planned for"


def test_one_that_came_in_place_of_one_that_ended_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Steps(monkeypatch, 8)
    made.turn()
    del made.live[0]
    made.live[99] = None
    made.turn()
    assert made.num_asked == 2


def test_turns_between_steps_of_the_same_sessions_are_told_without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Steps(monkeypatch, 4)
    made.turn()
    made.turn(rested_us=5_000)
    assert not made.handled, "a turn whose plan is repeated has no plan's time"
    made.steps._num_repeated = 15
    made.turn(rested_us=5_000)
    made.num_guessing = 3
    made.turn(num_frames=3)
    assert made.handled == [(4, 0, made.TURN_US), (4, 3, made.TURN_US)]
    made.turn()
    assert len(made.handled) == 2, "drafters are at work, and nothing has come of it yet"
    del made.live[3]
    made.turn(num_frames=2)
    assert len(made.handled) == 2, "an end takes time of its own"
    made.most_taken = 2
    made.turn(num_frames=2)
    assert made.handled[2:] == [(3, 2, made.TURN_US)]
    made.turn(num_frames=2)
    assert made.handled[3:] == [(2, 2, made.TURN_US)], "of a group, what was done behind its step"


def test_one_session_waits_for_nobody_and_its_turns_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Steps(monkeypatch, 1)
    made.num_guessing = 1
    for _ in range(3):
        made.turn()
    assert (len(made.seen), made.handled) == (3, [])


def test_who_had_guesses_when_a_plan_was_made_has_none_when_it_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Steps(monkeypatch, 4)
    made.num_guessing = 2
    made.turn()
    made.num_guessing = 0
    made.turn()
    assert (made.num_asked, made.handled) == (1, [])


def test_what_was_rested_before_a_turn_that_tells_nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Steps(monkeypatch, 2)
    made.num_guessing = 1
    for _ in range(2):
        made.turn(rested_us=7_000, num_frames=1)
    assert made.handled == [(2, 1, made.TURN_US)]


async def test_waiting_for_something_to_do_is_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by WAIT_US with each look at it: a wait is between two of them."""
    monkeypatch.setattr("verifier_service.scheduler.monotonic_us", itertools.count(0, WAIT_US).__next__)
    loop = Loop(TableEngine(TABLE, num_blocks=1024))
    rested_us: list[int] = []
    end_turn = loop.scheduler.steps._end_turn

    def noted(*, reads: bool) -> None:
        rested_us.append(loop.scheduler.steps.rested_us)
        end_turn(reads=reads)

    monkeypatch.setattr(loop.scheduler.steps, "_end_turn", noted)
    ended(loop, loop.open(4))
    loop.stop()
    assert rested_us[0] >= WAIT_US
    assert rested_us[1:] == [WAIT_US] * (len(rested_us) - 1), "one wait before each step, and those before are forgotten"
    assert len(rested_us) > 1
