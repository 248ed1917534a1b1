"""New sessions after texts that guesses were no good for: most are asked later, some at once, and one agreeable session ends it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fakes_pacing import NOW_US, READY
from outrider.session.pacing import first_asking
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import PLAIN_REPEATS, CostCurve, SessionView, StepView
from outrider.session.pacing.first_asking import (
    AT_ONCE_EVERY,
    FAR_TIMES,
    LATER,
    MAX_AT_ONCE_EVERY,
    NUM_AGAINST,
    NUM_ALIKE_AGAINST,
    NUM_MIXED_AGAINST,
    FirstAsking,
)
from outrider.session.pacing.look_times import LOOK_EVERY_US
from outrider.session.pacing.outlooks import FIRST_LEN
from outrider.session.pacing.round_model import Pace

COST = CostCurve(((1, 400.0), (4, 600.0), (32, 2400.0)))
NUM_PROMPT = 10


class Traffic:
    """Sessions one after another at one policy, each of a few rounds; their drafter is quick, so far away (of the target's own thread, if
    at hand), and right with the given chance."""

    def __init__(self, link_us: float = 60.0) -> None:
        self.policy = AdaptivePacing()
        self._link_us = link_us
        self.now_us = NOW_US
        self._num_sessions = 0

    def begins(self, kind: int = 0) -> SessionView:
        """The next session, its drafter just met."""
        self._num_sessions += 1
        self.now_us += LOOK_EVERY_US
        measured = {"draft_us_per_token": 150.0, "link_us": self._link_us, "hope": 0.7, "acceptance": 0.6}
        own = {"session": self._num_sessions, "committed_len": NUM_PROMPT, "takes_turns": self._link_us < 100.0, "kind": kind}
        return replace(READY, **own, **measured)  # type: ignore[arg-type]

    def leave(self, session: SessionView) -> int:
        return self.policy.draft_ahead(session)

    def answers(self, acceptance: float, num_rounds: int = 8, kind: int = 0) -> int:
        """One whole session, judged from its second round on if it is asked; the leave that it began with."""
        session = self.begins(kind)
        leave = self.leave(session)
        for at in range(num_rounds):
            self.now_us += 500
            tested = 2 * at if leave else 0
            share = acceptance if tested else session.acceptance
            grown = {"committed_len": NUM_PROMPT + at, "num_tested": tested, "acceptance": share, "waiting_since_us": self.now_us}
            session = replace(session, has_drafter=leave > 0, **grown)  # type: ignore[arg-type]
            self.policy.plan(StepView((session,), COST, 64, self.now_us))
        return leave


def test_a_few_disagreeable_sessions_are_chance_and_more_are_a_reason_to_wait() -> None:
    asking = FirstAsking()
    for _ in range(NUM_AGAINST):
        assert not asking.is_later()
        asking.judged(drafts=False)
    later = [asking.is_later() for _ in range(4 * AT_ONCE_EVERY)]
    assert later.count(False) == 4
    assert all(later[at] or at % AT_ONCE_EVERY == AT_ONCE_EVERY - 1 for at in range(len(later)))
    asking.judged(drafts=True)
    assert not asking.is_later()


def test_the_longer_sessions_of_one_kind_disagree_the_fewer_are_asked_at_once() -> None:
    asking = FirstAsking(alike=True)
    between: list[int] = []
    for _ in range(MAX_AT_ONCE_EVERY // AT_ONCE_EVERY + 1):
        num_later = 0
        while asking.is_later():
            num_later += 1
        between.append(num_later)
        asking.judged(drafts=False)
    assert between[:NUM_ALIKE_AGAINST] == [0] * NUM_ALIKE_AGAINST
    assert between == sorted(between)
    assert between[-1] == MAX_AT_ONCE_EVERY - 1 > between[NUM_ALIKE_AGAINST] == AT_ONCE_EVERY * NUM_ALIKE_AGAINST - 1
    assert NUM_ALIKE_AGAINST < NUM_AGAINST, "their kind is known"
    asking.judged(drafts=True)
    assert not asking.is_later()


def num_asked_in_vain(asking: FirstAsking) -> int:
    """Sessions in a row that are asked at once, and go without, before one is not."""
    num = 0
    while not asking.is_later():
        asking.judged(drafts=False)
        num += 1
    return num


def test_where_guesses_paid_lately_more_of_those_that_go_without_are_chance() -> None:
    """A system prompt begins the prompts of several kinds of text."""
    mixed = FirstAsking(alike=True)
    mixed.judged(drafts=True)
    longer = FirstAsking(mixed, alike=True)
    asked = num_asked_in_vain(mixed)
    assert NUM_ALIKE_AGAINST + NUM_MIXED_AGAINST // 2 < asked < NUM_ALIKE_AGAINST + NUM_MIXED_AGAINST
    assert num_asked_in_vain(longer) == asked, "a longer beginning begins where the shorter one was"
    for _ in range(200):
        mixed.judged(drafts=False)
    mixed.judged(drafts=True)
    assert num_asked_in_vain(mixed) == asked, "what was longer ago is forgotten"
    for _ in range(30):
        mixed.judged(drafts=True)
    assert num_asked_in_vain(mixed) == NUM_ALIKE_AGAINST + NUM_MIXED_AGAINST, "however many paid"


def share_asked(share_suited: float) -> float:
    """Of 400 sessions in an order by chance, of which guesses suit so many."""
    asking, rng, num = FirstAsking(alike=True), random.Random(7), 0
    for suits in [rng.random() < share_suited for _ in range(400)]:
        if not asking.is_later():
            asking.judged(drafts=suits)
            num += 1
    return num / 400


def test_of_a_mixture_most_are_asked_and_where_guesses_suit_nobody_hardly_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_asked(0.3) > 0.65
    assert share_asked(0.0) < 0.1
    monkeypatch.setattr(first_asking, "NUM_MIXED_AGAINST", 0)
    assert share_asked(0.3) < 0.5, "a few in a row would speak for all of them"


def test_after_disagreeable_texts_most_drafters_are_not_asked_at_once() -> None:
    traffic = Traffic()
    asked = [traffic.answers(0.05) for _ in range(2 * NUM_AGAINST)]
    assert asked[:NUM_AGAINST] == [FIRST_LEN] * NUM_AGAINST
    assert 0 < asked[NUM_AGAINST:].count(0) < NUM_AGAINST


def test_nor_are_drafters_far_away_however_well_they_did_where_they_were_of_use() -> None:
    """What drafts from afar bring is known of those who go with them; most of these never do, and each paid for asking."""
    traffic = Traffic(link_us=900.0)
    least = FAR_TIMES * NUM_ALIKE_AGAINST
    asked = [traffic.answers(0.05, kind=7) for _ in range(2 * least)]
    assert traffic.policy._is_far_away
    assert asked[0] > FIRST_LEN, "nothing is known: in turns"
    assert asked[1:least] == [FIRST_LEN] * (least - 1), "an answer may draft whose first guesses came too late"
    assert asked[least:].count(0) >= least // 2
    assert asked[least:].count(FIRST_LEN) >= 1, "another kind of text would be noticed"


def test_who_was_not_asked_decodes_plainly_and_is_asked_later() -> None:
    traffic = Traffic()
    while traffic.answers(0.05):
        assert traffic.now_us < NOW_US + 100 * LOOK_EVERY_US
    session = traffic.begins()
    while traffic.leave(session):
        session = traffic.begins()
    asked_at: int | None = None
    for num in range(1, 4 * LATER):
        traffic.now_us += 500
        session = replace(session, committed_len=NUM_PROMPT + num, waiting_since_us=traffic.now_us, has_drafter=False)
        plan = traffic.policy.plan(StepView((session,), COST, 64, traffic.now_us))
        assert (len(plan.take), plan.take[0].max_nodes) == (1, 0), "nobody waits for a drafter that was not asked"
        if traffic.leave(session) and asked_at is None:
            asked_at = num
    assert asked_at is not None
    assert asked_at >= LATER


def test_one_agreeable_session_and_everybody_is_asked_again() -> None:
    traffic = Traffic()
    while traffic.answers(0.05):
        assert traffic.now_us < NOW_US + 100 * LOOK_EVERY_US
    while not traffic.answers(0.95, num_rounds=20):
        assert traffic.now_us < NOW_US + 200 * LOOK_EVERY_US
    assert [traffic.answers(0.95) > 0 for _ in range(AT_ONCE_EVERY)] == [True] * AT_ONCE_EVERY


def test_a_session_is_asked_about_once_however_many_drafters_it_meets() -> None:
    traffic = Traffic()
    for _ in range(NUM_AGAINST):
        traffic.answers(0.05)
    session = traffic.begins()
    answers = {traffic.leave(session) for _ in range(2 * AT_ONCE_EVERY)}
    assert len(answers) == 1


def test_who_is_asked_and_how_it_begins_is_told_by_its_own_kind() -> None:
    """Texts that guesses are no good for hold back others of their kind and nobody else; and those of a kind that goes with guesses go
    with them from the first, whatever came in between."""
    traffic = Traffic()
    asked: dict[int, list[int]] = {1: [], 2: []}
    for _ in range(3 * NUM_AGAINST):
        asked[1].append(traffic.answers(0.05, kind=1))
        asked[2].append(traffic.answers(0.95, num_rounds=20, kind=2))
    assert asked[1][NUM_AGAINST:].count(0) >= NUM_AGAINST
    assert 0 not in asked[2]
    begun = {kind: traffic.begins(kind) for kind in (1, 2, 3)}
    paces = {kind: traffic.policy._sessions.of(session).course.pace for kind, session in begun.items()}
    assert paces == {1: Pace.PLAIN, 2: Pace.SERIAL, 3: Pace.SERIAL}, "one that was never seen begins as the newest did"


def test_a_request_without_drafts_is_not_planned_anew_for_each_token_whatever_others_do() -> None:
    """The course of its kind is not its own: while that was weighed, plain decoding between sessions that draft took an eighth more."""
    traffic = Traffic()
    traffic.answers(0.95, num_rounds=20)
    assert traffic.policy._sessions.of(traffic.begins()).course.pace is Pace.SERIAL
    off = replace(traffic.begins(), max_draft_len=0, has_drafter=False)
    plan = traffic.policy.plan(StepView((off,), COST, 64, traffic.now_us))
    assert (plan.repeats, [part.max_nodes for part in plan.take]) == (PLAIN_REPEATS, [0])
    guessed = replace(traffic.begins(), num_nodes=2, depth=2)
    assert traffic.policy.plan(StepView((off, guessed), COST, 64, traffic.now_us)).repeats == 0


def test_a_session_that_decodes_plainly_is_let_rest_until_it_may_be_asked_and_no_longer() -> None:
    """Until then nobody need ask; from then on who asks gets leave."""
    traffic = Traffic()
    while traffic.answers(0.05):
        assert traffic.now_us < NOW_US + 100 * LOOK_EVERY_US
    session = traffic.begins()
    while traffic.leave(session):
        session = traffic.begins()
    rested: list[bool] = []
    while True:
        rested.append(traffic.policy.lets_rest(session.session, session.committed_len))
        if traffic.leave(session):
            break
        traffic.policy.plan(StepView((session,), COST, 64, traffic.now_us))
        traffic.now_us += 500
        session = replace(session, committed_len=session.committed_len + 1, waiting_since_us=traffic.now_us, has_drafter=False)
        assert session.committed_len < NUM_PROMPT + 4 * LATER
    assert rested == [True] * (len(rested) - 1) + [False]
    assert session.committed_len >= NUM_PROMPT + LATER
    assert not traffic.policy.lets_rest(session.session, session.committed_len), "a probe is on"
    assert not traffic.policy.lets_rest(123_456, 99), "of one that was never seen nothing is clear"
