"""Cores of idle drafters: who counts as idle, what policies are told of steps, and what the engine thread makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fakes import TableEngine, TruthTable
from fakes_simulation import spec_of
from outrider.session.events import DrafterFrameArrived, DrafterJoined, DrafterLost, RoundPlanned, RoundVerified
from outrider.session.pacing.serial import SerialPacing
from outrider.session.verifier import VerifierSession
from outrider.types.frames import Close, CloseReason, Opened, Tail, TailEnd
from outrider.types.tree import Verdict
from verifier_service.core_loan import CoreLoan, measure_loan
from verifier_service.cost_model import MOST_US, CostModel, measure_cost
from verifier_service.loan_worth import MIN_STAY, LoanWorth

TABLE = TruthTable(vocab_size=40, seed=3)
PROMPT = [5, 6, 7]
NEAR, FAR = "unix:/run/drafter.sock", "10.0.0.7:7000"
OWN, LENT = {1: 500.0, 8: 2_000.0}, {1: 1_100.0, 8: 1_200.0}


def session_drafted_by(drafter: str) -> VerifierSession:
    session = VerifierSession(spec_of(1, PROMPT, 30, TABLE), SerialPacing(4), 0)
    session.step(DrafterJoined(drafter, 0))
    return session


def read_prompt(session: VerifierSession) -> None:
    session.step(RoundPlanned(len(PROMPT), 0, 1))
    session.step(RoundVerified(Verdict((), TABLE.next(len(PROMPT), PROMPT[-1]), bonus=True), 1_000, 1_001))


def tail(session: VerifierSession, num_tokens: int, end: TailEnd) -> Tail:
    prefix = session.prefix.slice(0, session.committed_len).tolist()
    guesses = np.array(TABLE.answer(prefix, len(prefix) + num_tokens, frozenset()), np.int32)
    parents = np.arange(-1, num_tokens - 1, dtype=np.int32)
    return Tail(1, 1, 0, 0, len(prefix), session.prefix.hash, guesses, parents, end, "lab", 10, 0, 10_000)


def test_a_drafter_is_at_work_from_the_prompts_end_until_it_says_that_it_rests() -> None:
    session = session_drafted_by(NEAR)
    assert not session.is_drafted_for_by({NEAR}), "both read the prompt, and the drafter is done first"
    read_prompt(session)
    assert session.is_drafted_for_by({NEAR})
    assert not session.is_drafted_for_by({FAR})
    session.step(DrafterFrameArrived(NEAR, Opened(1, 1, len(PROMPT)), 1_100))
    assert session.is_drafted_for_by({NEAR}), "it has credit"
    session.step(DrafterFrameArrived(NEAR, tail(session, 2, TailEnd.MORE), 1_200))
    assert session.is_drafted_for_by({NEAR}), "and goes on"
    session.step(DrafterFrameArrived(NEAR, Tail(1, 1, 0, 2, 4, session.prefix.hash, *_nothing(), TailEnd.CONFIDENCE, "", 1, 0, 1), 1_300))
    assert not session.is_drafted_for_by({NEAR})


def _nothing() -> tuple[np.ndarray, np.ndarray]:
    return np.empty(0, np.int32), np.empty(0, np.int32)


def test_a_drafter_whose_credit_is_used_up_rests() -> None:
    session = session_drafted_by(NEAR)
    read_prompt(session)
    session.step(DrafterFrameArrived(NEAR, tail(session, 4, TailEnd.MORE), 1_200))
    assert not session.is_drafted_for_by({NEAR})


@pytest.mark.parametrize(
    "left", [DrafterLost(NEAR, "gone", 1_500), DrafterFrameArrived(NEAR, Close(1, 1, CloseReason.DRAINING, ""), 1_500)]
)
def test_a_drafter_that_left_rests(left: DrafterLost | DrafterFrameArrived) -> None:
    session = session_drafted_by(NEAR)
    read_prompt(session)
    assert session.is_drafted_for_by({NEAR})
    session.step(left)
    assert not session.is_drafted_for_by({NEAR})


def loan(*drafters: str) -> CoreLoan:
    given = CoreLoan(CostModel(OWN), CostModel(LENT), 2)
    given.observe_drafters(drafters)
    return given


def test_cores_are_lent_while_every_drafter_of_the_machine_rests() -> None:
    working, resting = session_drafted_by(NEAR), session_drafted_by(FAR)
    read_prompt(working)
    read_prompt(resting)
    given = loan(NEAR, FAR)
    assert given.threads(8, [working, resting]) == 0, "one works for another session"
    assert given.threads(8, [resting]) == 2, "far drafters have cores of their own"
    assert given.threads(8, []) == 2
    assert given.threads(1, [resting]) == 0, "at one row it does not pay"
    assert given.threads(1, [resting], reads=True) == 0
    given.observe_drafters([FAR])
    assert given.threads(8, [working]) == 2, "its stream is down"


def test_steps_computed_ahead_are_a_curve_of_their_own_and_no_verdict_on_a_loan() -> None:
    given = loan(NEAR)
    assert given.ahead is None
    before = given.curves()
    for _ in range(200):
        given.threads(8, [])
        given.observe(8, 9_000, 2, drafting=False, was_ahead=True)
        given.observe(1, 9_000, 2, drafting=True, was_ahead=True)
    assert given.curves() == before
    assert given.unlent == loan(NEAR).unlent, "nor of plain steps on nobody knows whose threads"
    assert given.ahead is not None
    assert given.ahead.verify_us(8) == pytest.approx(9_000, rel=0.02)


def test_that_plain_steps_are_computed_ahead_is_known_from_the_first() -> None:
    given = loan(NEAR)
    given.observe(1, 3_000, 2, drafting=False)
    given.observe(8, 9_000, 2, drafting=False, was_ahead=True)
    assert not given.plain_ahead, "of a round over guesses"
    given.observe(1, 3_000, 2, drafting=False, was_ahead=True)
    given.observe(1, 3_000, 2, drafting=False)
    assert given.plain_ahead, "the first behind a prompt is not"


def test_plain_steps_that_lent_threads_computed_ahead_are_what_such_steps_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    given, verdicts = loan(NEAR), list[int]()
    assert given._lent is not None
    monkeypatch.setattr(LoanWorth, "observe", lambda _, num_rows, step_us, *, lent: verdicts.append(step_us))
    given.threads(1, [], reads=True)
    for _ in range(200):
        given.observe(1, 500, 2, drafting=False, was_ahead=True)
    assert given._lent.alone.curve().verify_us(1) == pytest.approx(500, rel=0.02)
    assert given._own.alone.curve().verify_us(1) == OWN[1]
    assert not verdicts, "on whether the loan pays"
    given.observe(1, 900, 2, drafting=False)
    assert verdicts == [900]


def test_without_a_loan_nothing_is_lent_and_the_curves_are_the_engines_own() -> None:
    alone = CoreLoan(CostModel(OWN))
    alone.observe_drafters([NEAR])
    assert not alone.is_possible
    assert not alone.concerns_drafters, "nobody needs to ask what they do"
    assert alone.threads(8, []) == 0
    for _ in range(100):
        alone.observe(8, 4_000, 0, drafting=True)
    resting, drafting = alone.curves()
    assert resting.verify_us(8) == 2_000.0
    assert drafting.verify_us(8) == pytest.approx(4_000, rel=0.02)
    for _ in range(200):
        alone.observe(1, 3_000, 0, drafting=False, was_ahead=True)
    assert alone.curves()[0].verify_us(1) == pytest.approx(3_000, rel=0.02), "of plain steps those that were ahead tell"


@pytest.mark.parametrize(("drafters", "drafting_us"), [([NEAR], 2_000.0), ([NEAR, FAR], 2_000.0), ([FAR], 1_200.0), ([], 1_200.0)])
def test_policies_are_told_what_the_coming_step_costs(drafters: Sequence[str], drafting_us: float) -> None:
    given = loan(NEAR)
    assert given.curves()[1].verify_us(8) == given.unlent.verify_us(8) == 2_000.0
    given.observe_drafters(drafters)
    assert given.unlent.verify_us(8) == 2_000.0, "whoever is connected"
    resting, drafting = given.curves()
    assert resting.points == ((1, 500.0), (8, 1_200.0)), "with a loan where it pays"
    assert drafting.verify_us(8) == drafting_us, "beside a drafter of this machine there is none"
    for _ in range(100):
        given.observe(8, 3_000, 0, drafting=True)
    assert given.unlent.verify_us(8) == pytest.approx(3_000, rel=0.02)


def test_policies_are_told_when_the_loan_changes_its_mind() -> None:
    given = loan()
    before = [given.curves()[0].verify_us(8)]
    for _ in range(2 * MIN_STAY):
        lent = given.threads(8, [])
        given.observe(8, 4_000 if lent else 2_000, lent, drafting=False)
        before.append(given.curves()[0].verify_us(8))
    assert before[0] == 1_200.0
    assert max(before) > 1_500.0
    assert before[-1] == 2_000.0
    assert given.curves()[1].verify_us(8) == 2_000.0


@pytest.mark.parametrize(("own", "lent"), [(OWN, {1: 400.0, 8: 1_200.0}), (OWN, {1: 1_100.0, 8: 4_200.0}), (OWN, LENT)])
def test_the_curve_is_by_rows_that_of_the_way_in_use(own: dict[int, float], lent: dict[int, float]) -> None:
    given = CoreLoan(CostModel(own), CostModel(lent), 2)
    used = {rows: lent if given.threads(rows, []) else own for rows in own}
    assert given.curves()[0].points == tuple((rows, costs[rows]) for rows, costs in used.items())


def test_what_was_measured_with_a_loan_says_nothing_of_steps_without() -> None:
    given = loan(NEAR)
    for _ in range(200):
        lent = given.threads(8, [])
        given.observe(8, 1_500 if lent else 2_000, lent, drafting=False)
    resting, drafting = given.curves()
    assert resting.verify_us(8) == pytest.approx(1_500, rel=0.02)
    assert drafting.verify_us(8) == 2_000.0
    for _ in range(200):
        given.observe(8, 3_000, 0, drafting=True)
    resting, drafting = given.curves()
    assert resting.verify_us(8) == pytest.approx(1_500, rel=0.02)
    assert drafting.verify_us(8) == pytest.approx(3_000, rel=0.02)


def test_steps_beside_a_drafter_at_work_do_not_judge_the_loan() -> None:
    working = session_drafted_by(NEAR)
    read_prompt(working)
    given = loan(NEAR)
    for _ in range(500):
        given.observe(8, 500, given.threads(8, [working]), drafting=True)
    assert given.threads(8, []) == 2, "quick steps without a loan, but not of those that could have had one"


def test_prompts_are_not_read_the_other_way_to_find_out() -> None:
    given = loan()
    for _ in range(400):
        given.threads(8, [])
        given.observe(8, 1_200, 2, drafting=False)
    assert given.threads(8, []) == 0, "a probe is due"
    assert given.threads(8, [], reads=True) == 2


def test_a_loan_that_is_out_ends_before_a_drafter_of_this_machine_hears_of_anything() -> None:
    engine = TableEngine(TABLE, lent_threads=2)
    ended: list[bool] = []
    engine.end_loan = lambda: ended.append(True)  # type: ignore[method-assign]
    given = loan(NEAR, FAR)
    given.give_back(engine, [NEAR])
    assert not ended, "nothing is out"
    assert given.threads(8, []) == 2
    given.give_back(engine, [FAR])
    given.give_back(engine, [])
    given.give_back(engine, ["unix:/run/nobody.sock"])
    assert not ended
    given.give_back(engine, [FAR, NEAR])
    given.give_back(engine, [NEAR])
    assert ended == [True], "once"
    assert given.threads(8, []) == 2
    assert given.threads(1, []) == 0, "the engine takes this for the end of the loan"
    given.give_back(engine, [NEAR])
    assert ended == [True]


def test_both_ways_are_measured_at_start_where_the_engine_can_lend() -> None:
    engine = TableEngine(TABLE, step_us=900, lent_threads=3, lent_step_us=500)
    given = measure_loan(engine)
    assert given.curves()[0].verify_us(4) == 500
    assert given.threads(4, []) == 3
    assert set(engine.lent) == {0, 3}
    assert engine.held == 0, "nothing is kept of what was only measured"
    fixed = TableEngine(TABLE, step_us=900)
    assert measure_loan(fixed).threads(4, []) == 0
    assert set(fixed.lent) == {0}
    assert len(fixed.lent) == len(engine.lent) / 2
    assert engine.num_open == 0


@pytest.mark.parametrize("slow", ["without what is lent", "with it"])
def test_both_ways_are_known_for_the_same_rows(slow: str) -> None:
    """Of a large target: so many rows take too long to be measured in one way, and not in the other."""
    slow_us, quick_us = int(MOST_US), int(MOST_US) // 4
    own_us, lent_us = (slow_us, quick_us) if slow == "without what is lent" else (quick_us, slow_us)
    engine = TableEngine(TABLE, num_blocks=1024, step_us=own_us, lent_threads=3, lent_step_us=lent_us)
    assert max(measure_cost(engine).rows) != max(measure_cost(engine, 3).rows)
    given = measure_loan(engine)
    curves = given.curves()[0], given.unlent
    assert {us for _, us in curves[0].points} == {quick_us}, "the quicker way of each step"
    assert {us for _, us in curves[1].points} == {own_us}
    assert [rows for rows, _ in curves[0].points] == [rows for rows, _ in curves[1].points]
