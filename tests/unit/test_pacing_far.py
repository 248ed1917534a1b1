"""A drafter far away, a quick target and short answers: `adaptive` must cost next to nothing there, and look for what pays.

The real policy and session machines on virtual time; both processes on cores that they share. The same claims are held against a policy
that lacks what makes them true, which must break them.

    pytest tests/unit/test_pacing_far.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from fakes_adaptive import TARGET_US, Driver, successor
from fakes_pacing import READY
from mostly_slow import mostly_slow
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.asking_record import AskingRecord
from outrider.session.pacing.contract import CostCurve, Pacing, PacingPlan, SessionView, StepView
from outrider.session.pacing.course_choice import FLAWLESS_TESTS, HOPEFUL_TESTS, hoped_acceptance
from outrider.session.pacing.outlooks import LEAVE_BOUNDS
from outrider.session.pacing.registry import make_pacing
from outrider.session.pacing.round_model import (
    MAX_LEAVE_LEN,
    MAX_SERIAL_LEN,
    Pace,
    RoundRates,
    best_ahead_course,
    measured_rates,
    speed_to_end,
)
from outrider.session.pacing.silence import MAX_WATCHED, UNHEARD_ANSWERS, Silence
from outrider.session.statistics import FIRST_PRIORS, DraftPriors, SessionStatistics
from outrider_bench.simulation.event_loop import DrafterKind, simulate
from outrider_bench.simulation.world import Phase, World

VERIFY = CostCurve(((1, 500.0), (2, 525.0), (4, 650.0), (8, 900.0), (16, 1750.0), (32, 3000.0), (64, 5500.0)))
DRAFT = CostCurve(((1, 80.0), (4, 160.0)))
NUM_ANSWERS = 40
FEW_ANSWERS = 20  # where what is claimed shows in each of them


def world(delay_us: int, acceptance: float, output_len: int) -> World:
    return World(
        VERIFY,
        DRAFT,
        phases=((Phase(acceptance),),),
        delay_us=delay_us,
        message_us=60,
        step_overhead_us=40,
        verify_slowdown=1.8,
        draft_slowdown=1.8,
        output_len=output_len,
        spare_len=92,
    )


def of_plain(policy: AdaptivePacing, where: World, num_answers: int = NUM_ANSWERS) -> float:
    """Its tokens a second over plain decoding's."""
    return tokens_per_s(where, policy, num_answers) / plain_tokens_per_s(where, num_answers)


def tokens_per_s(where: World, policy: Pacing, num_answers: int = NUM_ANSWERS) -> float:
    return simulate(where, policy, where.output_len * num_answers, DrafterKind.SESSION).tokens_per_s


@cache
def plain_tokens_per_s(where: World, num_answers: int) -> float:
    return tokens_per_s(where, make_pacing("plain", None), num_answers)


class Deaf(AdaptivePacing):
    """Does not notice that nobody is ever heard of."""

    def _look_at_silence(self, view: StepView) -> None:
        pass


class AlwaysHopeful(AdaptivePacing):
    """Hopes for an agreeable session each time."""

    def plan(self, view: StepView) -> PacingPlan:
        return super().plan(replace(view, sessions=tuple(replace(one, hope=0.8) for one in view.sessions)))


@pytest.mark.parametrize("output_len", mostly_slow([20, 60, 36], 2))
@pytest.mark.parametrize("acceptance", [0.6, 0.99])
def test_twenty_milliseconds_away_it_is_as_good_as_plain_decoding(acceptance: float, output_len: int) -> None:
    assert of_plain(AdaptivePacing(), world(20_000, acceptance, output_len)) >= 0.97


def test_answers_shorter_than_the_way_there_and_back_cost_a_policy_that_does_not_notice() -> None:
    assert of_plain(Deaf(), world(20_000, 0.6, 36)) < 0.93


def test_close_by_a_drafter_that_is_hardly_ever_right_costs_little() -> None:
    assert of_plain(AdaptivePacing(), world(60, 0.2, 36)) >= 0.955


def test_hope_in_each_session_anew_costs_more() -> None:
    near = world(60, 0.2, 36)
    assert of_plain(AlwaysHopeful(), near) < of_plain(AdaptivePacing(), near) - 0.01


