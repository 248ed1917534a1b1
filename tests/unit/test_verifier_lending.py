"""The engine thread lends an idle drafter's cores to the target: which steps of whole answers ran on them, and when they are given back."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from fakes import TableEngine
from fakes_scheduler import PROMPT, TABLE, WAIT_S, Loop, ended
from fakes_simulation import ScriptedDrafter
from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.serial import SerialPacing
from outrider.session.verifier import VerifierSession
from verifier_service.answer import MAX_UNDELIVERED_TOKENS
from verifier_service.clock import monotonic_us
from verifier_service.inbox import FramesArrived, PairUp
from verifier_service.loan_worth import MIN_STAY, PROBE_AFTER
from verifier_service.outgoing import Outgoing
from verifier_service.policy_key import PolicyKey

NEAR, FAR = "unix:/d", "10.0.0.7:7000"


class DraftedLoop(Loop):
    """With a drafter that answers at once. told: what the engine held of a loan whenever frames left for it."""

    def __init__(self, engine: TableEngine, drafter: str) -> None:
        self.told: list[int] = []
        self._engine = engine
        self._drafter = ScriptedDrafter(drafter, TABLE, 0.8, 10)
        super().__init__(engine)
        self.scheduler.inbox.put(PairUp(drafter, 1))

    def take(self, outgoing: Outgoing) -> None:
        for (drafter, connection), frames in outgoing.frames.items():
            self.told.append(self._engine.held)
            answers = [answer for frame in frames for answer in self._drafter.receive(frame)]
            self._drafter.start(monotonic_us())
            while self._drafter.busy_until is not None:
                answers += self._drafter.finish(monotonic_us())
                self._drafter.start(monotonic_us())
            if answers:
                assert self.scheduler.inbox.offer(FramesArrived(drafter, connection, tuple(answers)))
        super().take(outgoing)


class SeldomPacing(SerialPacing):
    """Serial, but one draft for every ten tokens, whenever it is asked."""

    _num_tens = 0

    def draft_ahead(self, session: SessionView) -> int:
        before, self._num_tens = self._num_tens, session.committed_len // 10
        return 4 if self._num_tens > before else 0


def lent_of(loop: Loop, engine: TableEngine, num_before: int) -> list[int]:
    """What each step since then was lent; the thread has ended, and has counted the same."""
    loop.stop()
    lent = engine.lent[num_before:]
    assert loop.scheduler.snapshot.num_lent_steps == sum(map(bool, lent))
    return lent


async def test_plain_answers_use_the_cores_of_drafters_that_rest() -> None:
    engine = TableEngine(TABLE, lent_threads=2)
    loop = Loop(engine)
    num_before = len(engine.lent)
    loop.scheduler.inbox.put(PairUp(NEAR, 1))
    answer = loop.open(20)
    ended(loop, answer)
    assert lent_of(loop, engine, num_before) == [2] * 20
    assert (engine.held, engine.num_ended) == (2, 1), "it stayed out; what ended is what was measured"
    assert loop.tokens(answer) == TABLE.answer(PROMPT, 23, frozenset({0}))


@pytest.mark.parametrize(("drafter", "beside"), [(NEAR, 0), (FAR, 2)])
async def test_nothing_is_lent_beside_a_drafter_of_this_machine_at_work(drafter: str, beside: int) -> None:
    engine = TableEngine(TABLE, lent_threads=2)
    loop = Loop(engine)
    num_before = len(engine.lent)
    with loop.scheduler.inbox._lock:  # all of it in one turn
        loop.scheduler.inbox.put(PairUp(drafter, 1))
        drafted = loop.open(8, pacing="pearl")
        plain = loop.open(12)
    for answer, max_tokens in ((drafted, 8), (plain, 12)):
        ended(loop, answer)
        assert loop.tokens(answer) == TABLE.answer(PROMPT, 3 + max_tokens, frozenset({0}))
    lent = lent_of(loop, engine, num_before)
    num_beside = lent.count(0) if beside == 0 else 7
    assert lent[0] == 2, "the prompt is read by both at once"
    assert lent[1 : 1 + num_beside] == [beside] * num_beside, "it never said that it rests"
    assert set(lent[1 + num_beside :]) <= {2}, "the answer that it drafts for has ended"
    assert num_beside >= 7


async def test_nothing_is_lent_beside_a_drafter_at_work_for_a_session_that_is_left_out() -> None:
    engine = TableEngine(TABLE, lent_threads=2, num_blocks=1024)
    loop = Loop(engine)
    num_before = len(engine.lent)
    loop.scheduler.inbox.put(PairUp(NEAR, 1))
    slow = loop.open(4 * MAX_UNDELIVERED_TOKENS, "pearl")
    with loop.changed:
        assert loop.changed.wait_for(lambda: slow.is_slow, WAIT_S)
    ended(loop, loop.open(20))
    assert lent_of(loop, engine, num_before)[-20:] == [0] * 20


async def test_cores_are_given_back_before_their_drafter_hears_of_a_commit() -> None:
    engine = TableEngine(TABLE, lent_threads=2)
    loop = DraftedLoop(engine, NEAR)
    num_before = len(engine.lent)
    answer = loop.open(30, pacing="serial")
    statistics = ended(loop, answer).statistics
    assert loop.tokens(answer) == TABLE.answer(PROMPT, 33, frozenset({0}))
    lent = lent_of(loop, engine, num_before)
    assert set(lent) == {2}, "it rests whenever the target has a step to make"
    assert statistics.num_accepted > 10
    assert set(loop.told) == {0}
    assert engine.num_ended == 1 + len(lent), "each step ends with a frame to it: a commit, at last the close"


async def test_a_loan_stays_out_while_its_drafter_is_told_nothing() -> None:
    engine = TableEngine(TABLE, lent_threads=2)
    loop = DraftedLoop(engine, NEAR)
    loop.scheduler._planner._policies[PolicyKey("plain")] = SeldomPacing(4)
    num_before = len(engine.lent)
    answer = loop.open(100)
    statistics = ended(loop, answer).statistics
    assert loop.tokens(answer) == TABLE.answer(PROMPT, 103, frozenset({0}))
    lent = lent_of(loop, engine, num_before)
    assert lent.count(0) <= len(lent) / PROBE_AFTER
    assert set(loop.told) == {0}
    assert statistics.num_accepted > 0
    assert 3 <= engine.num_ended - 1 <= len(loop.told) < len(lent) / 3


async def test_frames_to_a_drafter_elsewhere_end_no_loan() -> None:
    engine = TableEngine(TABLE, lent_threads=2)
    loop = DraftedLoop(engine, FAR)
    num_before = len(engine.lent)
    ended(loop, loop.open(30, pacing="serial"))
    assert set(lent_of(loop, engine, num_before)) == {2}
    assert len(loop.told) > 5
    assert set(loop.told[1:]) == {2}
    assert engine.num_ended == 1


@pytest.mark.parametrize(("lent_threads", "pacings"), [(0, ("serial", "pearl", "plain")), (2, ("plain", "plain"))])
async def test_nobody_asks_after_drafters_where_it_could_change_nothing(
    monkeypatch: pytest.MonkeyPatch, lent_threads: int, pacings: Collection[str]
) -> None:
    asked: list[VerifierSession] = []
    monkeypatch.setattr(VerifierSession, "is_drafted_for_by", lambda session, drafters: asked.append(session))
    engine = TableEngine(TABLE, lent_threads=lent_threads)
    loop = DraftedLoop(engine, NEAR)
    for answer in [loop.open(20, pacing=pacing) for pacing in pacings]:
        ended(loop, answer)
    assert not asked
    assert engine.num_ended == (lent_threads > 0)
    loop.stop()


async def test_a_loan_that_does_not_pay_is_left_alone() -> None:
    engine = TableEngine(TABLE, lent_threads=2, step_us=1_000, lent_step_us=1_900, num_blocks=1024)
    loop = Loop(engine)
    num_before = len(engine.lent)
    ended(loop, loop.open(200))
    lent = lent_of(loop, engine, num_before)
    assert lent[: MIN_STAY + 1] == [2] * (MIN_STAY + 1), "what was measured at start may have been disturbed"
    assert sum(map(bool, lent[MIN_STAY + 1 :])) <= 200 / PROBE_AFTER


async def test_an_engine_that_cannot_lend_is_not_asked_to() -> None:
    engine = TableEngine(TABLE)
    loop = Loop(engine)
    ended(loop, loop.open(20))
    assert set(lent_of(loop, engine, 0)) == {0}


@pytest.mark.parametrize(("lent_threads", "costs_us"), [(2, (500.0, 900.0)), (0, (900.0,))])
def test_what_a_step_costs_is_told_with_and_without_a_loan(lent_threads: int, costs_us: tuple[float, ...]) -> None:
    loop = Loop(TableEngine(TABLE, step_us=900, lent_threads=lent_threads, lent_step_us=500))
    loop.stop()
    snapshot = loop.scheduler.snapshot
    assert tuple(us for points in (snapshot.cost, snapshot.cost_unlent) for _, us in points[:1]) == costs_us
