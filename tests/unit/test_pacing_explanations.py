"""Why a plan is what it is: every field of an explanation, for every policy what it knows, and nothing made or changed for it unasked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fakes_pacing import NOW_US, READY, session_view, step_view
from outrider.session.pacing import adaptive_choice, explaining
from outrider.session.pacing.adaptive import START_GAIN, AdaptivePacing
from outrider.session.pacing.contract import CostCurve, Pacing, PacingPlan, SessionPlan, StepView
from outrider.session.pacing.course_choice import FLAWLESS, FLAWLESS_TESTS, hoped_acceptance
from outrider.session.pacing.draft_length import DEFAULT_DRAFT_LEN, Rates, serial_tokens_per_us
from outrider.session.pacing.explanation import PlanExplanation, SessionExplanation, Way, Why
from outrider.session.pacing.first_lessons import FIRST_TESTS
from outrider.session.pacing.lookup import LookupPacing
from outrider.session.pacing.outlooks import FIRST_LEN
from outrider.session.pacing.pearl import PearlPacing
from outrider.session.pacing.plain import PlainPacing
from outrider.session.pacing.round_model import Pace
from outrider.session.pacing.serial import SerialPacing
from outrider.session.pacing.silence import UNHEARD_ANSWERS
from outrider.session.pacing.surprise import MAX_SESSIONS

TARGET_US = 24_000.0
COST = CostCurve(((1, TARGET_US), (32, 1.3 * TARGET_US)))
SURE = (0.95,) * 12


def explained(policy: Pacing, view: StepView) -> PlanExplanation:
    return policy.explain(view, policy.plan(view))


def only(policy: Pacing, view: StepView) -> SessionExplanation:
    (session,) = explained(policy, view).sessions
    return session


class Talk:
    """`adaptive` and one session, round after round of two tokens and one target step."""

    def __init__(self, **changes: Any) -> None:
        self.policy = AdaptivePacing()
        self.contention = 1.0
        self.session = replace(READY, draft_us_per_token=3_000.0, draft_alone_us=3_000.0, acceptance=0.7, remaining=10_000, **changes)
        self.now_us = NOW_US

    @property
    def view(self) -> StepView:
        beside = CostCurve(tuple((rows, self.contention * us) for rows, us in COST.points))
        return StepView((self.session,), COST, 64, self.now_us, beside)

    def rounds(self, number: int, **changes: Any) -> PacingPlan:
        """Of the newest of them. Nothing disturbs the drafts."""
        if "draft_us_per_token" in changes:
            changes["draft_alone_us"] = changes["draft_us_per_token"]
        plan = PacingPlan((), None, "")
        for _ in range(number):
            self.now_us += int(TARGET_US)
            tested = {"num_tested": self.session.num_tested + 2, "committed_len": self.session.committed_len + 2}
            when = {"waiting_since_us": self.now_us, "draft_deadline_us": self.now_us + 50_000}
            self.session = replace(self.session, **{**tested, **when, **changes})
            plan = self.policy.plan(self.view)
        return plan

    def told(self, number: int = 2 * FIRST_TESTS, **changes: Any) -> SessionExplanation:
        """Why, after these rounds."""
        plan = self.rounds(number, **changes)
        (session,) = self.policy.explain(self.view, plan).sessions
        return session


# --- the fields of a step -----------------------------------------------------------------------------------------------------


def test_a_step_is_told_with_its_policy_time_reason_rows_and_cost() -> None:
    told = explained(SerialPacing(4), step_view(session_view(1, guessed=4), session_view(2, guessed=4), cost=COST))
    assert (told.policy, told.at_us, told.reason, told.num_rows) == ("serial", NOW_US, "verify", 10)
    assert told.verify_us == COST.verify_us(10)
    assert (told.wait_us, told.repeats) == (0, 0)
    assert [one.session for one in told.sessions] == [1, 2]


def test_a_wait_is_told_with_its_end_and_with_the_step_there_could_be_now() -> None:
    told = explained(SerialPacing(4), step_view(session_view(1, guessed=2), cost=COST))
    assert (told.reason, told.wait_us) == ("draft", READY.draft_deadline_us - NOW_US)
    assert (told.num_rows, told.verify_us) == (3, COST.verify_us(3))
    assert told.sessions[0].wait_us == told.wait_us


def test_one_who_waits_beside_a_step_is_told_so() -> None:
    view = step_view(session_view(1, guessed=4), session_view(2, guessed=1))
    told = explained(SerialPacing(4), view)
    assert [(one.wait_us, one.num_nodes) for one in told.sessions] == [(0, 4), (5_000, 0)]
    assert told.wait_us == 0


def test_a_plan_that_is_repeated_says_for_how_many_steps() -> None:
    view = step_view(session_view(1))
    assert explained(PlainPacing(), view).repeats == PlainPacing().plan(view).repeats > 0


def test_a_wait_for_an_event_has_no_end() -> None:
    assert explained(PlainPacing(), step_view()).wait_us is None


# --- the fields of a session --------------------------------------------------------------------------------------------------


def test_a_session_is_told_with_its_place_and_how_long_it_waited() -> None:
    told = only(SerialPacing(4), step_view(session_view(7, guessed=4, committed_len=321, waiting_since_us=NOW_US - 1_700)))
    assert (told.session, told.committed_len, told.waited_us) == (7, 321, 1_700)


def test_estimates_are_the_sessions_own_and_none_where_nothing_was_measured() -> None:
    measured = session_view(1, acceptance=0.6, continue_prob=0.9, link_us=150.0, draft_us_per_token=300.0)
    told = only(SerialPacing(4), step_view(measured)).estimates
    assert (told.acceptance, told.continue_prob, told.round_trip_us, told.draft_us) == (0.6, 0.9, 300.0, 300.0)
    unknown = only(SerialPacing(4), step_view(session_view(1))).estimates
    assert (unknown.round_trip_us, unknown.draft_us) == (None, None)


def test_guesses_of_the_step_are_told_apart_from_those_of_the_text() -> None:
    drafted = only(SerialPacing(4), step_view(session_view(1, guessed=4)))
    looked_up = only(LookupPacing(), step_view(session_view(1, lookup_rights=SURE)))
    assert (drafted.num_nodes, drafted.from_lookup) == (4, False)
    assert (looked_up.num_nodes, looked_up.from_lookup) == (12, True)


def test_side_nodes_are_told() -> None:
    talk = Talk(num_nodes=12, depth=12, side_depths=(0, 1, 1), hedge_hit_share=0.9, num_hedge_tests=99)
    flat = CostCurve(((1, TARGET_US),))
    talk.rounds(2 * FIRST_TESTS, acceptance=0.5)
    view = StepView((talk.session,), flat, 64, talk.now_us)
    plan = talk.policy.plan(view)
    assert plan.reason == "tree"
    told = talk.policy.explain(view, plan)
    assert (told.reason, told.sessions[0].side_nodes) == ("tree", plan.take[0].side_nodes)
    assert told.sessions[0].side_nodes > 0


# --- fixed policies -----------------------------------------------------------------------------------------------------------


def test_plain_decoding_promises_a_token_a_step_and_has_no_choice() -> None:
    told = only(PlainPacing(), step_view(session_view(1), cost=COST)).choice
    assert (told.chosen.way, told.chosen.draft_len, told.rejected, told.why) == (Way.PLAIN, 0, (), Why.ONLY)
    assert told.chosen.tokens_per_us == 1.0 / TARGET_US


def test_a_fixed_length_promises_nothing_that_it_does_not_know() -> None:
    told = only(SerialPacing(4), step_view(session_view(1, draft_us_per_token=300.0))).choice
    assert (told.chosen.way, told.chosen.draft_len, told.chosen.tokens_per_us) == (Way.IN_TURNS, 4, None)
    assert (told.rejected, told.why, told.kept) == ((), Why.ONLY, False)


def test_a_request_without_guesses_decodes_plainly_under_any_policy() -> None:
    for policy in (SerialPacing(), PearlPacing(), AdaptivePacing()):
        told = only(policy, step_view(session_view(1, max_draft_len=0))).choice
        assert told.why is Why.ONLY, policy.name


def test_lengths_are_weighed_against_each_other_and_an_older_one_is_kept_within_the_margin() -> None:
    policy, session = SerialPacing(), session_view(1, draft_us_per_token=800.0, acceptance=0.9)
    assert only(policy, step_view(session_view(1))).choice.why is Why.UNMEASURED
    told = only(policy, step_view(session, cost=COST)).choice
    assert (told.why, told.kept) == (Why.MOST, False)
    rates = Rates(COST, 800.0, 0.9)
    assert told.chosen.tokens_per_us == pytest.approx(serial_tokens_per_us(rates, policy.draft_len))
    (other,) = told.rejected
    assert other.tokens_per_us == pytest.approx(serial_tokens_per_us(rates, other.draft_len))
    assert (other.tokens_per_us or 0.0) < (told.chosen.tokens_per_us or 0.0)
    before = policy.draft_len
    assert before != DEFAULT_DRAFT_LEN
    later = replace(step_view(replace(session, acceptance=0.88), cost=COST), now_us=NOW_US + 1_000_000)
    kept = only(policy, later).choice
    assert policy.draft_len == before
    assert (kept.why, kept.kept) == (Why.KEPT, True)
    assert (kept.rejected[0].tokens_per_us or 0.0) > (kept.chosen.tokens_per_us or 0.0)


def test_pearl_runs_ahead_and_is_told_at_the_cost_of_steps_beside_a_drafter() -> None:
    beside = CostCurve(((1, 2 * TARGET_US),))
    view = replace(step_view(session_view(1, following=False), cost=COST), cost_drafting=beside)
    told = explained(PearlPacing(4), view)
    assert told.verify_us == 2 * TARGET_US
    assert told.sessions[0].choice.chosen.way is Way.AHEAD


def test_the_text_is_weighed_against_going_without() -> None:
    told = only(LookupPacing(), step_view(session_view(1, lookup_rights=SURE), cost=COST)).choice
    expected = sum(0.95**depth for depth in range(13)) / COST.verify_us(13)
    assert (told.chosen.way, told.chosen.draft_len, told.why) == (Way.LOOKUP, 12, Why.MOST)
    assert told.chosen.tokens_per_us == pytest.approx(expected)
    assert [one.way for one in told.rejected] == [Way.PLAIN]
    unlikely = only(LookupPacing(), step_view(session_view(1, lookup_rights=(0.001,)), cost=COST)).choice
    assert (unlikely.chosen.way, unlikely.why) == (Way.PLAIN, Why.MOST)
    assert only(LookupPacing(), step_view(session_view(1))).choice.why is Why.ONLY
    given = only(LookupPacing(4), step_view(session_view(1, lookup_rights=SURE))).choice
    assert (given.chosen.draft_len, given.chosen.tokens_per_us, given.why) == (4, None, Why.ONLY)


# --- adaptive -----------------------------------------------------------------------------------------------------------------


def test_it_begins_in_turns_for_want_of_anything_measured() -> None:
    told = only(AdaptivePacing(), step_view(session_view(1))).choice
    assert (told.chosen.way, told.chosen.draft_len, told.chosen.tokens_per_us) == (Way.IN_TURNS, FIRST_LEN, None)
    assert (told.rejected, told.why) == ((), Why.UNMEASURED)


def test_without_a_drafter_it_goes_plainly_whatever_its_course() -> None:
    policy, session = AdaptivePacing(), session_view(1, has_drafter=False, tail_ended=True, lookup_rights=(0.9,) * 6)
    for rights, way, why in (((), Way.PLAIN, Why.ONLY), ((0.9,) * 6, Way.LOOKUP, Why.MOST)):
        view = step_view(replace(session, lookup_rights=rights, committed_len=session.committed_len + len(rights)))
        choice = policy.explain(view, policy.plan(view)).sessions[0].choice
        assert (choice.chosen.way, choice.why) == (way, why)
        assert [one.way for one in choice.rejected] == ([] if way is Way.PLAIN else [Way.PLAIN])
    left = step_view(session_view(2, guessed=2, has_drafter=False, tail_ended=True))
    assert policy.explain(left, policy.plan(left)).sessions[0].choice.chosen.way is Way.IN_TURNS, "what it had sent is verified"


def test_every_pace_is_told_with_its_promise_the_best_first_and_the_estimates_behind_it() -> None:
    talk = Talk()
    told = talk.told(acceptance=0.9, draft_us_per_token=2_000.0, link_us=400.0)
    assert (told.choice.chosen.way, told.choice.why, told.choice.kept) == (Way.AHEAD, Why.MOST, False)
    assert {one.way for one in told.choice.rejected} == {Way.PLAIN, Way.IN_TURNS}
    speeds = [one.tokens_per_us or 0.0 for one in (told.choice.chosen, *told.choice.rejected)]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] == pytest.approx(1.0 / TARGET_US)
    estimates = told.estimates
    assert estimates.acceptance == hoped_acceptance(talk.session)
    assert (estimates.continue_prob, estimates.round_trip_us) == (1.0, 800.0)
    assert estimates.draft_us == talk.policy._rates.draft_us(Pace.AHEAD) > 0.0


def test_estimates_are_those_that_courses_are_weighed_by() -> None:
    talk = Talk()
    talk.told(acceptance=0.9, draft_us_per_token=2_000.0, link_us=400.0)
    flawless = replace(talk.session, num_tested=FLAWLESS_TESTS.start, is_flawless=True, takes_turns=True, acceptance=0.7, continue_prob=0.8)
    estimates = only(talk.policy, StepView((flawless,), COST, 64, talk.now_us)).estimates
    assert (estimates.acceptance, estimates.continue_prob) == (FLAWLESS, FLAWLESS)


def test_a_step_beside_a_drafter_that_runs_ahead_is_told_at_its_own_cost() -> None:
    talk = Talk()
    talk.contention = 1.1
    talk.rounds(2 * FIRST_TESTS, acceptance=0.9, draft_us_per_token=2_000.0)
    told = talk.policy.explain(talk.view, talk.policy.plan(talk.view))
    assert told.sessions[0].choice.chosen.way is Way.AHEAD
    assert told.verify_us == talk.view.overlapped_cost.verify_us(told.num_rows) > COST.verify_us(told.num_rows)


def test_the_step_of_a_group_is_told_at_its_own_cost() -> None:
    """Of two of four sessions, beside drafters at work."""
    policy, parts = AdaptivePacing(), tuple(SessionPlan(number, 1, 2) for number in (0, 1))
    resting, beside = (CostCurve(((1, us), (64, us)), 100.0, 4) for us in (1_000.0, 2_000.0))
    view = StepView(tuple(session_view(number, 2) for number in range(4)), resting, 64, NOW_US, beside)
    policy.plan(view)
    policy._num_groups = 2
    assert policy.explain(view, PacingPlan(parts, None, "verify")).verify_us == 2_000.0 + 100.0


def test_a_promise_is_told_as_what_was_achieved_has_corrected_it() -> None:
    talk = Talk()
    before = talk.told(acceptance=0.9, draft_us_per_token=2_000.0).choice.chosen.tokens_per_us
    for _ in range(3):
        talk.policy._memory.count(Pace.AHEAD, took_us=2_000.0, expected_us=1_000.0)
    after = talk.policy.explain(talk.view, talk.policy.plan(talk.view)).sessions[0].choice.chosen.tokens_per_us
    assert before is not None
    assert after == pytest.approx(before * talk.policy._memory.factor(Pace.AHEAD))


def test_a_session_that_goes_without_is_told_what_guesses_promise() -> None:
    told = Talk().told(40, acceptance=0.02, draft_us_per_token=30_000.0).choice
    assert (told.chosen.way, told.chosen.draft_len, told.why) == (Way.PLAIN, 0, Why.MOST)
    assert all((one.tokens_per_us or 0.0) < (1.0 + START_GAIN) / TARGET_US for one in told.rejected)


def test_an_older_choice_that_hysteresis_keeps_is_told_so() -> None:
    """Guesses that begin to pay by less than it takes to begin with them."""
    talk = Talk()
    talk.rounds(40, acceptance=0.02, draft_us_per_token=8_000.0)
    acceptance, seen = 0.02, set()
    while acceptance < 0.9 and Way.IN_TURNS not in seen:
        acceptance += 0.01
        told = talk.told(4, acceptance=acceptance, draft_us_per_token=8_000.0).choice
        seen.add(told.chosen.way)
        better = [one for one in told.rejected if (one.tokens_per_us or 0.0) > (told.chosen.tokens_per_us or 0.0)]
        if told.why is Why.KEPT:
            assert told.kept
            assert better, "what is kept is not what promises most"
            return
        assert not told.kept
    raise AssertionError("nothing was ever kept")


def test_a_probe_is_told_as_one() -> None:
    talk = Talk()
    talk.rounds(40, acceptance=0.01, draft_us_per_token=2_000.0)
    while talk.policy.draft_ahead(talk.session) == 0:
        talk.rounds(1)
    told = talk.policy.explain(talk.view, talk.policy.plan(talk.view)).sessions[0].choice
    assert (told.chosen.way, told.why) == (Way.PLAIN, Why.PROBE)


def test_guesses_from_the_text_are_told_as_chosen_and_as_rejected() -> None:
    talk = Talk()
    told = talk.told(acceptance=0.1, draft_us_per_token=30_000.0, lookup_rights=SURE)
    assert (told.choice.chosen.way, told.choice.chosen.draft_len, told.from_lookup) == (Way.LOOKUP, 12, True)
    expected = sum(0.95**depth for depth in range(13)) / COST.verify_us(13)
    assert told.choice.chosen.tokens_per_us == pytest.approx(expected, rel=0.01)
    assert Way.PLAIN in {one.way for one in told.choice.rejected}
    offered = talk.told(1, lookup_rights=(0.04,)).choice
    assert (offered.chosen.way, offered.why, offered.kept) == (Way.PLAIN, Why.KEPT, True), "it promises more, by less than the margin"
    assert offered.rejected[0].way is Way.LOOKUP


def test_answers_over_before_a_drafter_was_heard_of_are_told_as_the_reason() -> None:
    policy = AdaptivePacing()
    told: SessionExplanation | None = None
    for number in range(UNHEARD_ANSWERS + 2):
        for at in range(4):
            now_us = NOW_US + (4 * number + at) * 50_000
            session = session_view(number, committed_len=100 + at, waiting_since_us=now_us, draft_deadline_us=now_us, is_drafting=True)
            view = StepView((session,), COST, 64, now_us)
            plan = policy.plan(view)
            told = policy.explain(view, plan).sessions[0]
            policy.draft_ahead(session)
    assert told is not None
    assert (told.choice.chosen.way, told.choice.why) == (Way.PLAIN, Why.UNHEARD)


def test_a_session_that_was_not_looked_at_yet_goes_as_those_before_it() -> None:
    talk = Talk()
    talk.rounds(2 * FIRST_TESTS, acceptance=0.9, draft_us_per_token=2_000.0)
    new = [session_view(1 + at, remaining=10_000, acceptance=0.9, waiting_since_us=talk.now_us) for at in range(MAX_SESSIONS)]
    view = StepView((talk.session, *new), COST, 64, talk.now_us)
    told = talk.policy.explain(view, talk.policy.plan(view)).sessions
    assert [one.choice.why for one in told[1:]] == [Why.INHERITED] * len(new)


def test_one_who_would_draft_otherwise_is_told_that_all_draft_one_way() -> None:
    """Another's guesses are nearly always right, which decides for both."""
    policy, now_us = AdaptivePacing(), NOW_US
    seen = set()
    sessions = [replace(session_view(at, remaining=10_000), acceptance=right) for at, right in ((1, 0.97), (2, 0.3))]
    for _ in range(4 * FIRST_TESTS):
        now_us += int(TARGET_US)
        sessions = [
            replace(
                one,
                draft_us_per_token=800.0,
                committed_len=one.committed_len + 2,
                num_tested=one.num_tested + 2,
                waiting_since_us=now_us,
                draft_deadline_us=now_us + 50_000,
            )
            for one in sessions
        ]
        view = StepView(tuple(sessions), COST, 64, now_us)
        told = policy.explain(view, policy.plan(view)).sessions
        seen |= {(one.session, one.choice.why) for one in told}
        for one in told:
            if one.choice.why is Why.SHARED:
                assert any((other.tokens_per_us or 0.0) > (one.choice.chosen.tokens_per_us or 0.0) for other in one.choice.rejected)
    assert (2, Why.SHARED) in seen
    assert (1, Why.SHARED) not in seen


