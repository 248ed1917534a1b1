"""Whole rounds of a session that is alone with a drafter of the target's own thread: a line through their times, the draft that is verified
whole, and what the policy makes of both. Run: pytest tests/unit/test_pacing_lone_rounds.py"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fakes_pacing import NOW_US, READY
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionPlan, SessionView, StepView
from outrider.session.pacing.course_choice import courses_of
from outrider.session.pacing.ended_rounds import STEADY
from outrider.session.pacing.lone_rounds import LEAST_PLAIN, MOST_HIDDEN, MOST_TIMES, LoneRounds
from outrider.session.pacing.round_model import Pace, RoundRates, SerialRounds, begun_chains, chains, measured_rates, serial_courses
from outrider.session.pacing.whole_draft import whole_draft

STEP_US = 400.0
COST = CostCurve(((1, STEP_US), (4, 1.1 * STEP_US), (32, 4 * STEP_US)))
RESIDENT: dict[str, Any] = {"takes_turns": True, "draft_us_per_token": 40.0, "draft_alone_us": 40.0, "link_us": 50.0}
PARTS_US = 900.0, 2400.0  # of rounds of PRIOR_LENS guesses: 100 a guess


# --- the line -----------------------------------------------------------------------------------------------------------------


def test_the_parts_are_believed_until_rounds_were_seen() -> None:
    assert LoneRounds().line(STEP_US, PARTS_US) == pytest.approx((800.0, 100.0))


def test_rounds_outweigh_the_parts_and_lengths_that_were_never_tried_are_told_from_both() -> None:
    rounds = LoneRounds()
    for at in range(200):
        num = 2 + at % 7
        rounds.count(num, 420.0 + 20.0 * num, 1e9, STEP_US)
    begin_us, guess_us = rounds.line(STEP_US, PARTS_US)
    assert begin_us + 5 * guess_us == pytest.approx(520.0, rel=0.05), "the parts say 1,300"
    assert 15.0 < guess_us < 35.0


def test_rounds_of_one_length_say_nothing_of_others_but_where_they_lie() -> None:
    rounds = LoneRounds()
    for _ in range(50):
        rounds.count(1, 450.0, 1e9, STEP_US)
    begin_us, guess_us = rounds.line(STEP_US, PARTS_US)
    assert begin_us + guess_us == pytest.approx(450.0, rel=0.1)
    assert guess_us > 80.0, "the parts' word for long drafts stands"


def test_times_are_kept_in_steps_for_a_machine_s_speed_drifts() -> None:
    rounds = LoneRounds()
    for num in (1, 16) * 40:
        rounds.count(num, 500.0 + 30.0 * num, 1e9, STEP_US)
    slow = rounds.line(2 * STEP_US, (2 * 530.0, 2 * 980.0))
    assert slow == pytest.approx([2 * part for part in rounds.line(STEP_US, (530.0, 980.0))])


def test_newer_rounds_count_more_and_one_that_stalled_counts_as_a_few_times_what_was_expected() -> None:
    faded, stalled = LoneRounds(), LoneRounds()
    for took_us in (2000.0, 500.0):
        for num in (1, 16) * 400:
            faded.count(num, took_us, 1e9, STEP_US)
    assert sum(faded.line(STEP_US, PARTS_US)) < 600.0
    for took_us in (500.0,) * 20 + (1e6,):
        stalled.count(1, took_us, 500.0, STEP_US)
    once = LoneRounds()
    for took_us in (500.0,) * 20 + (MOST_TIMES * 500.0,):
        once.count(1, took_us, 500.0, STEP_US)
    assert stalled.line(STEP_US, PARTS_US) == once.line(STEP_US, PARTS_US)


def test_no_guess_takes_less_than_nothing_and_no_round_less_than_its_step() -> None:
    falling = LoneRounds()
    for num in (1, 16) * 100:
        falling.count(num, 2000.0 - 100.0 * num, 1e9, STEP_US)
    begin_us, guess_us = falling.line(STEP_US, PARTS_US)
    assert guess_us == 0.0 < begin_us
    steep = LoneRounds()
    for num in (8, 16) * 100:
        steep.count(num, 100.0 * (num - 7), 1e9, STEP_US)
    assert steep.line(STEP_US, PARTS_US)[0] == STEP_US, "no round is shorter than its step"


def test_what_passes_beside_plain_steps_is_told_from_whole_rounds_once_enough_were_seen() -> None:
    rounds = LoneRounds()
    rounds.count_plain(int(LEAST_PLAIN) - 1, (LEAST_PLAIN - 1) * 520.0, STEP_US)
    assert rounds.overhead_us(STEP_US, 33.0) == 33.0
    rounds.count_plain(4, 4 * 520.0, STEP_US)
    assert rounds.overhead_us(STEP_US, 33.0) == pytest.approx(120.0, rel=0.01)
    assert rounds.overhead_us(2 * STEP_US, 33.0) == pytest.approx(240.0, rel=0.01)
    quick = LoneRounds()
    quick.count_plain(40, 40 * 300.0, STEP_US)
    assert quick.overhead_us(STEP_US, 33.0) == pytest.approx(-100.0), "a step that had begun before passes quicker than one takes"
    assert quick.by_text_us(STEP_US, 33.0) == pytest.approx((-100.0, 0.0, 0.0))
    quick.count_plain(400, 400 * 50.0, STEP_US)
    assert quick.overhead_us(STEP_US, 33.0) == -MOST_HIDDEN * STEP_US


def test_what_rounds_by_the_text_take_beside_their_steps_is_believed_as_it_is_seen() -> None:
    rounds = LoneRounds()
    assert rounds.guessing_us(STEP_US, 100.0) == (0.0, 0.0), "only who goes that way finds out"
    found = []
    for _ in range(40):
        rounds.count_looked_up(300.0, STEP_US)
        found.append(rounds.guessing_us(STEP_US, 100.0)[0])
    assert found == sorted(found)
    assert found[0] < 50.0
    assert found[-1] == pytest.approx(200.0, rel=0.25)
    assert rounds.guessing_us(2 * STEP_US, 200.0) == pytest.approx((2 * found[-1], 2 * found[-1]))
    rounds.count_looked_up(1e9, STEP_US)
    assert rounds.guessing_us(STEP_US, 100.0)[0] < 2 * found[-1], "a machine that stalled for once"
    before, _ = rounds.guessing_us(STEP_US, 100.0)
    rounds.count_plain(1000, 1000 * STEP_US, STEP_US)
    assert rounds.guessing_us(STEP_US, 100.0)[0] < 0.7 * before, "it is tried again some day"
    quick = LoneRounds()
    quick.count_looked_up(-50.0, STEP_US)
    assert quick.guessing_us(STEP_US, 100.0) == (0.0, 0.0)


def test_what_a_round_by_the_text_makes_the_next_one_take_is_a_price_of_it() -> None:
    """Of one that decodes plainly the next plain round, and of one that drafts the next draft: each pays for its own."""
    rounds = LoneRounds()
    for _ in range(200):
        rounds.count_looked_up(300.0, STEP_US)
        rounds.plain_returns.count(250.0, STEP_US)
        rounds.returns.count(400.0, STEP_US)
    assert rounds.guessing_us(STEP_US, 100.0) == pytest.approx((450.0, 600.0), rel=0.1)
    drafting = LoneRounds()
    drafting.returns.count(400.0, STEP_US)
    assert drafting.guessing_us(STEP_US, 100.0) == pytest.approx((0.0, 400.0)), "of one that drafts whenever its text offers nothing"


# --- chains whose first guess is always sent ------------------------------------------------------------------------------------


def test_a_drafter_that_pauses_behind_its_first_guess_still_sends_that() -> None:
    emitted, sent = begun_chains(0.7, 0.5, 4)  # of drafts of one guess, one goes on behind a commit in half the times
    assert sent.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert emitted.tolist() == pytest.approx([1.0, 1.7, 1.7, 1.7, 1.7])
    _, sent = begun_chains(0.7, 2.0 / 3.0, 4)  # of two guesses on average
    assert sent.tolist() == pytest.approx([0.0, 1.0, 1.5, 1.75, 1.875])


def test_of_a_drafter_that_never_pauses_both_say_the_same() -> None:
    for acceptance in (0.0, 0.6, 0.97):
        for ours, theirs in zip(begun_chains(acceptance, 1.0, 9), chains(acceptance, 1.0, 9), strict=True):
            assert ours.tolist() == pytest.approx(theirs.tolist())
    falling = (0.0, -0.2, -0.4, -0.6)
    assert begun_chains(0.7, 1.0, 9, falling)[0].tolist() == pytest.approx(chains(0.7, 1.0, 9, falling)[0].tolist())


def test_what_is_kept_of_chains_cannot_be_changed() -> None:
    for kept in (*begun_chains(0.7, 0.9, 5), *chains(0.7, 0.9, 5)):
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 7.0


def test_courses_in_turns_are_weighed_by_whole_rounds_where_those_are_known() -> None:
    rates = replace(measured_rates(COST, 1, 40.0, 50.0, 30.0), turn_us=(450.0, 10.0))
    for course in serial_courses(rates, 0.9, 1.0):
        assert course.hit_us == pytest.approx(450.0 + 10.0 * course.hit_len)
    best = max(serial_courses(rates, 0.9, 1.0), key=lambda one: one.tokens_per_us)
    rounds = SerialRounds.of(rates, 0.9, 1.0)
    assert rounds.course(rounds.best_len(32)) == best
    assert rounds.best_len(3) == 3, "of those that are allowed"


# --- the draft that is verified whole -------------------------------------------------------------------------------------------

WHOLE = replace(READY, num_nodes=5, depth=5, tail_ended=True, takes_turns=True)


def view_of(*sessions: SessionView, now_us: int = NOW_US, max_rows: int = 64) -> StepView:
    return StepView(sessions, COST, max_rows, now_us)


def test_a_whole_draft_of_a_lone_session_is_verified_now() -> None:
    assert whole_draft(view_of(WHOLE), 24, in_turns=True) == PacingPlan((SessionPlan(0, 1, 5),), None, "verify")
    assert whole_draft(view_of(WHOLE), 3, in_turns=True) == PacingPlan((SessionPlan(0, 1, 3),), None, "verify")
    assert whole_draft(view_of(WHOLE, max_rows=4), 24, in_turns=True) == PacingPlan((SessionPlan(0, 1, 3),), None, "verify")


@pytest.mark.parametrize(
    "changes",
    [
        {"tail_ended": False},
        {"num_uncached": 7},
        {"num_nodes": 0, "depth": 0},
        {"num_nodes": 7},  # a tree
        {"side_depths": (0,)},
    ],
)
def test_where_there_is_more_to_weigh_it_is_not(changes: dict[str, Any]) -> None:
    assert whole_draft(view_of(replace(WHOLE, **changes)), 24, in_turns=True) is None
    assert whole_draft(view_of(WHOLE, replace(WHOLE, session=1)), 24, in_turns=True) is None
    assert whole_draft(view_of(WHOLE), 24, in_turns=False) is None


# --- the policy -----------------------------------------------------------------------------------------------------------------


PLAIN_ROUNDS = 8  # in one go


class Lone:
    """A policy with one session, or two, whose rounds take what the test says, by their guesses."""

    plain_rounds = PLAIN_ROUNDS
    cost_ahead: CostCurve | None = None

    def __init__(self, round_us: Callable[[int], float], *, num_sessions: int = 1, **estimates: Any) -> None:
        self.policy, self.round_us = AdaptivePacing(), round_us
        self.now_us, self.committed_len, self.num_tested = float(NOW_US), 100, 8
        self.estimates = {**RESIDENT, "continue_prob": 0.9, "remaining": 100_000, **estimates}
        self.num_sessions = num_sessions

    def views(self, num_nodes: int) -> StepView:
        """All of them alike, with so many guesses; 0: they have just committed."""
        own: dict[str, Any] = {"num_nodes": num_nodes, "depth": num_nodes, "tail_ended": num_nodes > 0, "committed_len": self.committed_len}
        since: dict[str, Any] = {"waiting_since_us": int(self.now_us), "num_tested": self.num_tested}
        view = view_of(
            *(replace(READY, session=at, **own, **since, **self.estimates) for at in range(self.num_sessions)), now_us=int(self.now_us)
        )
        return replace(view, cost_ahead=self.cost_ahead)

    def rounds(self, lengths: list[int], *, num_tokens: int = 2) -> RoundRates:
        """Each with a draft of so many guesses, where the policy wants any; what the newest look knew of rounds in turns."""
        for length in lengths:
            view = self.views(0)
            self.policy.draft_ahead(view.sessions[0])
            self.policy.plan(view)
            is_plain = self.pace is Pace.PLAIN
            if not is_plain:
                assert self.policy.plan(self.views(length)).take
            num_rounds = self.plain_rounds if is_plain else 1
            self.now_us += num_rounds * self.round_us(0 if is_plain else length)
            self.committed_len += num_rounds if is_plain else num_tokens
            self.num_tested += 0 if is_plain else length
        assert self.policy._seen_rates is not None
        return self.policy._seen_rates[Pace.SERIAL]

    @property
    def pace(self) -> Pace:
        """Of the first session's course."""
        return self.policy._sessions.known(0).course.pace


