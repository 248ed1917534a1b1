"""How long until all courses are looked at again.

Run: pytest tests/unit/test_pacing_look_times.py
"""

from __future__ import annotations

from typing import Any

import pytest

from fakes_pacing import NOW_US, session_view, step_view
from outrider.session.pacing.contract import StepView
from outrider.session.pacing.look_times import CALM_LOOKS, LOOK_EVERY_US, PLAIN_LOOKS, SESSIONS_A_LOOK, LookTimes
from outrider.session.pacing.round_model import Course, Pace
from outrider.session.pacing.surprise import MAX_SESSIONS


def apart(times: LookTimes, num_sessions: int = 1, *, drafts: bool = True, changed: bool = False) -> int:
    """In looks of the usual distance, after one more look."""
    if changed:
        times.changed()
    times.looked(NOW_US, num_sessions, drafts=drafts)
    assert times.at_us is not None
    return (times.at_us - NOW_US) // LOOK_EVERY_US


def test_the_first_look_is_due_at_once_and_the_next_when_its_time_has_come() -> None:
    times = LookTimes()
    assert times.begin(NOW_US)
    times.changed()
    times.looked(NOW_US, 1, drafts=True)
    assert not times.begin(NOW_US + LOOK_EVERY_US - 1)
    assert not times.is_due, "a look now is for a surprise's sake"
    assert times.begin(NOW_US + LOOK_EVERY_US)
    assert times.is_due


def test_where_nothing_changes_looks_become_seldom_and_a_change_brings_them_back() -> None:
    times = LookTimes()
    assert apart(times, changed=True) == 1
    assert [apart(times) for _ in range(CALM_LOOKS + 1)] == [*range(2, CALM_LOOKS + 1), CALM_LOOKS, CALM_LOOKS]
    assert apart(times, changed=True) == 1


@pytest.mark.parametrize("num_sessions", [MAX_SESSIONS + 1, 4 * SESSIONS_A_LOOK])
def test_many_sessions_are_looked_at_by_the_clock_alone_for_nobody_s_surprise_is(num_sessions: int) -> None:
    times = LookTimes()
    assert {apart(times, num_sessions) for _ in range(2 * CALM_LOOKS)} == {max(1, num_sessions // SESSIONS_A_LOOK)}


def test_who_goes_without_guesses_is_looked_at_seldom_from_the_first() -> None:
    assert apart(LookTimes(), drafts=False, changed=True) == PLAIN_LOOKS
    assert apart(LookTimes(), MAX_SESSIONS + 1, drafts=False) == PLAIN_LOOKS


SERIAL, AHEAD, PLAIN = (Course(pace, 4, 4, 4, 0.0, 0.0, 0.0) for pace in (Pace.SERIAL, Pace.AHEAD, Pace.PLAIN))


def view(*depths: int, **changes: Any) -> StepView:
    return step_view(*(session_view(at, depth, **changes) for at, depth in enumerate(depths)))


def test_a_look_waits_once_for_guesses_in_turns_that_are_ready_to_be_verified() -> None:
    times = LookTimes()
    assert [times.may_wait(view(3), SERIAL) for _ in range(4)] == [True, False, True, False]


def test_nor_is_it_held_up_where_its_kind_goes_without() -> None:
    """It was asked to find out: a look before its guesses are judged would find what the one before found."""
    assert LookTimes().may_wait(view(1, takes_turns=True), PLAIN)
    assert not LookTimes().may_wait(view(1, takes_turns=True, num_tested=2), PLAIN)


@pytest.mark.parametrize(("depths", "course"), [((0,), SERIAL), ((3,), AHEAD), ((3,), PLAIN), ((3, 3), SERIAL)])
def test_nobody_is_held_up_by_a_look_who_waits_anyway_or_never(depths: tuple[int, ...], course: Course) -> None:
    assert not LookTimes().may_wait(view(*depths), course)


def test_while_all_read_their_prompts_a_look_waits_as_long_as_they_do() -> None:
    times = LookTimes()
    assert all(times.may_wait(view(0, num_uncached=9), SERIAL) for _ in range(3))
