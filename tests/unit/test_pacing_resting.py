"""How far a drafter close by may guess: only as far as it comes until the next commit, where a guess under way then would be in the way.

Run: pytest tests/unit/test_pacing_resting.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fakes_pacing import NOW_US, READY
from outrider.session.pacing.by_lookup import ByLookup
from outrider.session.pacing.contract import CostCurve, StepView
from outrider.session.pacing.outlooks import Outlooks
from outrider.session.pacing.pace_rates import PaceRates
from outrider.session.pacing.remembered import RememberedSessions
from outrider.session.pacing.resting import NEAR_STEPS, Reach
from outrider.session.pacing.round_model import Course, Pace

DRAFT_US = 2_000.0
STEP_US = 3.1 * DRAFT_US  # three guesses, and hardly begun a fourth
COURSE = Course(Pace.AHEAD, 0, 2, 7, 0.0003, STEP_US, STEP_US)
SESSION = replace(READY, acceptance=0.8, num_tested=40, following=False)
MOST = 9


def leave_of(reach: Reach, *, step_us: float = STEP_US, course: Course = COURSE, most: int = MOST, **changes: Any) -> int:
    return reach.leave(replace(SESSION, **changes), course, most, step_us, DRAFT_US)


def test_one_that_starts_over_has_leave_for_what_fits_into_the_step() -> None:
    assert leave_of(Reach()) == 3
    assert leave_of(Reach(), course=COURSE._replace(miss_len=1)) == 4, "one is waited for before the step begins"
    assert leave_of(Reach(), most=2) == 2


def test_one_that_follows_has_leave_for_as_many_beyond_what_it_is_thought_to_hold() -> None:
    reach = Reach()
    leave_of(reach)
    later: dict[str, Any] = {"committed_len": 101, "waiting_since_us": NOW_US + int(STEP_US), "following": True}
    assert leave_of(reach, **later) == 2 + 3, "three were made, and the commit took one of them"
    assert leave_of(reach, **later) == 2 + 3, "asked twice, the same"
    confirmed: dict[str, Any] = {"committed_len": 104, "waiting_since_us": NOW_US + 2 * int(STEP_US), "following": True}
    assert leave_of(reach, **confirmed) == 2 + 3
    contradicted: dict[str, Any] = {"committed_len": 105, "waiting_since_us": NOW_US + 3 * int(STEP_US)}
    assert leave_of(reach, **contradicted) == 3


def test_what_it_holds_ends_where_its_leave_did() -> None:
    reach = Reach()
    leave_of(reach)
    late: dict[str, Any] = {"committed_len": 101, "waiting_since_us": NOW_US + 50 * int(STEP_US), "following": True}
    assert leave_of(reach, **late) == 2 + 3


@pytest.mark.parametrize(
    ("acceptance", "tokens_a_step", "rests"), [(0.8, 3.1, True), (0.8, 3.9, False), (0.97, 3.3, False), (0.1, 3.7, True)]
)
def test_it_rests_where_mismatches_are_many_and_little_of_the_step_is_left(acceptance: float, tokens_a_step: float, *, rests: bool) -> None:
    leave = leave_of(Reach(), acceptance=acceptance, step_us=tokens_a_step * DRAFT_US)
    assert leave == (3 if rests else MOST)


def test_it_goes_on_where_every_round_wants_all_that_a_step_has_time_for() -> None:
    assert leave_of(Reach(), course=COURSE._replace(hit_len=3)) == MOST


def test_it_goes_on_while_none_of_its_guesses_was_judged() -> None:
    """A session's first guesses are made while the prompt is read: it is told to start over where it had gone on for long."""
    assert leave_of(Reach(), num_tested=0) == MOST


@pytest.mark.parametrize(
    ("num_sessions", "way_steps", "pace", "leave"),
    [
        (1, 0.4 * NEAR_STEPS, Pace.AHEAD, 3),
        (2, 0.4 * NEAR_STEPS, Pace.AHEAD, 7),  # it drafts for the other meanwhile
        (1, 0.6 * NEAR_STEPS, Pace.AHEAD, 7),  # one at rest hears late
        (1, 0.4 * NEAR_STEPS, Pace.SERIAL, 7),
    ],
)
def test_only_a_drafter_next_door_that_runs_ahead_for_one_session_rests(
    num_sessions: int, way_steps: float, pace: Pace, leave: int
) -> None:
    measured = replace(SESSION, draft_us_per_token=DRAFT_US, link_us=way_steps * STEP_US)
    rates = PaceRates()
    rates.observe({Pace.SERIAL: [measured]}, [DRAFT_US])
    known = RememberedSessions(COURSE._replace(pace=pace))
    outlooks = Outlooks(known, ByLookup(16), rates, 16)
    sessions = tuple(replace(measured, session=at) for at in range(num_sessions))
    outlooks.begin(StepView(sessions, CostCurve(((1, STEP_US), (64, STEP_US))), 64, NOW_US), STEP_US, STEP_US)
    assert outlooks.leave(known.of(sessions[0]), sessions[0]) == leave