# --- for nothing --------------------------------------------------------------------------------------------------------------


def test_planning_makes_no_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: nothing of it is even begun."""
    made: list[str] = []
    for module, name in ((explaining, "_session"), (adaptive_choice.Weighing, "__init__"), (adaptive_choice, "explain_plan")):
        kept = getattr(module, name)

        def counted(*args: Any, name: str = name, kept: Any = kept, **named: Any) -> Any:
            made.append(name)
            return kept(*args, **named)

        monkeypatch.setattr(module, name, counted)
    talk = Talk()
    talk.rounds(40)
    assert made == []
    assert talk.policy.explain(talk.view, talk.policy.plan(talk.view)).sessions
    assert set(made) == {"_session", "__init__", "explain_plan"}


def test_whoever_asks_why_changes_nothing() -> None:
    quiet, curious = Talk(), Talk()
    for at in range(120):
        changes = {"acceptance": 0.2 + 0.6 * (at // 40 % 2), "lookup_rights": SURE if at % 7 == 0 else ()}
        plan = curious.rounds(1, **changes)
        assert plan == quiet.rounds(1, **changes)
        assert curious.policy.explain(curious.view, plan) == curious.policy.explain(curious.view, plan)
        for talk in (quiet, curious):
            talk.policy.draft_ahead(talk.session)
