"""Whether a drafter far away is asked at all: the account of what asking brought, and that it neither ends by one bad answer nor is dear.

The account by itself, in `adaptive`, and on virtual time with a machine whose speed drifts.

    pytest tests/unit/test_pacing_asking.py
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from fakes_pacing import READY
from mostly_slow import mostly_slow
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.asking_record import CREDIT, AskingRecord
from outrider.session.pacing.contract import CostCurve, SessionView, StepView
from outrider.session.pacing.probing import PROBE_AFTER
from outrider.session.pacing.registry import make_pacing
from outrider.session.pacing.remembered import SEEN_PLAIN
from outrider.session.pacing.round_model import Course, Pace
from outrider_bench.simulation.event_loop import DrafterKind, Simulation
from outrider_bench.simulation.world import Phase, World

STEP_US = 500.0
VERIFY = CostCurve(((1, STEP_US), (64, 11 * STEP_US)))
ROUND_US = 600
NUM_ROUNDS = 60


def spent(record: AskingRecord, speeds: tuple[float, float], num_sessions: int, num_tokens: int = 40) -> list[bool]:
    """Sessions one after another, each as the record has it. speeds: tokens a step of who is not asked and of who is."""
    asked = []
    for _ in range(num_sessions):
        asked.append(record.asks())
        record.count(num_tokens, num_tokens / speeds[asked[-1]], asked=asked[-1])
    return asked


@pytest.mark.parametrize("speeds", [(1.0, 0.85), (0.85, 0.75), (0.9, 0.3)])
def test_asking_that_does_not_pay_is_tried_seldom_and_never_given_up(speeds: tuple[float, float]) -> None:
    record = AskingRecord()
    asked = spent(record, speeds, 400)
    assert 1 < asked.count(True) < 0.08 * len(asked)
    asked = spent(record, (1.0, 1.2), 400)
    assert asked[100:].count(False) / 300 < 0.05, "another distance, or other texts"


def test_who_has_more_than_a_token_a_step_has_nothing_to_find_out_by_going_without() -> None:
    record = AskingRecord()
    assert all(spent(record, (0.9, 1.02), 400))
    asked = spent(record, (1.0, 0.85), 400)
    assert asked[100:].count(True) / 300 < 0.12, "another distance, or other texts"


def test_asking_that_pays_though_it_brings_less_than_a_token_a_step_is_seldom_gone_without() -> None:
    """A target whose step is short beside what a round takes: how quick plain decoding is must be seen now and then."""
    asked = spent(AskingRecord(), (0.8, 0.9), 400)
    assert 0 < asked.count(False) / len(asked) < 0.05


def test_an_answer_with_bad_luck_condemns_nothing() -> None:
    record = AskingRecord()
    record.count(96, 96 + CREDIT - 1.0, asked=True)
    assert record.asks()
    record.count(96, 96 + CREDIT, asked=True)
    assert not record.asks()


def test_steps_beside_a_drafter_are_as_long_as_they_are() -> None:
    """A step that takes longer beside a drafter at work has taken that from plain decoding too."""
    record = AskingRecord()
    record.count(300, 280.0, asked=True)
    assert record.asks()
    assert not record.asks(slowdown=1.2)


def test_another_kind_begins_with_what_is_known_and_learns_by_itself() -> None:
    record = AskingRecord()
    spent(record, (1.0, 0.8), 50)
    other = AskingRecord(record)
    assert not other.asks()
    spent(other, (1.0, 1.5), 200)
    assert not record.asks()
    assert spent(other, (1.0, 1.5), 20).count(True) > 15


# --- in `adaptive` ------------------------------------------------------------------------------------------------------------


AHEAD = Course(Pace.AHEAD, 0, 8, 8, 0.01, 500.0, 500.0)
PLAIN = Course(Pace.PLAIN, 0, 0, 0, 0.002, 500.0, 500.0)


class Traffic:
    """Sessions one after another at one policy, a token for each commit, their drafter twenty steps away."""

    def __init__(self) -> None:
        self.policy = AdaptivePacing()
        self.policy._rates.observe({Pace.SERIAL: [replace(READY, draft_us_per_token=80.0, link_us=20 * STEP_US, num_tested=50)]})
        self.now_us = READY.waiting_since_us
        self._num_sessions = 0

    def begins(self) -> SessionView:
        self._num_sessions += 1
        return replace(READY, session=self._num_sessions, has_drafter=False, hope=0.99, remaining=2000)

    def answers(
        self, round_us: int, *, asked: bool, alone_us: float = STEP_US, drafting_us: float | None = None, course: Course = AHEAD
    ) -> None:
        """One whole session. alone_us, drafting_us: of a step as the verifier has it measured; course: of one that is asked."""
        session, now_us = self.begins(), self.now_us
        curves = (curve(alone_us), None if drafting_us is None else curve(drafting_us))
        for num in range(NUM_ROUNDS):
            now_us += round_us
            session = replace(session, committed_len=READY.committed_len + num, waiting_since_us=now_us)
            own = self.policy._sessions.of(session)
            own.is_asked, own.course = asked, course if asked else own.course
            self.policy.plan(StepView((session,), curves[0], 64, now_us, curves[1]))
        self.now_us = now_us

    def leaves(self, num_tokens: int) -> list[int]:
        """At each commit of a new session."""
        session, found = self.begins(), []
        for num in range(num_tokens):
            session = replace(session, committed_len=READY.committed_len + num, waiting_since_us=self.now_us)
            found.append(self.policy.draft_ahead(session))
            self.now_us += ROUND_US
            self.policy.plan(StepView((session,), VERIFY, 64, self.now_us))
        return found


def curve(step_us: float) -> CostCurve:
    return CostCurve(((1, step_us), (64, 11 * step_us)))


@pytest.mark.parametrize("asked_us", [400, 900])
def test_what_sessions_had_of_their_time_is_told_in_steps_of_the_target(asked_us: int) -> None:
    """Planned one by one: only the time tells, on a machine that is twice as slow while they ask."""
    traffic = Traffic()
    for number in range(6):
        slow = 1 + number % 2
        traffic.answers(slow * (asked_us if number % 2 else ROUND_US), asked=number % 2 == 1, alone_us=slow * STEP_US)
    record = traffic.policy._sessions.kind(READY).far
    assert record.asks() is (asked_us < ROUND_US)


def test_a_machine_that_became_slower_while_everybody_asked_is_no_fault_of_asking() -> None:
    """Steps without a drafter at work were measured long ago: that they are slower too, a few tokens show."""
    traffic = Traffic()
    for _ in range(4):
        traffic.answers(2 * 490, asked=True, drafting_us=2 * STEP_US)
    record = traffic.policy._sessions.kind(READY).far
    assert not record.asks(2.0)
    assert record.asks(1.0)


def test_who_is_not_asked_at_once_is_asked_when_a_few_plain_tokens_have_shown_what_it_would_bring() -> None:
    traffic = Traffic()
    for _ in range(4):
        traffic.answers(2 * 490, asked=True, drafting_us=2 * STEP_US)
    traffic.policy._budget.count_plain(PROBE_AFTER)  # sessions have gone without for long: once it may be asked, a probe is due
    leaves = traffic.leaves(2 * SEEN_PLAIN)  # at the pace that the machine has now, beside a drafter and without
    assert leaves[:SEEN_PLAIN] == [0] * SEEN_PLAIN
    assert leaves[SEEN_PLAIN] > 0


def test_leave_for_a_course_is_asking_too() -> None:
    """Of a session that was put off and goes with guesses by a look at the model, its drafter not asked as it began."""
    traffic = Traffic()
    session = replace(traffic.begins(), committed_len=READY.committed_len + SEEN_PLAIN, num_tested=4)
    own = traffic.policy._sessions.of(session)
    own.course, own.is_met = AHEAD, True
    assert traffic.policy.draft_ahead(session) > 0
    assert own.is_asked


def test_nothing_is_charged_to_asking_before_the_model_was_first_asked() -> None:
    """Until then everybody goes in turns, which are waited for."""
    traffic = Traffic()
    traffic.policy._rates = type(traffic.policy._rates)()
    traffic.answers(40 * ROUND_US, asked=True)
    traffic.policy._rates.observe({Pace.SERIAL: [replace(READY, draft_us_per_token=80.0, link_us=20 * STEP_US, num_tested=50)]})
    session = replace(traffic.begins(), committed_len=READY.committed_len + 1, num_tested=4)
    for num in range(4):
        session = replace(session, committed_len=session.committed_len + num, waiting_since_us=traffic.now_us + 40 * num * ROUND_US)
        traffic.policy._sessions.of(session).is_asked = True
        traffic.policy._ended.count(StepView((session,), VERIFY, 64, session.waiting_since_us), traffic.policy._present_times())
    assert traffic.policy._seen_rates is None
    assert traffic.policy._sessions.kind(READY).far.asks()


def test_what_a_session_decodes_plainly_after_it_was_asked_is_no_fault_of_asking() -> None:
    """Its rounds say what plain decoding has of its time, as do those of sessions that were not asked."""
    gone, kept = Traffic(), Traffic()
    for _ in range(4):
        gone.answers(900, asked=True, course=PLAIN)
        kept.answers(900, asked=True)
    assert gone.policy._sessions.kind(READY).far.asks()
    assert not kept.policy._sessions.kind(READY).far.asks()


def test_what_a_round_takes_beside_its_step_it_takes_without_guesses_too() -> None:
    """A token a round is as quick as plain decoding, however long rounds are."""
    for overhead_us, asks in ((400.0, True), (0.0, False)):
        traffic = Traffic()
        traffic.policy._rates.overhead_us = overhead_us
        for _ in range(4):
            traffic.answers(900, asked=True)
        assert traffic.policy._sessions.kind(READY).far.asks() is asks


def test_who_is_not_to_be_asked_then_either_decodes_plainly() -> None:
    traffic = Traffic()
    for _ in range(4):
        traffic.answers(900, asked=True)
    assert not any(traffic.leaves(8 * SEEN_PLAIN))


# --- on virtual time ----------------------------------------------------------------------------------------------------------


class Drifting(Simulation):
    """A target whose steps take a fifth more and less, there and back in three seconds."""

    def _plan(self) -> None:
        share = 1.0 + 0.2 * math.sin(2.0 * math.pi * self._now_us / 3e6)
        self._verifier._world = replace(self._world, verify=CostCurve(tuple((rows, share * us) for rows, us in WORLD.verify.points)))
        super()._plan()


WORLD = World(
    CostCurve(((1, 2000.0), (64, 6000.0))),
    CostCurve(((1, 200.0),)),
    phases=((Phase(0.7),),),
    delay_us=5_000,
    message_us=100,
    step_overhead_us=150,
    guess_us=100,
    hedge_acceptance=0.35,
    output_len=96,
)
NUM_ANSWERS = 24


class Trying(AskingRecord):
    """Goes without to find out, whatever asking brings, and by whichever way had more of its time then."""

    def asks(self, slowdown: float = 1.0) -> bool:
        without, asked = self._tokens
        if min(self._tokens) < 64.0:
            return asked <= without
        return asked * self._rounds[False] > without * self._rounds[True]


LOOPS = {"drifting": Drifting, "steady": Simulation}


def of_plain(loop: str, seed: int) -> float:
    """Tokens a second of `adaptive` over those of plain decoding."""
    return tokens_per_s(loop, seed, "adaptive") / tokens_per_s(loop, seed, "plain")


@cache
def tokens_per_s(loop: str, seed: int, policy: str) -> float:
    return (
        LOOPS[loop](replace(WORLD, seed=seed), make_pacing(policy), WORLD.output_len * NUM_ANSWERS, DrafterKind.SESSION).run().tokens_per_s
    )


@pytest.mark.parametrize("loop", mostly_slow(LOOPS, 1))
@pytest.mark.parametrize("seed", mostly_slow([1, 2, 3], 1))
def test_a_drafter_five_steps_away_that_pays_is_asked(loop: str, seed: int) -> None:
    assert of_plain(loop, seed) > 1.02  # every round beside it is charged for its tails: 1.06 and more without


def test_who_goes_without_to_find_out_may_do_so_for_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, own = (tokens_per_s("drifting", 1, policy) for policy in ("plain", "adaptive"))
    monkeypatch.setattr(AskingRecord, "asks", Trying.asks)
    assert tokens_per_s.__wrapped__("drifting", 1, "adaptive") < own - 0.002 * plain
