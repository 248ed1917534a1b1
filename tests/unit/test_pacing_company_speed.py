"""What sessions got together, against what their courses promised.

Run: pytest tests/unit/test_pacing_company_speed.py
"""

from __future__ import annotations

import pytest

from fakes_pacing import NOW_US, session_view
from outrider.session.pacing.company_speed import SESSIONS_A_ROUND, CompanySpeed
from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionPlan, SessionView, StepView
from outrider.session.pacing.pace_memory import TRUST_ROUNDS
from outrider.session.pacing.prefill_bound import PrefillBound
from outrider.session.pacing.round_model import Course, Pace

COST = CostCurve(((1, 10_000.0), (64, 10_000.0)))
ROW_US = 100.0
RIGHT, GUESSES = 0.75, 4
EMITTED = sum(RIGHT**depth for depth in range(GUESSES + 1))  # tokens to expect of a round, 3.05
COURSES = {
    Pace.PLAIN: Course(Pace.PLAIN, 0, 0, 0, 1e-4, 10_000.0, 10_000.0),
    Pace.SERIAL: Course(Pace.SERIAL, 4, 4, 4, EMITTED / 10_000.0, 10_000.0, 10_000.0, 1_000.0, 2),
    Pace.AHEAD: Course(Pace.AHEAD, 4, 4, 9, EMITTED / 10_000.0, 10_000.0, 10_000.0),
}


class Company:
    """Sessions whose steps take as long, and bring as much, as a test says."""

    def __init__(self, num: int = 4, pace: Pace = Pace.SERIAL) -> None:
        self.speed, self.pace, self.now_us = CompanySpeed(), pace, NOW_US
        self.lengths = dict.fromkeys(range(num), 100)
        self.reading: dict[int, int] = {}  # rows of prompts
        self.guess_us = 0.0
        self.times_repriced = 0
        self.step()

    def view(self) -> StepView:
        drafted = {"acceptance": RIGHT, "num_tested": 99, "lookup_rights": (0.9, 0.9)}
        decoding = [session_view(one, GUESSES, committed_len=at, **drafted) for one, at in self.lengths.items() if one not in self.reading]
        reading = [session_view(one, num_uncached=rows, committed_len=rows) for one, rows in self.reading.items()]
        bound = PrefillBound(COST, 4.0, len(decoding), ROW_US)
        sessions = (*decoding, *reading)
        return StepView(sessions, COST, 64, self.now_us, prefill=bound if reading else None, guess_us=self.guess_us)

    def step(
        self, took_us: int = 0, num_tokens: int = 0, *, waits: bool = False, measured: bool = True, guesses: int = GUESSES, **changes: bool
    ) -> None:
        """Of one that was planned before; then another is planned, with so many guesses of each session. waits: nobody is taken.
        changes: by_text, their guesses are the text's; decodes=False, nobody who decodes is taken."""
        self.now_us += took_us
        for at in range(num_tokens):
            self.lengths[list(self.lengths)[at % len(self.lengths)]] += 1
        view = self.view()
        self.times_repriced += self.speed.observe(view)
        parts = [self.part(one, guesses, by_text=changes.get("by_text", False)) for one in view.sessions]
        taken = [part for part in parts if part.max_feed > 1 or changes.get("decodes", True)]
        course = COURSES[self.pace] if measured else replace_speed(0.0)
        self.speed.planned(view, PacingPlan(() if waits else tuple(taken), None, "verify"), lambda _: course)

    @staticmethod
    def part(session: SessionView, guesses: int, *, by_text: bool) -> SessionPlan:
        return SessionPlan(session.session, session.num_uncached, 0 if session.num_uncached > 1 else guesses, from_lookup=by_text)


def replace_speed(tokens_per_us: float) -> Course:
    return COURSES[Pace.SERIAL]._replace(tokens_per_us=tokens_per_us)


@pytest.mark.parametrize("pace", list(Pace))
def test_a_pace_is_worth_what_it_brings_of_what_it_promises(pace: Pace) -> None:
    four = Company(pace=pace)
    promised = round(10_000 * 4 * COURSES[pace].tokens_per_us)
    for _ in range(300):
        four.step(10_000, promised)
    assert four.speed.factor(pace) == pytest.approx(1.0)
    for _ in range(400):
        four.step(20_000, promised)
    assert four.speed.factor(pace) == pytest.approx(0.5, rel=0.15)
    assert all(four.speed.factor(other) == 1.0 for other in Pace if other is not pace)


