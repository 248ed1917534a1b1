"""Sessions that draft in groups: when a group goes, who is in it, and what groups are worth.

Run: pytest tests/unit/test_pacing_groups.py
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fakes_pacing import NOW_US, session_view
from outrider.session.pacing import company
from outrider.session.pacing.adaptive import FIRST_COURSE, SWITCH_GAIN, AdaptivePacing
from outrider.session.pacing.company import KEEP_WITHIN, Present, Split, _best, company_courses, splits_of
from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionView, StepView
from outrider.session.pacing.groups import plan_in_groups
from outrider.session.pacing.offers import drafting_pace
from outrider.session.pacing.prefill_bound import PrefillBound
from outrider.session.pacing.round_model import Pace, RoundRates, best_ahead_course, measured_rates
from outrider.session.pacing.together import Outlook
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.world import Phase, World

WANTED, LATER_US = 4, 3_000
COST = CostCurve(((1, 1_000.0), (512, 6_000.0)))


def turn(session: int, guessed: int = 0, **changes: Any) -> SessionView:
    """The one with the highest number has waited longest."""
    return session_view(session, guessed, waiting_since_us=NOW_US - session, draft_deadline_us=NOW_US + 90_000, **changes)


def outlook(session: SessionView) -> Outlook:
    until_us = None if not session.max_draft_len else NOW_US + LATER_US + session.session
    return Outlook(WANTED if session.max_draft_len else 0, 8, 0.9, 0.9, float(NOW_US), 100.0, until_us)


def plan(*sessions: SessionView, num_groups: int = 2, cost: CostCurve = COST, **changes: Any) -> PacingPlan:
    return plan_in_groups(StepView(sessions, cost, 512, NOW_US, **changes), outlook, cost, 1e-3, num_groups)


def taken(made: PacingPlan) -> set[int]:
    return {part.session for part in made.take}


def test_as_many_go_as_a_group_holds_whoever_waited_longest() -> None:
    made = plan(*(turn(number, WANTED) for number in range(8)))
    assert taken(made) == {4, 5, 6, 7}
    assert {part.max_nodes for part in made.take} == {WANTED}
    assert taken(plan(*(turn(number, WANTED) for number in range(7)), num_groups=3)) == {4, 5, 6}, "a third, and what is left over"


def test_until_so_many_have_their_whole_draft_nobody_goes() -> None:
    drafting = [turn(number, 1) for number in range(5)]
    made = plan(*drafting, turn(5, WANTED), turn(6, WANTED), turn(7, WANTED))
    assert (made.take, made.wake_us) == ((), NOW_US + LATER_US + 1), "and the first that is late is waited for no longer"
    assert taken(plan(*drafting[1:], turn(4, WANTED), turn(5, WANTED), turn(6, WANTED), turn(7, WANTED))) == {4, 5, 6, 7}


def test_one_that_is_late_or_has_nobody_to_wait_for_counts_as_ready() -> None:
    ready, late = [turn(number, WANTED) for number in (2, 3)], turn(-LATER_US, 1)
    assert taken(plan(turn(1), late, *ready, num_groups=1)) == set()
    assert taken(plan(turn(1), turn(4), late, *ready, num_groups=2)) == {late.session, 2, 3}
    assert taken(plan(turn(1, 1, tail_ended=True), *ready, turn(4), num_groups=2)) == {2, 3}
    assert taken(plan(turn(1, 1, tail_ended=True), turn(2, WANTED), turn(3), turn(4), num_groups=2)) == {1, 2}


def test_who_does_not_draft_is_in_every_step() -> None:
    plainly = [turn(number, max_draft_len=0) for number in (20, 21)]
    assert taken(plan(*plainly, *(turn(number, WANTED) for number in range(4)))) == {20, 21, 2, 3}
    assert not plan(*plainly, *(turn(number) for number in range(4))).take, "and waits for a group with all others"
    assert taken(plan(*plainly)) == {20, 21}


def test_a_prompt_is_read_at_once_beside_those_that_are_ready_and_nobody_else() -> None:
    """Beside a prompt everybody else is taken with whatever guesses there are; in groups those keep their drafts for their own step."""
    reading = turn(30, num_uncached=40)
    made = plan(reading, turn(1, 1), turn(2, 2), turn(3, WANTED), turn(4), prefill=PrefillBound(COST, 4.0, 4))
    assert taken(made) == {30, 3}


def test_a_session_past_its_deadline_goes() -> None:
    late = replace(turn(1, 1), draft_deadline_us=NOW_US)
    assert taken(plan(late, turn(2), turn(3), turn(4))) == {1}


def test_a_group_is_not_charged_for_the_sequences_of_the_others() -> None:
    """With 32 of 64 sequences in the step a guess would pay for 32 more, and none would ever be taken."""
    shared = replace(COST, sequence_us=150.0, num_sequences=64)
    made = plan_in_groups(
        StepView(tuple(turn(number, WANTED) for number in range(64)), shared, 512, NOW_US), outlook, shared, 64 * 4.1 / 10_000.0, 2
    )
    assert {part.max_nodes for part in made.take} == {WANTED}


# --- what groups are worth --------------------------------------------------------------------------------------------------

GOOD = (0.9, 1.0)
LINEAR, FIXED = CostCurve(((1, 100.0), (512, 51_200.0))), CostCurve(((1, 10_000.0), (512, 10_500.0)))


def rates(num: int, cost: CostCurve, draft_us: float = 400.0) -> RoundRates:
    return measured_rates(cost, num, draft_us, link_us=500.0, overhead_us=100.0)


def splits(num: int, cost: CostCurve, num_plain: int = 0, most_len: float = math.inf) -> list[Split]:
    def of(number: int) -> RoundRates:
        return replace(rates(number, cost), most_len=most_len)

    return splits_of(of(num), of, num, num - num_plain)


def test_groups_pay_where_rows_are_what_a_step_costs_and_not_where_it_is_the_step() -> None:
    for cost, in_groups in ((LINEAR, True), (FIXED, False)):
        courses = company_courses(splits(16, cost), [GOOD] * 16, 32, Present())
        assert (courses[0].num_groups > 1) is in_groups
        alone = company_courses(splits(16, cost)[:1], [GOOD] * 16, 32, Present())
        assert (courses[0].tokens_per_us > 1.1 * alone[0].tokens_per_us) is in_groups


def test_a_round_in_groups_lasts_as_long_as_their_steps_or_as_a_draft_and_a_step() -> None:
    for draft_us in (10.0, 4_000.0):
        two = Split(2, rates(8, LINEAR, draft_us))
        (course, *_) = company_courses([two], [GOOD] * 16, 6, Present())
        step_us = LINEAR.verify_us(8 * (1 + course.hit_len)) + 100.0
        assert course.hit_us == pytest.approx(max(2 * step_us, step_us + 2 * 500.0 + course.hit_len * draft_us))
        assert course.wait_us == pytest.approx(course.hit_us - step_us)
        assert course.tokens_per_us == pytest.approx((1.0 - 0.9 ** (course.hit_len + 1)) / 0.1 / course.hit_us)


def test_who_does_not_draft_has_a_token_of_each_step() -> None:
    plain = None
    courses = company_courses(splits(12, LINEAR, num_plain=4)[1:2], [GOOD] * 8 + [plain] * 4, 32, Present())
    drafted, bare = courses[0], courses[-1]
    assert (bare.pace, bare.hit_len, bare.num_groups) == (Pace.PLAIN, 0, 2)
    assert bare.tokens_per_us == pytest.approx(2.0 / drafted.hit_us)


def test_that_decides_for_groups_where_few_of_many_draft() -> None:
    """A draft takes as long as steps: in two groups those that draft get as much as in one, and all others twice as much."""
    one, two = Split(1, rates(12, FIXED, 4_000.0)), Split(2, rates(10, FIXED, 4_000.0))
    plain = None
    assert company_courses([one, two], [GOOD] * 4 + [plain] * 8, 4, Present(4, 1))[0].num_groups == 2
    assert company_courses([one, two], [GOOD] * 12, 4, Present(4, 1))[0].num_groups == 1


def test_a_draft_is_no_longer_than_a_step_has_room_for() -> None:
    roomy, tight = (company_courses(splits(16, FIXED, most_len=most), [GOOD] * 16, 32, Present()) for most in (31.0, 3.0))
    assert roomy[0].hit_len > 3 == tight[0].hit_len
    none_left = company_courses(splits(16, FIXED, most_len=0.0), [GOOD] * 16, 32, Present())
    assert none_left[0].hit_len == 1, "where there is room for nobody's, what a step holds is shared"


def test_the_number_of_groups_is_kept_until_another_is_clearly_better() -> None:
    speeds = np.array([[0.0, 1.0, 0.9], [0.0, 1.0, 1.03], [0.0, 0.2, 1.0 + 1.5 * KEEP_WITHIN]])
    for present, expected in ((Present(2, 2), (1, 2)), (Present(1, 1), (2, 2)), (Present(), (2, 2)), (Present(2, 9), (2, 2))):
        assert _best([1, 2, 3], speeds, present) == expected


MANY = World(
    verify=CostCurve(((1, 530.0), (512, 15_860.0))),
    draft=CostCurve(((1, 1_000.0), (64, 1_100.0))),
    phases=((Phase(0.9),),),
    message_us=60,
    step_overhead_us=150,
    num_sessions=64,
    guess_us=60,
    session_us=150,
    prompt_len=16,
    output_len=96,
    max_rows=512,
    seed=5,
)


def test_many_sessions_in_groups_are_quicker_than_all_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 64 sessions with drafts takes 25 ms, and drafting 6: in one group the target rests meanwhile."""
    num_tokens = 96 * 64 * 2
    groups = Counter[int]()
    seen = AdaptivePacing._look

    def look(policy: AdaptivePacing, view: StepView) -> None:
        seen(policy, view)
        groups[policy._num_groups] += 1

    monkeypatch.setattr(AdaptivePacing, "_look", look)
    in_groups = simulate(MANY, AdaptivePacing(), num_tokens)
    assert groups[2] + groups[3] > groups[1]
    monkeypatch.setattr(company, "MAX_GROUPS", 1)
    in_one = simulate(MANY, AdaptivePacing(), num_tokens)
    assert in_groups.elapsed_us < 0.95 * in_one.elapsed_us


