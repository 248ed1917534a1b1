"""What a plan promises of its step: in turns a wait and the rows that it has, whoever of the company drafts how much.

Run: pytest tests/unit/test_pacing_promises.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fakes_adaptive import FLAT, TARGET_US, Driver
from fakes_pacing import NOW_US, session_view
from outrider.session.pacing.company import Present, Split, company_courses
from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionPlan, StepView
from outrider.session.pacing.first_lessons import FIRST_TESTS
from outrider.session.pacing.promises import excess_us, note_promises
from outrider.session.pacing.remembered import RememberedSessions
from outrider.session.pacing.round_model import Course, Pace, RoundRates, measured_rates, serial_courses

COST = CostCurve(((1, 10_000.0), (4, 12_000.0), (64, 80_000.0)))
OVERHEAD_US, START_US, LINK_US, DRAFT_US = 300.0, 800.0, 1_000.0, 200.0
UNSURE = (0.4, 0.3)  # acceptance, continue_prob: prose, where a drafter pauses at once
SURE = (0.99, 1.0)


def rates(num_sessions: int) -> RoundRates:
    return measured_rates(COST, num_sessions, DRAFT_US, LINK_US, OVERHEAD_US, START_US)


def promised(courses: list[Course], num_guesses: list[int], guess_us: float = 0.0) -> list[float]:
    """Of a step in which each session has so many guesses, by session. guess_us: as in StepView."""
    sessions = RememberedSessions(courses[0])
    views = tuple(session_view(at, num, following=False) for at, num in enumerate(num_guesses))
    for view, course in zip(views, courses, strict=True):
        sessions.of(view).course = course
    plan = PacingPlan(tuple(SessionPlan(at, 1, num) for at, num in enumerate(num_guesses)), None, "verify")
    step = StepView(views, COST, 512, NOW_US, guess_us=guess_us)
    note_promises(plan, step, COST, sessions.known, OVERHEAD_US, excess_us(plan, COST, sessions.known))
    return [sessions.known(view.session).expected_us for view in views]


def test_a_company_in_turns_promises_everybody_its_wait_and_the_rows_that_came() -> None:
    """One of them drafts a little and waits for the others' long drafts. Where those end early nobody has been quick."""
    courses = company_courses([Split(1, rates(4))], [UNSURE, UNSURE, SURE, SURE], 32, Present())
    lengths = [course.hit_len for course in courses]
    assert lengths[0] == lengths[1] == 1
    assert lengths[2] == lengths[3] > 8
    wait_us = START_US + 2 * LINK_US + max(lengths) * DRAFT_US
    for num_guesses in ([1, 1, 3, 3], [0, 1, lengths[2], 2], [0, 0, 0, 0], lengths):
        rows_us = COST.verify_us(4 + sum(num_guesses))
        assert promised(courses, num_guesses) == pytest.approx([wait_us + rows_us + OVERHEAD_US] * 4, rel=0.1), num_guesses


def test_guesses_beyond_the_courses_are_no_part_of_the_promise() -> None:
    """They were taken because they pay; what they take is not counted either (`excess_us`)."""
    courses = [course._replace(hit_len=2) for course in company_courses([Split(1, rates(2))], [SURE, SURE], 8, Present())]
    asked = promised(courses, [2, 2])
    assert promised(courses, [8, 8]) == pytest.approx(asked)


@pytest.mark.parametrize("num_guesses", [1, 4, 8])
def test_who_drafts_alone_is_held_to_the_rows_that_came_too(num_guesses: int) -> None:
    course = serial_courses(rates(1), *SURE)[7]
    assert (course.pace, course.hit_len) == (Pace.SERIAL, 8)
    wait_us = START_US + 2 * LINK_US + 8 * DRAFT_US
    assert promised([course], [num_guesses]) == pytest.approx([wait_us + COST.verify_us(1 + num_guesses) + OVERHEAD_US])


def test_a_course_of_nothing_promises_nothing() -> None:
    """As the one that everybody begins with."""
    assert promised([Course(Pace.SERIAL, 4, 4, 4, 0.0, 0.0, 0.0)], [4]) == [0.0]


def test_what_is_done_for_the_guesses_of_the_others_is_a_part_of_the_promise_where_there_are_any() -> None:
    courses = company_courses([Split(1, rates(4))], [SURE] * 4, 8, Present())
    for num_guesses, handled_us in (([2, 2, 0, 0], 3 * 500.0), ([0, 0, 0, 0], 0.0)):
        plainly, handled = promised(courses, num_guesses), promised(courses, num_guesses, guess_us=500.0)
        assert handled == pytest.approx([expected + handled_us for expected in plainly])
    (course,) = company_courses([Split(1, rates(1))], [SURE], 8, Present())
    assert promised([course], [2], guess_us=500.0) == promised([course], [2]), "one alone has the time of its guesses in its rounds"


# --- what `adaptive` makes of it ------------------------------------------------------------------------------------------------


def running_ahead() -> Driver:
    driver = Driver()
    for _ in range(2 * FIRST_TESTS):
        driver.round(acceptance=0.9, draft_us_per_token=2_000.0)
    own = driver.policy._sessions.of(driver.session)
    assert own.course.pace is Pace.AHEAD
    own.course = own.course._replace(miss_len=4, miss_us=1.6 * TARGET_US, hit_us=TARGET_US)
    return driver


def plan_now(driver: Driver, **changes: Any) -> None:
    driver.policy.plan(StepView((replace(driver.session, **changes),), FLAT, 64, driver.now_us))


def test_a_round_is_held_to_the_promise_of_its_kind() -> None:
    """Rounds of a drafter that follows took less than the mean of both kinds, every time, and passed for quick."""
    driver = running_ahead()
    own = driver.policy._sessions.of(driver.session)
    plan_now(driver, num_nodes=31, depth=31)
    assert own.expected_us == TARGET_US
    plan_now(driver, num_nodes=31, depth=31, following=False)
    assert own.expected_us == 1.6 * TARGET_US


def test_a_wait_that_was_chosen_is_no_broken_promise() -> None:
    """What it brings is more than it costs; only what it takes beyond what was chosen counts."""
    driver = running_ahead()
    own = driver.policy._sessions.of(driver.session)
    own.chosen_wait_us = 5_000.0
    plan_now(driver, num_nodes=31, depth=31)
    assert own.expected_us == TARGET_US + 5_000.0
    driver.round()
    assert own.chosen_wait_us == 0.0, "of that round only"


def test_rows_beyond_a_course_are_in_neither_of_the_times_that_are_compared() -> None:
    """They were taken from what the round took alone, and running ahead on slow cores passed for a fifth quicker than it is."""
    driver = running_ahead()
    own = driver.policy._sessions.of(driver.session)
    view = driver.view(replace(driver.session, num_nodes=25, depth=25))
    (part,) = driver.policy.plan(view).take
    excess_us, course_us = driver.policy._excess_us, view.overlapped_cost.verify_us(1 + own.course.hit_len)
    assert excess_us == pytest.approx(view.overlapped_cost.verify_us(part.num_rows) - course_us)
    assert excess_us > 0.0
    assert own.expected_us == pytest.approx(course_us + driver.policy._overhead_us)