LENGTHS = [1 + at % 8 for at in range(400)]


def test_whole_rounds_are_what_a_lone_session_is_promised() -> None:
    """The parts say 466 us and more for the first guess and some 50 for each further one; rounds ahead hide most of it."""
    rates = Lone(lambda length: 420.0 + 12.0 * length, acceptance=0.8).rounds(LENGTHS)
    assert rates.turn_us is not None
    assert rates.turn_us[0] + 5 * rates.turn_us[1] == pytest.approx(500.0, rel=0.05)


def test_in_company_rounds_are_told_from_their_parts() -> None:
    assert Lone(lambda length: 420.0 + 12.0 * length, num_sessions=2, acceptance=0.8).rounds(LENGTHS).turn_us is None


@pytest.mark.parametrize(("round_us", "pace"), [(430.0, Pace.SERIAL), (1100.0, Pace.PLAIN)])
def test_a_session_drafts_where_whole_rounds_say_that_it_pays(round_us: float, pace: Pace) -> None:
    """One guess each, right in half of the times: worth it where a round takes hardly longer than a plain one, whatever its parts say."""
    one = Lone(lambda length: round_us if length else 410.0, acceptance=0.5, continue_prob=0.5)
    one.rounds([1] * 300, num_tokens=2)
    assert one.pace is pace


