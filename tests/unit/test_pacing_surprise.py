"""Looks for a surprise's sake: soon for one session, and not for each surprise of several.

Run: pytest tests/unit/test_pacing_surprise.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes_pacing import NOW_US, session_view
from outrider.session.pacing.contract import CostCurve, StepView
from outrider.session.pacing.remembered import RememberedSessions
from outrider.session.pacing.round_model import Course, Pace
from outrider.session.pacing.surprise import EVERY_US, FIRST_SURPRISE, MAX_SESSIONS, NEARER, SURPRISE, Surprises

COST = CostCurve(((1, 1_000.0), (32, 1_300.0)))
WAY_US = 1_000.0
USUAL = Course(Pace.SERIAL, 8, 8, 8, 0.003, 2_000.0, 2_000.0)


def surprised(num: int, *, looked_us: int | None = None, usual: Course = USUAL, untested: bool = False, **changes: object) -> bool:
    """Of sessions that were looked at when their acceptance was 0.8, the first of them changed since. untested: at the look."""
    known = RememberedSessions(usual)
    sessions = [session_view(at, acceptance=0.8, num_tested=9) for at in range(num)]
    for session in sessions:
        own = known.of(session)
        own.before, own.looked_at, own.looked_untested, own.measured = own.course, 0.8, untested, (90.0, 80.0, WAY_US)
    surprises = Surprises(known.of)
    if looked_us is not None:
        surprises.looked(looked_us)
    first = replace(sessions[0], **changes)  # type: ignore[arg-type]
    return surprises.ask_for_look(StepView((first, *sessions[1:]), COST, 64, NOW_US), is_sure=True)


def test_what_turns_out_otherwise_is_a_surprise() -> None:
    assert surprised(1, acceptance=0.8 - 1.1 * SURPRISE)
    assert not surprised(1, acceptance=0.8 - 0.9 * SURPRISE)
    assert not surprised(1, acceptance=0.1, has_drafter=False), "nobody whose guesses could be tested"


def test_a_drafter_that_is_much_nearer_than_was_believed_is_a_surprise() -> None:
    """What the first draft of a deployment took on top kept whole answers from asking again."""
    assert surprised(1, link_us=0.9 * NEARER * WAY_US)
    assert not surprised(1, link_us=1.1 * NEARER * WAY_US)
    assert not surprised(1, link_us=0.0), "not measured"
    assert not surprised(1, link_us=3.0 * WAY_US), "what is longer is believed slowly, look by look"


@pytest.mark.parametrize(("pace", "at_once"), [(Pace.PLAIN, True), (Pace.SERIAL, True), (Pace.AHEAD, False)])
def test_first_guesses_of_a_drafter_that_runs_ahead_are_news_if_they_say_otherwise(pace: Pace, *, at_once: bool) -> None:
    """In turns the first round is also the first to show what drafting takes."""
    usual = USUAL._replace(pace=pace)
    assert surprised(1, usual=usual, untested=True, acceptance=0.8 + 0.9 * FIRST_SURPRISE) is at_once
    assert surprised(1, usual=usual, untested=True, acceptance=0.8 - 1.1 * FIRST_SURPRISE)
    assert not surprised(1, usual=usual, acceptance=0.8 - 1.1 * FIRST_SURPRISE)
    assert not surprised(1, usual=usual, untested=True, num_tested=0)


def test_one_session_is_looked_at_whenever_it_is_surprised() -> None:
    assert surprised(1, looked_us=NOW_US - 1, acceptance=0.5)


@pytest.mark.parametrize("num", range(2, MAX_SESSIONS + 1))
def test_several_wait_the_longer_the_more_they_are(num: int) -> None:
    assert surprised(num, looked_us=NOW_US - num * EVERY_US, acceptance=0.5)
    assert not surprised(num, looked_us=NOW_US - num * EVERY_US + 1, acceptance=0.5)
    assert surprised(num, acceptance=0.5), "they were never looked at"


def test_many_wait_for_their_turn() -> None:
    assert not surprised(MAX_SESSIONS + 1, acceptance=0.5)
    assert not surprised(MAX_SESSIONS + 1, acceptance=0.9)


def test_of_many_one_that_goes_without_and_turns_out_agreeable_is_a_surprise() -> None:
    """While nobody guesses looks are seldom, and the others may be as agreeable."""
    num, plain = MAX_SESSIONS + 1, USUAL._replace(pace=Pace.PLAIN)
    assert surprised(num, usual=plain, acceptance=0.8 + 1.1 * SURPRISE)
    assert not surprised(num, usual=plain, acceptance=0.8 - 1.1 * SURPRISE), "as bad as ever"
    assert not surprised(num, usual=plain, acceptance=0.8 + 1.1 * SURPRISE, num_tested=0), "a hope is no finding"
    assert surprised(num, usual=plain, acceptance=0.9, looked_us=NOW_US - num * EVERY_US)
    assert not surprised(num, usual=plain, acceptance=0.9, looked_us=NOW_US - num * EVERY_US + 1)
