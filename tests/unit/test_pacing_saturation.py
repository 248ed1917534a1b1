"""Full steps: who is not asked, and what that says of nobody.

Run: pytest tests/unit/test_pacing_saturation.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes_pacing import NOW_US, session_view
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import CostCurve, SessionView, StepView
from outrider.session.pacing.explanation import Way
from outrider.session.pacing.first_asking import LATER
from outrider.session.pacing.probing import HOPELESS_PROBE_AFTER, Probe, ProbeBudget
from outrider.session.pacing.round_model import Pace
from outrider.session.pacing.saturation import Saturation

KNEE = CostCurve(((1, 1_000.0), (8, 1_000.0), (16, 2_000.0), (64, 8_000.0), (256, 32_000.0)))
OVERHEAD_US = 100.0


def view_of(num: int, now_us: int = NOW_US) -> StepView:
    ready = session_view(0, remaining=10_000, acceptance=0.9, num_tested=99, draft_us_per_token=50.0, draft_alone_us=50.0)
    return StepView(tuple(replace(ready, session=at) for at in range(num)), KNEE, 256, now_us)


@pytest.mark.parametrize(
    ("num", "right", "is_full"), [(1, 0.3, False), (2, 0.7, False), (16, 0.9, True), (64, 0.97, True), (6, 0.97, False)]
)
def test_steps_are_full_where_no_guess_is_worth_its_row(num: int, right: float, *, is_full: bool) -> None:
    saturation = Saturation()
    saturation.observe(view_of(num))
    saturation.look([0.1] * (num - 1) + [right], OVERHEAD_US)
    assert saturation.is_on is is_full


def test_one_session_of_many_may_have_room_where_all_of_them_have_not() -> None:
    """A row more is free up to 32 of them."""
    saturation = Saturation()
    saturation.observe(replace(view_of(24), cost=CostCurve(((1, 1_000.0), (32, 1_000.0), (33, 9_000.0), (64, 18_000.0)))))
    saturation.look([0.5], OVERHEAD_US)
    assert not saturation.is_on


def test_those_that_begin_at_once_are_company_before_any_plan() -> None:
    saturation = Saturation()
    saturation.observe(view_of(1))
    found = []
    for _ in range(32):
        saturation.begun()
        found.append(saturation.awaits(0.9, OVERHEAD_US))
    assert not found[0]
    assert found[-1]
    saturation.observe(view_of(1))
    assert not saturation.awaits(0.9, OVERHEAD_US), "they have all ended"


def test_nothing_is_known_before_the_first_plan() -> None:
    assert not Saturation().awaits(0.1, OVERHEAD_US)


def rounds(policy: AdaptivePacing, num: int, num_rounds: int, now_us: int = NOW_US) -> StepView:
    """Drafters that are right in nine of ten, asked and planned with."""
    view = view_of(num, now_us)
    for _ in range(num_rounds):
        now_us += 2_000
        view = replace(view, sessions=tuple(after(session, now_us) for session in view.sessions), now_us=now_us)
        for session in view.sessions:
            policy.draft_ahead(session)
        policy.plan(view)
    return view


def after(session: SessionView, now_us: int) -> SessionView:
    return replace(
        session,
        committed_len=session.committed_len + 2,
        num_tested=session.num_tested + 2,
        waiting_since_us=now_us,
        draft_deadline_us=now_us,
    )


def paces(policy: AdaptivePacing, view: StepView) -> set[Pace]:
    return {policy._sessions.of(session).course.pace for session in view.sessions}


def test_nobody_drafts_where_steps_are_full_and_they_do_again_where_they_are_not() -> None:
    policy = AdaptivePacing()
    few = rounds(policy, 1, 60)
    assert Pace.PLAIN not in paces(policy, few)
    many = rounds(policy, 64, 60, few.now_us)
    assert paces(policy, many) == {Pace.PLAIN}
    assert policy._saturation.is_on
    told = policy.explain(many, policy.plan(many)).sessions
    assert {one.choice.chosen.way for one in told} == {Way.PLAIN}
    assert not any(policy._sessions.kind(session).asking.is_later() for session in many.sessions), "it is no verdict on their drafters"
    again = rounds(policy, 1, 600, many.now_us)
    assert Pace.PLAIN not in paces(policy, again)


def test_probes_are_rare_where_steps_are_full() -> None:
    policy = AdaptivePacing()
    session = rounds(policy, 64, 120).sessions[0]
    own = policy._sessions.of(session)
    own.probe, own.hopeless = Probe(session.committed_len - 1_000), False
    policy._budget = ProbeBudget()
    policy._budget.count_plain(HOPELESS_PROBE_AFTER - 1)
    for is_full in (True, False):
        policy._saturation.is_on = is_full
        policy._probe(own, session)
        assert own.probe.is_on is not is_full


def test_one_session_alone_is_never_a_crowd() -> None:
    """Where rows are as dear as steps its guesses do not pay either, but only who is asked is ever measured."""
    saturation = Saturation()
    saturation.observe(replace(view_of(1), cost=CostCurve(((1, 1_000.0), (64, 64_000.0)))))
    saturation.look([0.5], OVERHEAD_US)
    assert not saturation.is_on


def test_a_session_that_is_thought_of_often_is_no_crowd() -> None:
    """Its drafter is thought of when it is opened, when it is asked, and with each part of its prompt that is read."""
    policy = AdaptivePacing()
    ended = rounds(policy, 1, 60)
    session = session_view(1_000, remaining=10_000, acceptance=0.9, num_tested=0, waiting_since_us=ended.now_us)
    assert all(policy.draft_ahead(session) > 0 for _ in range(64))


def test_a_crowd_that_begins_at_once_is_not_asked() -> None:
    policy = AdaptivePacing()
    ended = rounds(policy, 1, 60)
    crowd = [session_view(1_000 + at, remaining=10_000, acceptance=0.9, num_tested=0, waiting_since_us=ended.now_us) for at in range(64)]
    asked = [policy.draft_ahead(session) > 0 for session in crowd]
    assert asked[0], "the first of them has room"
    assert not any(asked[32:])
    own = policy._sessions.of(crowd[-1])
    assert (own.course.pace, own.asked_from) == (Pace.PLAIN, crowd[-1].committed_len + LATER)


def test_what_is_done_for_everybodys_guesses_fills_steps_too() -> None:
    """Rows cost nothing here; of sixteen sessions each would wait for the frames and trees of all."""
    free = CostCurve(((1, 1_000.0), (256, 1_000.0)))
    for guess_us, is_full in ((0.0, False), (100.0, False), (2_000.0, True)):
        saturation = Saturation()
        saturation.observe(replace(view_of(16), cost=free, guess_us=guess_us))
        saturation.look([0.9], OVERHEAD_US)
        assert saturation.is_on is is_full


def test_more_sequences_than_the_newest_plan_had_are_weighed_as_so_many() -> None:
    """A row of a session that is there costs little, and one of a further session a good deal: a crowd has room for guesses."""
    crowded = CostCurve(((1, 1_000.0), (64, 1_700.0), (256, 3_600.0)), 100.0, 2)
    saturation = Saturation()
    saturation.observe(replace(view_of(2), cost=crowded))
    for _ in range(30):
        saturation.begun()
    assert not saturation.awaits(0.2, OVERHEAD_US)
    saturation.observe(replace(view_of(2), cost=replace(crowded, sequence_us=0.0)))
    for _ in range(30):
        saturation.begun()
    assert saturation.awaits(0.2, OVERHEAD_US)