def test_plain_steps_that_were_not_asked_for_one_by_one_are_as_many_rounds() -> None:
    at_once, one_by_one = Company(pace=Pace.PLAIN), Company(pace=Pace.PLAIN)
    at_once.step(16 * 11_500, 16 * 4)
    for _ in range(16):
        one_by_one.step(11_500, 4)
    assert at_once.speed.factor(Pace.PLAIN) == pytest.approx(one_by_one.speed.factor(Pace.PLAIN), rel=0.02)
    assert at_once.speed.factor(Pace.PLAIN) < 0.95
    stalled = Company(pace=Pace.PLAIN)
    stalled.step(16 * 100_000, 16 * 4)
    assert stalled.speed.factor(Pace.PLAIN) > 0.85, "one of them may have stalled"


def test_what_a_prompt_takes_is_nobody_s_fault() -> None:
    for pace in Pace:
        four = Company(pace=pace)
        four.lengths[9], four.reading[9] = 40, 40
        four.step()
        promised = round(10_000 * 4 * COURSES[pace].tokens_per_us)
        for _ in range(100):
            four.step(10_000 + round(40 * ROW_US))
            for at in range(promised):
                four.lengths[at % 4] += 1
        assert four.speed.factor(pace) == pytest.approx(1.0, rel=0.02)


def test_steps_count_with_the_waits_before_them() -> None:
    """Of drafts in turns half a round may be waiting: left out, a round that takes twice as long as promised keeps its promise."""
    four = Company()
    for _ in range(200):
        four.step(10_000, 12, waits=True)
        four.step(6_000, waits=True)
        four.step(4_000)
    assert four.speed.factor(Pace.SERIAL) == pytest.approx(0.5, rel=0.15), "12 tokens in 20 ms, where they promise as many in ten"


def test_a_wait_of_those_who_left_is_nobody_s() -> None:
    """They may have been gone for long when others come."""
    four = Company()
    four.step(10_000, 12, waits=True)
    del four.lengths[3]
    four.lengths[7] = 100
    four.step(90_000_000)
    four.step(10_000, 12)
    assert four.speed.factor(Pace.SERIAL) == pytest.approx(1.0)


@pytest.mark.parametrize("pace", [Pace.SERIAL, Pace.AHEAD])
def test_a_step_in_which_nobody_decodes_counts_with_the_next(pace: Pace) -> None:
    """It reads somebody's prompt: what follows has guesses again."""
    four = Company(pace=pace)
    four.lengths[9], four.reading[9] = 40, 40
    for _ in range(200):
        four.step(5_000 + round(40 * ROW_US), 12, decodes=False)
        four.step(5_000 + round(40 * ROW_US))
    assert four.speed.factor(pace) == pytest.approx(1.0, rel=0.02)


def test_steps_without_guesses_that_were_not_asked_for_one_by_one_bring_what_they_bring() -> None:
    """Sessions whose drafters are gone, or still being opened: their courses promise drafts, and one plan holds for many steps."""
    at_once = Company(pace=Pace.SERIAL)
    at_once.step(10_000, 12, guesses=0)
    at_once.step(16 * 10_000, 16 * 4)
    assert at_once.speed.factor(Pace.SERIAL) == pytest.approx((2.0 + TRUST_ROUNDS) / (1.0 + EMITTED + TRUST_ROUNDS), rel=0.02)


def test_guesses_to_be_verified_by_sessions_that_go_without_since_are_no_promise() -> None:
    four = Company(pace=Pace.SERIAL)
    four.lengths[9], four.reading[9] = 40, 40
    four.step(10_000, 12, decodes=False)
    four.pace = Pace.PLAIN
    four.step(5_000)
    four.step(10_000, 4)
    assert four.speed.factor(Pace.SERIAL) == 1.0


@pytest.mark.parametrize("pace", [Pace.SERIAL, Pace.AHEAD])
def test_guesses_that_are_missing_break_a_promise_and_wrong_ones_do_not(pace: Pace) -> None:
    four = Company(pace=pace)
    for _ in range(200):
        four.step(10_000, 1)
    assert four.speed.factor(pace) == pytest.approx(1.0), "the acceptance was wrong, or they had bad luck"
    for _ in range(400):
        four.step(10_000, 16, guesses=1)
    assert four.speed.factor(pace) == pytest.approx((1.0 + RIGHT) / EMITTED, rel=0.1)


