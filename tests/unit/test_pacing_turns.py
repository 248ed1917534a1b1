"""A drafter on the target's own thread: nobody runs ahead there, what its first guess took is told from the reading of the prompt, and a
session's first evidence is looked at at once."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from fakes_pacing import NOW_US, READY
from outrider.session.pacing.achieved_speed import AchievedSpeed
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import CostCurve, SessionView, StepView
from outrider.session.pacing.course_choice import FLAWLESS, FLAWLESS_TESTS, courses_of, drafting_paces, hoped_acceptance, hoped_continue
from outrider.session.pacing.flushing import MAX_FLUSH_LEN
from outrider.session.pacing.look_times import LOOK_EVERY_US
from outrider.session.pacing.round_model import Pace, measured_rates
from outrider.session.statistics import DraftInterval, SessionStatistics

TARGET_US = 400.0
COST = CostCurve(((1, TARGET_US), (4, 1.5 * TARGET_US), (32, 6 * TARGET_US)))
QUICK: dict[str, Any] = {"draft_us_per_token": 40.0, "link_us": 50.0, "acceptance": 0.97}


def decoded(*, takes_turns: bool, num_rounds: int = 60) -> AdaptivePacing:
    """A policy after an answer whose guesses were nearly all right, of a drafter ten times as quick as the target."""
    policy = AdaptivePacing()
    for at in range(num_rounds):
        now_us = NOW_US + at * int(TARGET_US)
        session = replace(READY, committed_len=100 + 2 * at, num_tested=2 * at, waiting_since_us=now_us, takes_turns=takes_turns, **QUICK)
        policy.plan(view_of(session, now_us))
    return policy


def view_of(session: SessionView, now_us: int) -> StepView:
    return StepView((session,), COST, 64, now_us)


def course_pace(policy: AdaptivePacing) -> Pace:
    return policy._sessions.known(0).course.pace


def test_nobody_runs_ahead_who_computes_only_while_the_target_rests() -> None:
    """Guesses beside a step were promised there that nobody could make, and drafts of two and three guesses came of it."""
    assert course_pace(decoded(takes_turns=False)) is Pace.AHEAD
    assert course_pace(decoded(takes_turns=True)) is Pace.SERIAL


def test_one_that_can_run_ahead_is_enough_to_weigh_it() -> None:
    near, resident = (replace(READY, session=at, takes_turns=bool(at)) for at in (0, 1))
    alone = replace(resident, session=2, has_drafter=False, takes_turns=False)
    assert drafting_paces(StepView((near, resident), COST, 64, NOW_US)) == (Pace.SERIAL, Pace.AHEAD)
    assert drafting_paces(StepView((resident, alone), COST, 64, NOW_US)) == (Pace.SERIAL,), "who has no drafter has no say"
    assert drafting_paces(StepView((alone,), COST, 64, NOW_US)) == (), "nobody knows yet"


def test_courses_are_of_the_paces_asked_for() -> None:
    rates = dict.fromkeys(Pace, measured_rates(COST, 1, 40.0, 50.0, 30.0))
    assert set(courses_of(rates, (Pace.SERIAL,), 16, 0.9, 1.0, 0.0)) == {Pace.PLAIN, Pace.SERIAL}
    assert set(courses_of(rates, (Pace.SERIAL, Pace.AHEAD), 16, 0.9, 1.0, 0.0)) == set(Pace)


def test_a_first_tail_of_one_guess_holds_the_reading_of_the_prompt_until_there_is_a_second() -> None:
    stats = SessionStatistics()
    stats.count_drafting(DraftInterval(0, 1200, 1200), 1, verifying=False, first_us=1200)
    assert (stats.draft_us_per_token, stats.holds_reading) == (1200.0, True)
    stats.count_drafting(DraftInterval(2000, 2200, 200), 1, verifying=False, first_us=200)
    assert (stats.draft_us_per_token, stats.holds_reading) == (200.0, False)


def test_a_first_tail_of_several_levels_tells_the_two_apart() -> None:
    stats = SessionStatistics()
    stats.count_drafting(DraftInterval(0, 1350, 1350), 4, verifying=False, first_us=1200)
    assert (stats.draft_us_per_token, stats.holds_reading) == (50.0, False)
    stats.count_drafting(DraftInterval(2000, 2200, 200), 4, verifying=False)
    assert stats.draft_us_per_token == 50.0, "it is followed, not forgotten"


@pytest.mark.parametrize("holds_reading", [True, False])
def test_what_the_reading_took_is_not_taken_for_drafting(*, holds_reading: bool) -> None:
    """After prose, whose only tails are such, arithmetic was decoded plainly: a guess seemed to take two steps."""
    policy = decoded(takes_turns=True)
    known_us = policy._rates.draft_us(Pace.SERIAL)
    now_us = NOW_US + 10 * LOOK_EVERY_US
    for at in range(1, 9):
        slow = {**QUICK, "draft_us_per_token": 900.0 + at, "num_tested": 1, "acceptance": 0.9}
        policy.plan(view_of(replace(READY, session=at, takes_turns=True, holds_reading=holds_reading, **slow), now_us + at * LOOK_EVERY_US))
    assert (policy._rates.draft_us(Pace.SERIAL) == known_us) is holds_reading


def test_the_first_evidence_of_a_session_is_looked_at_at_once() -> None:
    """It confirms what was hoped, so it surprises nobody, but what drafting takes is known only now."""
    policy = decoded(takes_turns=True)
    now_us = NOW_US + 10 * LOOK_EVERY_US
    fresh = replace(READY, session=7, takes_turns=True, waiting_since_us=now_us, **QUICK)
    policy.plan(view_of(fresh, now_us))
    looked_at_us = policy._look_times.at_us or 0
    policy.plan(view_of(replace(fresh, committed_len=101), now_us + 100))
    assert policy._look_times.at_us == looked_at_us, "nothing was judged since"
    policy.plan(view_of(replace(fresh, committed_len=102, num_tested=2), now_us + 200))
    looked_again_at_us = policy._look_times.at_us or 0
    assert looked_again_at_us > looked_at_us
    policy.plan(view_of(replace(fresh, committed_len=104, num_tested=4), now_us + 300))
    assert policy._look_times.at_us == looked_again_at_us, "once"


@pytest.mark.parametrize("max_draft_len", [8, 24])
def test_a_draft_in_turns_is_no_longer_than_what_a_round_verifies_and_comes_in_one_tail(max_draft_len: int) -> None:
    """Guesses beyond it were made before each step, and what they left made every next draft another one than was foreseen."""
    policy = decoded(takes_turns=True)
    now_us = NOW_US + 60 * int(TARGET_US)
    fresh = replace(READY, committed_len=400, num_tested=120, waiting_since_us=now_us, takes_turns=True, **QUICK)
    agreeable = replace(fresh, acceptance=0.99, remaining=500, max_draft_len=max_draft_len)
    flat = CostCurve(((1, TARGET_US), (64, 1.5 * TARGET_US)))
    policy.plan(StepView((agreeable,), flat, 64, now_us + 4 * LOOK_EVERY_US))
    assert policy._sessions.known(0).course.hit_len == max_draft_len, "more would pay, if more were verified"
    assert policy.draft_ahead(agreeable) == max_draft_len
    assert policy.draft_ahead(replace(agreeable, remaining=6)) == 5, "nor than what is left of the answer"
    assert policy.flush_len(agreeable) == 0
    assert policy.flush_len(replace(agreeable, takes_turns=False)) == MAX_FLUSH_LEN, "one that may come too late sends what it has"
    elsewhere = replace(agreeable, takes_turns=False)
    assert policy.draft_ahead(elsewhere) == max_draft_len, "as far as its course goes"
    policy.plan(StepView((elsewhere,), flat, 64, now_us + 8 * LOOK_EVERY_US))
    assert policy.draft_ahead(elsewhere) > max_draft_len, "what it drafts meanwhile is kept"


@pytest.mark.parametrize(("takes_turns", "num_tested", "counts"), [(True, 0, False), (True, 4, True), (False, 0, True)])
def test_a_sessions_first_round_with_guesses_is_no_verdict_on_its_course(num_tested: int, *, takes_turns: bool, counts: bool) -> None:
    """A resident drafter is opened and reads the prompt in it: twice as long as expected, in every answer."""
    policy = decoded(takes_turns=takes_turns)
    pace = course_pace(policy)
    before = policy._memory.factor(pace)
    now_us = NOW_US + 100 * int(TARGET_US)
    session = replace(READY, session=7, num_tested=num_tested, waiting_since_us=now_us, takes_turns=takes_turns, **QUICK)
    policy.plan(view_of(replace(session, num_uncached=100), now_us))
    session = replace(session, committed_len=101)
    assert policy.plan(view_of(replace(session, num_nodes=24, depth=24), now_us)).take, "the whole draft is there"
    session = replace(session, committed_len=105, num_tested=num_tested + 4, waiting_since_us=now_us + 20 * int(TARGET_US))
    policy.plan(view_of(session, now_us + 20 * int(TARGET_US)))
    assert (policy._memory.factor(pace) < before) is counts


@pytest.mark.parametrize("is_flawless", [True, False])
def test_a_session_in_which_nothing_went_wrong_is_taken_for_one_that_suits_its_drafter(*, is_flawless: bool) -> None:
    """Four guesses in a row were right, and what prose had taught kept it from a fifth for the rest of the answer."""
    view = replace(READY, acceptance=0.7, continue_prob=0.8, hope=0.75, takes_turns=True, is_flawless=is_flawless)
    for num_tested in FLAWLESS_TESTS:
        tested = replace(view, num_tested=num_tested)
        assert (hoped_acceptance(tested), hoped_continue(tested)) == ((FLAWLESS, FLAWLESS) if is_flawless else (0.7, 0.8))
    for num_tested in (0, FLAWLESS_TESTS.start - 1, FLAWLESS_TESTS.stop):
        tested = replace(view, num_tested=num_tested)
        assert hoped_acceptance(tested) < FLAWLESS, "too few to say so, or enough for its own estimate"
        assert hoped_continue(tested) == 0.8
    elsewhere = replace(view, num_tested=FLAWLESS_TESTS.start, takes_turns=False)
    assert (hoped_acceptance(elsewhere), hoped_continue(elsewhere)) == (0.7, 0.8), "where trying costs others their cores"
    surer = replace(view, num_tested=8, acceptance=0.99, continue_prob=0.98)
    assert (hoped_acceptance(surer), hoped_continue(surer)) == (0.99, 0.98)


def test_one_wrong_guess_or_one_pause_is_a_flaw() -> None:
    stats = SessionStatistics()
    stats.count_arrival(10, 4, paused=False)
    stats.count_round(4, 4, 4, 5, corrected=False)
    assert (stats.is_flawless, stats.num_tested) == (True, 4)
    wrong, paused, overtaken = (deepcopy(stats) for _ in range(3))
    wrong.count_round(4, 4, 2, 3, corrected=True)
    paused.count_arrival(10, 4, paused=True)
    overtaken.count_overtaken([True, False])
    assert not any(each.is_flawless for each in (wrong, paused, overtaken))
    stats.count_overtaken([True])
    assert stats.is_flawless


FAR: dict[str, Any] = {"draft_us_per_token": 40.0, "draft_alone_us": 40.0, "link_us": 300.0, "acceptance": 0.5, "continue_prob": 0.2}


@pytest.mark.parametrize("num_sessions", [1, 2])
@pytest.mark.parametrize("is_flawless", [True, False])
def test_a_text_that_suits_its_drafter_is_not_decoded_plainly_for_what_others_taught(*, is_flawless: bool, num_sessions: int) -> None:
    policy = decoded(takes_turns=True)
    now_us = NOW_US + 100 * int(TARGET_US)
    fresh = [replace(READY, session=7 + at, waiting_since_us=now_us, takes_turns=True, **FAR) for at in range(num_sessions)]
    policy.plan(StepView(tuple(fresh), COST, 64, now_us))
    for one in fresh:
        policy._sessions.of(one).drafted = AchievedSpeed()  # what drafts brought others is no part of it
    tested = (replace(one, committed_len=105, num_tested=4, is_flawless=is_flawless) for one in fresh)
    policy.plan(StepView(tuple(tested), COST, 64, now_us + 20 * LOOK_EVERY_US))
    assert {policy._sessions.known(one.session).course.pace for one in fresh} == {Pace.SERIAL if is_flawless else Pace.PLAIN}


@pytest.mark.parametrize("tells_start", [True, False])
def test_what_drafts_of_one_guess_took_is_not_taken_for_what_a_guess_takes(*, tells_start: bool) -> None:
    policy = AdaptivePacing()
    now_us = NOW_US
    for at in range(40):
        now_us += LOOK_EVERY_US
        known = replace(READY, committed_len=100 + 2 * at, num_tested=2 * at, waiting_since_us=now_us, takes_turns=True, **QUICK)
        policy.plan(view_of(replace(known, draft_alone_us=40.0 + at / 100), now_us))
    known_us = policy._rates.draft_us(Pace.SERIAL)
    for at in range(1, 9):
        now_us += LOOK_EVERY_US
        slow = replace(known, session=at, num_tested=1, draft_us_per_token=900.0 + at, draft_alone_us=900.0 + at, tells_start=tells_start)
        policy.plan(view_of(replace(slow, waiting_since_us=now_us), now_us))
    assert (policy._rates.draft_us(Pace.SERIAL) > 2.0 * known_us) is tells_start