@pytest.mark.parametrize(("plain_us", "pace"), [(450.0, Pace.PLAIN), (640.0, Pace.SERIAL)])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_where_rounds_are_computed_ahead_only_trying_plain_ones_tells_what_they_take(is_ahead: bool, plain_us: float, pace: Pace) -> None:
    """What passes beside a plain step, 300 us as the session measures it, is then mostly hidden: drafts that bring two tokens in 1,000 us
    are worth no more than plain steps of 450. Where nothing is hidden, no plain round is tried for that."""
    one = Lone(lambda length: 1_000.0 if length else plain_us, acceptance=0.5, continue_prob=0.5, step_overhead_us=300.0)
    one.cost_ahead = COST if is_ahead else None
    one.rounds([1] * 300, num_tokens=2)
    assert one.pace is (pace if is_ahead else Pace.SERIAL)
    assert (one.policy._lone_rounds._num_plain > 0.0) is is_ahead


def test_what_passes_beside_a_plain_step_counts_for_plain_decoding() -> None:
    """A step takes 400 us and a plain round of several in one go 600."""
    one = Lone(lambda length: 700.0 if length else 600.0, acceptance=0.4, continue_prob=0.5, draft_us_per_token=900.0, draft_alone_us=900.0)
    one.rounds([1] * 600, num_tokens=1)
    assert one.policy._lone_rounds.overhead_us(STEP_US, -1.0) == pytest.approx(200.0, rel=0.05)
    assert one.policy._overhead_us == pytest.approx(200.0, rel=0.05)
    assert one.policy._seen_rates is not None
    assert one.policy._seen_rates[Pace.PLAIN].overhead_us == pytest.approx(200.0, rel=0.2)


