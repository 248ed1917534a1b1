"""`adaptive` with several sessions that go without guesses: what they learned together lasts, and new ones are asked when probes are due.

Run: pytest tests/unit/test_pacing_in_company.py
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fakes_pacing import NOW_US, session_view
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.by_lookup import ByLookup
from outrider.session.pacing.contract import CostCurve, SessionView, StepView
from outrider.session.pacing.outlooks import FIRST_LEN
from outrider.session.pacing.probing import OWN_PROBE_AFTER, PROBE_AFTER, ProbeBudget
from outrider.session.pacing.remembered import RememberedSessions
from outrider.session.pacing.round_model import Course, Pace

COST = CostCurve(((1, 1_000.0), (16, 2_000.0), (64, 4_000.0)))
PLAIN = Course(Pace.PLAIN, 0, 0, 0, 0.001, 1_000.0, 1_000.0)


def plain_policy() -> AdaptivePacing:
    """New sessions go without guesses: the first guesses of those before were no good."""
    policy = AdaptivePacing()
    policy._sessions.settle_all(PLAIN)
    policy._sessions.kind(new_session(0)).asking.judged(drafts=False)
    return policy


def step_of(num: int, num_rounds: int = 0) -> StepView:
    """Sessions that have decoded so many tokens."""
    now_us = NOW_US + 2_000 * num_rounds
    own = {"committed_len": 10 + num_rounds, "waiting_since_us": now_us, "draft_deadline_us": now_us, "remaining": 10_000}
    sessions = (session_view(at, has_drafter=False, **own) for at in range(num))
    return StepView(tuple(sessions), COST, 256, now_us)


@pytest.mark.parametrize("num", [1, 4, 64])
def test_what_a_pace_took_is_forgotten_by_rounds_however_many_share_them(num: int) -> None:
    policy = plain_policy()
    for _ in range(40):
        policy._memory.count(Pace.SERIAL, 3_000.0, 1_000.0)
    for num_rounds in range(101):
        policy.plan(step_of(num, num_rounds))
    known = plain_policy()._memory
    for _ in range(40):
        known.count(Pace.SERIAL, 3_000.0, 1_000.0)
    known.count_plain(100)
    assert policy._memory.factor(Pace.SERIAL) == pytest.approx(known.factor(Pace.SERIAL))


def new_session(number: int) -> SessionView:
    return session_view(number, remaining=10_000, num_tested=0)


def test_in_company_sessions_that_begin_without_guesses_are_asked_when_a_probe_is_due() -> None:
    policy = plain_policy()
    policy.plan(step_of(4))
    assert not any(policy.draft_ahead(new_session(100 + at)) for at in range(8))
    policy._budget.count_plain(PROBE_AFTER)
    asked = [policy.draft_ahead(new_session(200 + at)) for at in range(8)]
    assert asked == [FIRST_LEN] + [0] * 7, "one probe is one session's"


def test_in_company_sessions_are_asked_at_once_if_those_before_began_well() -> None:
    """However they went on: answers that begin as the draft model would are told from those that never do."""
    policy = plain_policy()
    policy._sessions.kind(new_session(0)).asking.judged(drafts=True)
    policy.plan(step_of(4))
    assert all(policy.draft_ahead(new_session(100 + at)) == FIRST_LEN for at in range(8))


def test_who_is_left_out_as_it_begins_stays_so_however_often_it_is_thought_of() -> None:
    """Its drafter is thought of when it is met, when it is opened, and with each part of the prompt that is read."""
    policy = plain_policy()
    policy.plan(step_of(4))
    session = new_session(100)
    assert [policy.draft_ahead(session) for _ in range(4)] == [0] * 4
    policy._budget.count_plain(PROBE_AFTER - 1)
    assert not policy._budget.is_due(), "nobody has taken a probe, nor has any been counted"
    policy._budget.count_plain(1)
    assert policy.draft_ahead(session) == 0
    later = replace(session, committed_len=session.committed_len + OWN_PROBE_AFTER)
    assert policy.draft_ahead(later) > 0, "a probe is due, and it has decoded for a while"


def test_one_that_begins_after_another_has_ended_is_alone_and_asked_at_once() -> None:
    policy = plain_policy()
    for number in (100, 101):
        policy.plan(step_of(1))
        assert policy.draft_ahead(new_session(number)) == FIRST_LEN


def test_many_that_begin_at_once_are_company_and_one_that_drafts_needs_no_probe() -> None:
    policy = plain_policy()
    policy.plan(step_of(1))
    asked = [policy.draft_ahead(new_session(100 + at)) > 0 for at in range(6)]
    assert asked == [True] + [False] * 5
    policy._sessions.settle_all(PLAIN._replace(pace=Pace.SERIAL, ahead_len=4))
    assert policy.draft_ahead(new_session(200)) == FIRST_LEN


def test_what_a_step_holds_beside_a_session_is_what_the_others_of_it_decided() -> None:
    """However sessions come, go, and change their minds."""
    luck, lookup = random.Random(3), ByLookup(16)
    lens = dict.fromkeys(range(12), 10)
    found: set[int] = set()
    for _ in range(200):
        live = luck.sample(sorted(lens), luck.randint(1, 8))
        lookup.observe(replace(step_of(1), sessions=tuple(session_view(one, committed_len=lens[one]) for one in live)), 50.0)
        for one in luck.sample(sorted(lens), 6):  # some that do not share the step
            lens[one] += 1
            rights = (luck.choice((0.1, 0.95)),) * luck.randint(1, 6)
            lookup.num_guesses(session_view(one, committed_len=lens[one], lookup_rights=rights, remaining=10_000), 0.0005)
            for asked in lens:
                rest = lookup._rest(session_view(asked))
                others = [known for at, known in lookup._decisions.items() if at in live and at != asked]
                assert rest is not None
                assert rest.num_rows == len(live) + sum(known.num_guesses for known in others)
                assert rest.tokens == pytest.approx(len(live) + sum(known.tokens for known in others))
                found.add(rest.num_rows - len(live))
    assert len(found) > 10


def test_who_is_let_rest_is_told_from_its_length_and_what_is_due() -> None:
    sessions, budget = RememberedSessions(PLAIN), ProbeBudget()
    own = sessions.of(new_session(1))
    later = own.begin + OWN_PROBE_AFTER

    def rests(committed_len: int, *, is_far: bool = False, is_full: bool = False) -> bool:
        return sessions.lets_rest(1, committed_len, budget, is_far=is_far, is_full=is_full)

    assert rests(later), "no probe is due"
    assert not rests(later, is_far=True), "whether to ask a drafter far away is looked at again, probe or no probe"
    own.is_met = True
    assert rests(later, is_far=True)
    budget.count_plain(PROBE_AFTER)
    assert not rests(later)
    assert rests(later - 1), "it has not decoded enough itself"
    assert rests(later, is_full=True), "and where steps are full more is wanted of all"
    own.asked_from = later + 9
    assert rests(later)