def test_guesses_from_the_text_bring_what_its_odds_say() -> None:
    four = Company(pace=Pace.AHEAD)
    for _ in range(400):
        four.step(10_000, 4, guesses=2, by_text=True)
    assert four.speed.factor(Pace.AHEAD) == pytest.approx((1.0 + 0.9 + 0.81) / EMITTED, rel=0.05)


def test_nothing_follows_from_who_left_from_one_alone_or_from_courses_that_promise_nothing() -> None:
    gone = Company()
    del gone.lengths[3]
    gone.step(90_000, 3)
    alone = Company(num=1)
    alone.step(90_000, 1)
    unmeasured = Company(num=0)
    unmeasured.lengths = dict.fromkeys(range(4), 100)
    for _ in range(3):
        unmeasured.step(90_000, 4, measured=False)
    assert {one.speed.factor(Pace.SERIAL) for one in (gone, alone, unmeasured)} == {1.0}
    gone.step(90_000, 3)
    assert gone.speed.factor(Pace.SERIAL) < 1.0, "those that stay go on"


def test_what_drafting_took_is_forgotten_slowly_by_plain_rounds() -> None:
    four = Company(pace=Pace.AHEAD)
    for _ in range(60):
        four.step(30_000, 12)
    slow = four.speed.factor(Pace.AHEAD)
    four.pace = Pace.PLAIN
    for _ in range(20):
        four.step(16 * 10_000, 16 * 4)
    assert slow < four.speed.factor(Pace.AHEAD) < 0.8
    for _ in range(200):
        four.step(16 * 10_000, 16 * 4)
    assert four.speed.factor(Pace.AHEAD) > 0.95


def test_before_several_shared_a_step_a_pace_is_as_it_was_alone() -> None:
    four = Company()
    assert four.speed.factor(Pace.SERIAL, 0.6) == pytest.approx(0.6)
    for _ in range(400):
        four.step(10_000, 12)
    assert four.speed.factor(Pace.SERIAL, 0.6) == pytest.approx(1.0, rel=0.15)


def test_a_step_of_many_sessions_says_more() -> None:
    few, many = Company(num=SESSIONS_A_ROUND), Company(num=4 * SESSIONS_A_ROUND)
    for one in (few, many):
        one.step(20_000, round(10_000 * len(one.lengths) * COURSES[Pace.SERIAL].tokens_per_us))
    assert few.speed.factor(Pace.SERIAL) == pytest.approx((1.0 + TRUST_ROUNDS) / (2.0 + TRUST_ROUNDS))
    assert many.speed.factor(Pace.SERIAL) == pytest.approx((4.0 + TRUST_ROUNDS) / (8.0 + TRUST_ROUNDS))


def test_what_reading_adds_is_as_measured_or_before_that_as_the_curve_has_it() -> None:
    steep = CostCurve(((1, 1_000.0), (64, 64_000.0)))
    assert PrefillBound(steep, 4.0, 2, 300.0).added_us(40, 8) == 12_000.0
    assert PrefillBound(steep, 4.0, 2).added_us(40, 8) == pytest.approx(40_000.0)


def test_what_was_held_against_promises_at_another_price_is_forgotten() -> None:
    """A price that is found out late would count twice: as a broken promise, and in all that are made from then on. What comes of a step
    that was promised at the old price counts no more either."""
    four = Company()
    for _ in range(10):
        four.step(30_000, 4)
    assert four.speed.factor(Pace.SERIAL) < 0.9
    four.guess_us = 150.0
    four.step(30_000, 4)
    assert four.speed.factor(Pace.SERIAL) == 1.0
    assert four.times_repriced == 1, "promises are to be made anew, once"
    four.step(30_000, 4)
    assert four.speed.factor(Pace.SERIAL) < 1.0


@pytest.mark.parametrize(("before_us", "now_us"), [(0.0, 15.0), (100.0, 190.0), (190.0, 100.0)])
def test_a_price_that_wavers_changes_nothing(before_us: float, now_us: float) -> None:
    four = Company()
    four.guess_us = before_us
    for _ in range(10):
        four.step(30_000, 4)
    held, times = four.speed.factor(Pace.SERIAL), four.times_repriced
    four.guess_us = now_us
    four.step(30_000, 4)
    assert four.speed.factor(Pace.SERIAL) < held < 0.9
    assert four.times_repriced == times