def test_rounds_by_the_text_are_timed_and_weighed_with_what_they_really_take() -> None:
    """Two guesses, right in half of the times, of rows that cost little: worth it, unless such rounds take twice as long."""
    for beside_us, goes in ((40.0, True), (900.0, False)):
        one = Lone(lambda length: 440.0, acceptance=0.1, continue_prob=0.5, lookup_rights=(0.5, 0.5))
        for _ in range(60):
            view = one.views(0)
            one.policy.draft_ahead(view.sessions[0])
            num = sum(part.max_nodes for part in one.policy.plan(view).take if part.from_lookup)
            one.now_us += COST.verify_us(1 + num) + (beside_us if num else 40.0)
            one.committed_len += 1 + (num > 0)
        assert (num > 0) is goes
        assert (one.policy._lone_rounds.guessing_us(STEP_US, 40.0)[0] > 150.0) is not goes


def test_what_rounds_by_the_text_take_beside_their_steps_leaves_their_rows_out() -> None:
    one = Lone(lambda length: 440.0, acceptance=0.1, continue_prob=0.5, lookup_rights=(0.9,) * 12)
    num = 0
    for _ in range(60):
        view = one.views(0)
        one.policy.draft_ahead(view.sessions[0])
        num = sum(part.max_nodes for part in one.policy.plan(view).take if part.from_lookup)
        one.now_us += COST.verify_us(1 + num) + (140.0 if num else 40.0)
        one.committed_len += 8
    assert num > 6, "whose rows alone take as long as half a step of one"
    assert one.policy._lone_rounds.guessing_us(STEP_US, 40.0)[1] == pytest.approx(100.0, rel=0.25)