@pytest.mark.parametrize(("num_sessions", "chosen"), [(1, Pace.AHEAD), (8, Pace.AHEAD), (64, Pace.SERIAL)])
def test_the_more_sessions_there_are_the_more_running_ahead_must_promise(num_sessions: int, chosen: Pace) -> None:
    going = [FIRST_COURSE] * num_sessions
    offered = {Pace.SERIAL: (going, 1.0), Pace.AHEAD: ([FIRST_COURSE._replace(pace=Pace.AHEAD)] * num_sessions, 1.08)}
    assert drafting_pace(offered, Pace.SERIAL, going, SWITCH_GAIN) is chosen


@pytest.mark.parametrize(
    ("num_sessions", "before", "kept", "gain", "chosen"),
    [
        (1, Pace.SERIAL, Pace.PLAIN, 1.02, Pace.AHEAD),  # it would give up its guesses
        (1, Pace.SERIAL, Pace.PLAIN, 1.005, Pace.SERIAL),  # and does, where the other promises hardly more than going without
        (1, Pace.SERIAL, Pace.SERIAL, 1.02, Pace.SERIAL),  # goes on with them
        (1, Pace.PLAIN, Pace.PLAIN, 1.02, Pace.SERIAL),  # has given them up
        (8, Pace.SERIAL, Pace.PLAIN, 1.03, Pace.SERIAL),  # among others, whose time it takes
    ],
)
def test_who_would_give_up_guesses_takes_the_other_pace_for_a_small_gain(
    num_sessions: int, before: Pace, kept: Pace, gain: float, chosen: Pace
) -> None:
    going, stays, goes = ([FIRST_COURSE._replace(pace=pace)] * num_sessions for pace in (before, kept, Pace.AHEAD))
    assert drafting_pace({Pace.SERIAL: (stays, 1.0), Pace.AHEAD: (goes, gain)}, Pace.SERIAL, going, SWITCH_GAIN) is chosen


def test_nor_is_a_round_of_one_that_runs_ahead_longer_than_a_step_has_room_for() -> None:
    roomy, tight = (best_ahead_course(replace(rates(16, FIXED), most_len=most), *GOOD) for most in (math.inf, 3.0))
    assert max(roomy.hit_len, roomy.miss_len) > 3 >= max(tight.hit_len, tight.miss_len)
    assert tight.hit_len > 0