def test_close_by_a_drafter_that_is_mostly_right_pays() -> None:
    assert of_plain(AdaptivePacing(), world(60, 0.97, 94)) >= 1.6


# --- what it is made of -----------------------------------------------------------------------------------------------------


def test_of_one_far_away_that_was_never_wrong_as_much_is_hoped_as_before_it_was_tested() -> None:
    """Its kind's mean is no measure of it, and whoever goes without hardly hears of it again."""
    tested = replace(READY, acceptance=0.9, hope=0.99, num_tested=HOPEFUL_TESTS, is_flawless=True)
    assert hoped_acceptance(tested, is_far=True) == 0.99
    assert hoped_acceptance(tested) == 0.9, "close by it is found out for little"
    assert hoped_acceptance(replace(tested, is_flawless=False), is_far=True) == 0.9
    assert hoped_acceptance(replace(tested, num_tested=FLAWLESS_TESTS.stop), is_far=True) == 0.9, "its own guesses say so by then"


@pytest.mark.parametrize(("is_flawless", "least", "most"), [(True, 8, 31), (False, 0, 2)])
def test_its_course_goes_by_that_hope(least: int, most: int, *, is_flawless: bool) -> None:
    """Rows are dear, and its estimate is not much by itself."""
    driver, steep = Driver(), CostCurve(((1, TARGET_US), (32, 12.0 * TARGET_US)))
    for _ in range(60):
        driver.round(acceptance=0.99, link_us=3.0 * TARGET_US, hope=0.99)
    session = successor(driver, acceptance=0.5, hope=0.99, is_flawless=is_flawless, remaining=200)
    for num in range(1, 5):
        now_us = driver.now_us + 3 * num * int(TARGET_US)
        session = replace(session, committed_len=session.committed_len + 2, num_tested=HOPEFUL_TESTS)
        session = replace(session, waiting_since_us=now_us, draft_deadline_us=now_us + 50_000)
        driver.policy.plan(StepView((session,), steep, 64, now_us, steep))
    assert driver.policy._is_far_away
    assert least <= driver.policy._sessions.of(session).course.hit_len <= most


def test_a_session_that_was_never_wrong_is_no_reason_to_hope_for_less() -> None:
    """Asked for four guesses and then no more, it ends below the hope: that, again and again, took the hope from those behind it."""
    known = DraftPriors(acceptance=0.9, hope=0.99)
    flawless = SessionStatistics(acceptance=known.acceptance)
    flawless.count_round(4, 4, 4, 5, corrected=False)
    assert flawless.acceptance < known.hope
    assert flawless.remembered(known).hope == known.hope
    flawed = SessionStatistics(acceptance=known.acceptance)
    flawed.count_round(4, 4, 3, 4, corrected=True)
    assert flawed.remembered(known).hope < known.hope


def rates(link_us: float) -> RoundRates:
    return measured_rates(VERIFY, 1, 80.0, link_us, 40.0)


def test_the_speed_to_the_end_is_that_of_plain_rounds_until_the_drafter_is_heard_of() -> None:
    plain = 1.0 / 540.0
    far = rates(20_000.0)
    assert speed_to_end(far, 4.0 * plain, 40.0) == pytest.approx(plain)  # over before anything is heard
    assert plain < speed_to_end(far, 4.0 * plain, 200.0) < 4.0 * plain
    assert speed_to_end(far, 4.0 * plain, 1e9) == pytest.approx(4.0 * plain, rel=1e-3)
    assert len(far.step_us) == MAX_SERIAL_LEN + 2


def silent(session: int, since_us: int) -> SessionView:
    return replace(READY, session=session, waiting_since_us=since_us, draft_us_per_token=0.0, num_tested=0, is_drafting=True)


def test_silence_is_the_shortest_of_three_answers_in_a_row() -> None:
    silence = Silence()
    for number, length_us in enumerate([9_000, 5_000, 7_000]):
        assert not silence.least_us
        silence.asked(silent(number, 1_000))
        silence.observe((silent(number, 1_000 + length_us),))
        silence.observe(())
    assert silence.least_us == 5_000