def test_in_company_no_round_is_timed_as_a_whole() -> None:
    lone = Lone(lambda length: 440.0, num_sessions=2, acceptance=0.1, continue_prob=0.5)
    lone.rounds([1] * 40)
    assert lone.pace is Pace.PLAIN
    by_text = Lone(lambda length: 440.0, num_sessions=2, acceptance=0.1, continue_prob=0.5, lookup_rights=(0.9,) * 12)
    for _ in range(20):
        view = by_text.views(0)
        assert any(part.from_lookup for part in by_text.policy.plan(view).take)
        by_text.now_us += 2000.0
        by_text.committed_len += 8
    for one in (lone, by_text):
        assert vars(one.policy._lone_rounds) == vars(LoneRounds())


def test_plain_rounds_one_by_one_say_nothing_of_many_in_one_go() -> None:
    one = Lone(lambda length: 700.0 if length else 600.0, acceptance=0.1, continue_prob=0.5)
    one.plain_rounds = STEADY - 1
    one.rounds([1] * 60)
    assert one.pace is Pace.PLAIN
    assert one.policy._lone_rounds.overhead_us(STEP_US, -1.0) == -1.0
    one.plain_rounds = STEADY
    one.rounds([1] * 60)
    assert one.policy._lone_rounds.overhead_us(STEP_US, -1.0) == pytest.approx(200.0)


def test_a_round_over_a_whole_draft_promises_what_such_rounds_took() -> None:
    one = Lone(lambda length: 420.0 + 12.0 * length, acceptance=0.8)
    rates = one.rounds(LENGTHS)
    assert rates.turn_us is not None
    one.policy.plan(one.views(6))
    own = one.policy._sessions.known(0)
    assert own.turn_len == 6
    assert own.expected_us == pytest.approx(rates.turn_us[0] + 6 * rates.turn_us[1], rel=0.02)


def test_what_a_step_held_beyond_its_promise_is_not_held_against_the_next() -> None:
    one = Lone(lambda length: 900.0 if length else 440.0, acceptance=0.1, continue_prob=0.5)
    one.rounds([1] * 60)
    assert one.pace is Pace.PLAIN
    one.policy._excess_us = 300.0
    one.policy.plan(one.views(0))
    assert one.policy._excess_us == 0.0


def test_courses_in_turns_are_the_best_and_the_present_one() -> None:
    rates = dict.fromkeys(Pace, measured_rates(COST, 1, 40.0, 50.0, 30.0))
    every = {course.hit_len: course for course in serial_courses(rates[Pace.SERIAL], 0.9, 1.0)[:16]}
    best = max(every.values(), key=lambda course: course.tokens_per_us)
    for present_len, expected in ((3, {best.hit_len, 3}), (best.hit_len, {best.hit_len}), (0, {best.hit_len}), (17, {best.hit_len})):
        found = courses_of(rates, (Pace.SERIAL,), 16, 0.9, 1.0, 0.0, present_len=present_len)[Pace.SERIAL]
        assert {course.hit_len for course in found} == expected
        assert all(course == every[course.hit_len] for course in found)
