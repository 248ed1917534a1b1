"""Serial pacing: a round waits for its whole draft, a drafter never runs beyond it, and the length follows what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fakes_pacing import session_view, step_view
from outrider.session.pacing.contract import CostCurve, SessionPlan
from outrider.session.pacing.draft_length import LOOK_EVERY_US, SURPRISE
from outrider.session.pacing.serial import SerialPacing


def test_a_session_waits_until_its_whole_draft_is_there() -> None:
    policy = SerialPacing(4)
    waiting = policy.plan(step_view(session_view(1, guessed=3)))
    assert waiting.take == ()
    assert waiting.wake_us == session_view(1).draft_deadline_us
    assert policy.plan(step_view(session_view(1, guessed=4))).take == (SessionPlan(1, 1, 4),)


@pytest.mark.parametrize(
    "change", [{"tail_ended": True}, {"has_drafter": False}, {"draft_deadline_us": 0}, {"remaining": 1}, {"max_draft_len": 0}]
)
def test_it_does_not_wait_for_what_will_not_come(change: dict[str, int]) -> None:
    plan = SerialPacing(4).plan(step_view(session_view(1, guessed=2, **change)))
    assert [part.session for part in plan.take] == [1]


def test_one_that_waits_does_not_hold_up_another() -> None:
    plan = SerialPacing(4).plan(step_view(session_view(1, guessed=1), session_view(2, guessed=4)))
    assert plan.take == (SessionPlan(2, 1, 4),)


def test_credit_is_one_draft() -> None:
    policy = SerialPacing(6)
    assert policy.draft_ahead(session_view(1)) == 6
    assert policy.draft_ahead(session_view(1, max_draft_len=3)) == 3
    assert policy.draft_ahead(session_view(1, remaining=3)) == 2
    assert policy.draft_ahead(session_view(1, max_draft_len=0)) == 0


def test_a_fast_and_often_right_drafter_is_given_longer_drafts_than_a_slow_and_wrong_one() -> None:
    cost = CostCurve(((1, 10_000.0), (64, 12_000.0)))
    lengths = []
    for draft_us, acceptance in ((100.0, 0.95), (8_000.0, 0.3)):
        policy = SerialPacing()
        policy.plan(step_view(session_view(1, draft_us_per_token=draft_us, acceptance=acceptance), cost=cost))
        lengths.append(policy.draft_len)
    assert lengths[0] > 8
    assert lengths[1] == 1


def test_the_length_stays_when_nothing_better_was_measured() -> None:
    policy = SerialPacing()
    before = policy.draft_len
    policy.plan(step_view(session_view(1, draft_us_per_token=0.0, acceptance=0.9)))
    assert policy.draft_len == before


ROWS_COST = CostCurve(((1, 300.0), (8, 510.0), (32, 2_500.0)))
RATES: dict[str, Any] = {"draft_us_per_token": 30.0, "draft_start_us": 100.0, "acceptance": 0.95}


def lengths_of(policy: SerialPacing, overheads_us: list[float]) -> list[int]:
    """Its lengths after looks at sessions with such overheads, one after another; 0 = unknown."""
    lengths = []
    for at, overhead_us in enumerate(overheads_us):
        view = step_view(session_view(at, overhead_us=overhead_us, **RATES), cost=ROWS_COST)
        policy.plan(replace(view, now_us=view.now_us + at * LOOK_EVERY_US))
        lengths.append(policy.draft_len)
    return lengths


def test_what_a_round_costs_anyway_is_remembered_from_session_to_session() -> None:
    """A session that has just begun knows nothing of it; taken for nothing, it made every answer's first rounds half as long."""
    unknowing, knowing, *begun = lengths_of(SerialPacing(), [0.0, 3_000.0, 0.0, 0.0])
    assert knowing > 1.5 * unknowing
    assert begun == [knowing, knowing]


def test_a_stalled_machine_makes_no_draft_longer_for_long() -> None:
    """What a stall added to a session's rounds is believed slowly, and forgotten with the first session without."""
    before, once, *_, often, after = lengths_of(SerialPacing(), [200.0, 600.0, *[3_000.0] * 30, 200.0])
    assert once == before == after
    assert often > 1.5 * before


def test_a_session_alone_that_turns_out_otherwise_is_looked_at_before_the_next_look_is_due() -> None:
    """Its answer may be over by then: chosen by what other texts had taught, the length of its first draft stood for all of it."""
    policy = SerialPacing()
    unsure = session_view(1, **{**RATES, "acceptance": 0.6})
    policy.plan(step_view(unsure, cost=ROWS_COST))
    short = policy.draft_len
    policy.plan(step_view(replace(unsure, acceptance=0.6 + 0.9 * SURPRISE), cost=ROWS_COST))
    assert policy.draft_len == short, "so much moves it from round to round"
    policy.plan(step_view(replace(unsure, acceptance=0.98), cost=ROWS_COST))
    assert policy.draft_len > 2 * short
    policy.plan(step_view(replace(unsure, session=2), cost=ROWS_COST))
    assert policy.draft_len == short, "another session"


def test_several_sessions_are_looked_at_when_it_is_due() -> None:
    policy = SerialPacing()
    sessions = [session_view(at, **{**RATES, "acceptance": 0.6}) for at in (1, 2)]
    policy.plan(step_view(*sessions, cost=ROWS_COST))
    before = policy.draft_len
    policy.plan(step_view(*(replace(one, acceptance=0.98) for one in sessions), cost=ROWS_COST))
    assert policy.draft_len == before


@pytest.mark.parametrize(("takes_turns", "is_kept"), [(True, True), (False, False)])
def test_drafts_of_one_guess_each_say_nothing_of_what_a_token_takes(*, takes_turns: bool, is_kept: bool) -> None:
    """Of a drafter that rests in between, whose start and token are one then; what it takes is its start's."""
    policy = SerialPacing()
    policy.plan(step_view(session_view(1, takes_turns=takes_turns, **RATES), cost=ROWS_COST))
    before = policy.draft_len
    singly = session_view(2, takes_turns=takes_turns, tells_start=False, **{**RATES, "draft_us_per_token": 8_000.0, "draft_start_us": 0.0})
    policy.plan(step_view(singly, cost=ROWS_COST))
    policy.plan(step_view(session_view(3, takes_turns=takes_turns, **RATES), cost=ROWS_COST))
    assert (policy.draft_len == before) is is_kept
    assert policy._length._start_us(singly) == (pytest.approx(7_970.0) if takes_turns else 0.0)


def test_a_token_is_never_thought_to_take_longer_than_a_draft_of_one_guess() -> None:
    """A first draft, which reads the prompt, made all others drafts of one guess, and those tell nothing of a token: for ever."""
    policy = SerialPacing()
    policy.plan(step_view(session_view(1, takes_turns=True, **{**RATES, "draft_us_per_token": 5_000.0}), cost=ROWS_COST))
    assert policy.draft_len == 1
    singly = session_view(2, takes_turns=True, tells_start=False, **{**RATES, "draft_us_per_token": 80.0, "draft_start_us": 0.0})
    policy.plan(step_view(singly, cost=ROWS_COST))
    assert policy.draft_len > 2