def test_a_word_ends_the_silence() -> None:
    silence = Silence()
    for number in range(UNHEARD_ANSWERS):
        silence.asked(silent(number, 0))
        silence.observe((silent(number, 5_000),))
        silence.observe(())
    assert silence.least_us
    silence.asked(silent(9, 0))
    silence.observe((replace(silent(9, 1_000), draft_us_per_token=80.0),))
    assert not silence.least_us


def test_no_more_are_watched_than_the_bound() -> None:
    silence = Silence()
    for number in range(2 * MAX_WATCHED):
        silence.asked(silent(number, 0))
    assert len(silence._watched) == MAX_WATCHED


def priors_after(outcomes: list[bool], known: DraftPriors) -> DraftPriors:
    statistics = SessionStatistics(acceptance=known.acceptance)
    statistics.count_overtaken(outcomes)
    return statistics.remembered(known)


def test_hope_rises_with_one_agreeable_session_and_falls_with_several_others() -> None:
    known = FIRST_PRIORS
    hopes = []
    for _ in range(12):
        known = priors_after([False] * 4, known)
        hopes.append(known.hope)
    assert hopes[0] > 0.7
    assert all(after < before for before, after in pairwise(hopes))
    assert hopes[-1] < 0.4
    assert priors_after([True] * 60, known).hope > 0.9
    assert priors_after([], known).hope == known.hope


def test_no_more_flows_than_the_drafter_has_leave_for_in_a_way_there_and_back() -> None:
    """A drafter that is always right and takes no time: sixty-four tokens each twenty milliseconds, whatever the target could verify."""
    course = best_ahead_course(measured_rates(VERIFY, 1, 1.0, 10_000.0, 40.0), 0.9999, 1.0)
    assert course.waits_for_none
    assert MAX_LEAVE_LEN / 25_000.0 < course.tokens_per_us < MAX_LEAVE_LEN / 20_000.0
    near = best_ahead_course(measured_rates(VERIFY, 1, 1.0, 100.0, 40.0), 0.9999, 1.0)
    assert near.tokens_per_us > 2.0 * course.tokens_per_us


def test_a_drafter_that_slows_the_target_more_than_it_helps_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what came of asking at all, before anything is promised."""
    where = world(5_000, 0.95, 64)
    own = of_plain(AdaptivePacing(), where)
    monkeypatch.setattr(AskingRecord, "asks", lambda *_: True)
    assert own > of_plain(AdaptivePacing(), where) + 0.02
    assert own >= 0.97


def test_a_drafter_far_away_that_pays_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long answers, always right, a core each: what is tried without it costs less than a tenth."""
    where = replace(world(5_000, 0.995, 200), verify_slowdown=1.0, draft_slowdown=1.0)
    own = of_plain(AdaptivePacing(), where, FEW_ANSWERS)
    assert own > 1.3
    with monkeypatch.context() as patch:
        patch.setattr(AskingRecord, "asks", lambda *_: True)
        assert own > 0.9 * of_plain(AdaptivePacing(), where, FEW_ANSWERS)
    monkeypatch.setattr(AskingRecord, "asks", lambda *_: False)
    assert of_plain(AdaptivePacing(), where, FEW_ANSWERS) < own - 0.2


def test_answers_without_a_drafter_say_nothing_of_how_far_it_is() -> None:
    policy = AdaptivePacing()
    for number in range(2 * UNHEARD_ANSWERS):
        alone = replace(silent(number, 1_000), has_drafter=False, is_drafting=False)
        policy.draft_ahead(alone)
        policy._silence.observe((replace(alone, waiting_since_us=50_000),))
        policy._silence.observe(())
    assert not policy._silence.least_us


def test_the_leave_of_short_drafts_is_what_flows() -> None:
    sessions = (replace(READY, max_draft_len=8),)
    found = AdaptivePacing()._rates_of(StepView(sessions, VERIFY, 64, READY.waiting_since_us), (Pace.SERIAL, Pace.AHEAD))
    assert {one.leave_len for one in found.values()} == {LEAVE_BOUNDS * 8}
