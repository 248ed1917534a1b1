"""The engine thread and what feeds it, without grpc: admission, slow readers, per-session failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fakes import TableEngine
from fakes_scheduler import PROMPT, TABLE, WAIT_S, Loop, ended
from fakes_simulation import spec_of
from outrider.errors import Overloaded, ProtocolViolation, Unavailable
from outrider.rpc.convert.link import BadFrame
from outrider.session.alike_sessions import LEAST_TESTS
from outrider.session.events import FinishReason
from outrider.session.lookup_odds import FIRST_RIGHTS
from outrider.session.pacing.contract import PLAIN_REPEATS, PacingPlan, SessionView
from outrider.session.pacing.plain import PlainPacing
from outrider.session.statistics import ACCEPTANCE_RATE, FIRST_PRIORS, MEMORY, TESTS_TO_REMEMBER, DraftInterval
from outrider.session.verifier import REST_AFTER
from outrider.types.frames import Close, Open, Opened, Tail, TailEnd
from outrider.types.step import StepPlan, StepResult
from outrider.types.tree import IntArray, extend_hash
from verifier_service.answer import MAX_UNDELIVERED_TOKENS, AnswerStream, SessionEnded, SessionRequest, SessionStarted, TokensCommitted
from verifier_service.hosted import host
from verifier_service.inbox import CancelAsked, FramesArrived, OpenAsked, PairDown, PairUp
from verifier_service.policy_key import PolicyKey
from verifier_service.prompt_kinds import PromptKind
from verifier_service.scheduler import Scheduler
from verifier_service.session_priors import SessionPriors


async def test_a_slow_reader_is_left_out_until_it_catches_up() -> None:
    loop = Loop(TableEngine(TABLE, num_blocks=1024))
    slow, quick = loop.open(4 * MAX_UNDELIVERED_TOKENS), loop.open(40)
    ended(loop, quick)
    with loop.changed:
        assert loop.changed.wait_for(lambda: slow.is_slow, WAIT_S)
    third = loop.open(20)
    ended(loop, third)
    held = len(loop.tokens(slow))
    assert held == MAX_UNDELIVERED_TOKENS + 1
    num_delivered = 0
    # Waits on the condition: a loop that only yields takes the interpreter's lock from the engine thread, and starved it on a busy machine.
    while not loop.of(slow, SessionEnded):
        now = loop.more(slow, num_delivered)
        slow.delivered(now - num_delivered)
        num_delivered = now
    assert loop.tokens(slow) == TABLE.answer(PROMPT, 3 + 4 * MAX_UNDELIVERED_TOKENS, frozenset({0}))
    loop.stop()


async def test_time_with_a_slow_reader_is_not_counted_as_waiting_for_drafts() -> None:
    engine = TableEngine(TABLE)
    answer = AnswerStream(SessionRequest(spec_of(0, PROMPT, 9, TABLE), "plain", "coupled", None, None), lambda: None)
    hosted = host(answer, 1, PlainPacing(), engine, PromptKind(7, SessionPriors(), 3), 0)
    assert (hosted.session.view(0).kind, hosted.session.view(0).shorter_kind) == (7, 3)
    assert not hosted.is_left_out(10)
    answer.count_emitted(MAX_UNDELIVERED_TOKENS + 1)
    assert hosted.is_left_out(20)
    answer.delivered(1)
    assert not hosted.is_left_out(5_000_000)
    assert hosted.session.view(5_000_000).waiting_since_us == 5_000_000
    assert not hosted.is_left_out(5_000_010)
    assert hosted.session.view(5_000_010).waiting_since_us == 5_000_000


async def test_a_view_says_what_a_sessions_drafts_have_told() -> None:
    answer = AnswerStream(SessionRequest(spec_of(0, PROMPT, 9, TABLE), "plain", "coupled", None, None), lambda: None)
    session = host(answer, 1, PlainPacing(), TableEngine(TABLE), PromptKind(7, SessionPriors(), 3), 0).session
    assert (session.view(0).is_flawless, session.view(0).tells_start) == (True, False)
    session.statistics.count_overtaken([False])
    session.statistics.count_drafting(DraftInterval(0, 220, 220), 4, verifying=False, first_us=100)
    assert (session.view(0).is_flawless, session.view(0).tells_start) == (False, True)


class RacedStream(AnswerStream):
    """The engine thread emits, and looks whether the reader is slow, just after `delivered` has looked."""

    engine_saw: bool | None = None

    @property
    def is_slow(self) -> bool:
        seen = super().is_slow
        if self.engine_saw is None and self._num_emitted:
            self.engine_saw = False
            self.count_emitted(10)
            self.engine_saw = super().is_slow
        return seen


async def test_a_session_left_out_while_its_reader_catches_up_is_planned_again() -> None:
    rooms: list[bool] = []
    request = SessionRequest(spec_of(0, PROMPT, 9, TABLE), "plain", "coupled", None, None)
    answer = RacedStream(request, lambda: rooms.append(True))
    answer.count_emitted(MAX_UNDELIVERED_TOKENS - 1)
    answer.delivered(MAX_UNDELIVERED_TOKENS - 1)
    assert rooms or not answer.engine_saw, "the engine thread left the session out and nobody told it of the room"
    slow = AnswerStream(request, lambda: rooms.append(True))
    slow.count_emitted(MAX_UNDELIVERED_TOKENS + 1)
    slow.delivered(1)
    assert rooms == [True]


async def test_admission_is_bounded_and_frees() -> None:
    engine = TableEngine(TABLE)
    loop = Loop(engine, max_sessions=1)
    first = loop.open(4 * MAX_UNDELIVERED_TOKENS)
    loop.wait(first, SessionStarted)
    second = loop.open()
    assert isinstance(ended(loop, second).error, Overloaded)
    loop.scheduler.inbox.put(CancelAsked(first, "enough"))
    message = ended(loop, first)
    assert message.reason is FinishReason.CANCELLED
    assert message.error is None
    third = loop.open()
    assert ended(loop, third).reason is FinishReason.LENGTH
    loop.stop()
    assert engine.num_open == 0
    assert engine.num_free_blocks == engine.limits.num_blocks


async def test_the_end_of_the_thread_ends_every_session_with_a_status() -> None:
    engine = TableEngine(TABLE)
    loop = Loop(engine)
    answer = loop.open(4 * MAX_UNDELIVERED_TOKENS)
    loop.wait(answer, SessionStarted)
    loop.stop()
    assert isinstance(ended(loop, answer).error, Unavailable)
    assert engine.num_open == 0


class BrokenKeep(TableEngine):
    """Applying one session's result fails, as a bug of ours would."""

    def step(self, plan: StepPlan) -> StepResult:
        result = super().step(plan)
        if any(one.sequence == 1 for one in result.results):
            broken = tuple(one if one.sequence != 1 else type(one)(one.sequence, one.picks) for one in result.results)
            return StepResult(broken, result.forward_us, result.step_us, result.num_rows)
        return result


async def test_a_bug_in_one_session_costs_that_session_only() -> None:
    engine = BrokenKeep(TABLE)
    loop = Loop(engine)
    first, second = loop.open(), loop.open()
    assert ended(loop, first).reason is FinishReason.FAILED
    assert ended(loop, first).error is not None
    assert ended(loop, second).reason is FinishReason.LENGTH
    assert loop.tokens(second) == TABLE.answer(PROMPT, 33, frozenset({0}))
    loop.stop()
    assert engine.num_open == 0


class Poisoned(TableEngine):
    """Any step that holds the guilty sequence raises (its logits are no numbers), as does one of more than max_together sequences."""

    def __init__(self, guilty: int = -1, max_together: int = 99) -> None:
        super().__init__(TABLE)
        self.guilty = guilty
        self.max_together = max_together
        self.num_together: list[int] = []

    def step(self, plan: StepPlan) -> StepResult:
        sequences = {rows.sequence for rows in plan.sequences}
        self.num_together.append(len(sequences))
        if self.guilty in sequences:
            raise RuntimeError("not a number")
        if len(sequences) > self.max_together:
            raise RuntimeError("no memory for so many")
        return super().step(plan)


async def test_a_step_that_one_session_spoils_costs_that_session_only() -> None:
    engine = Poisoned(guilty=2)
    loop = Loop(engine)
    with loop.scheduler.inbox._lock:  # all of them in one turn
        first, guilty, third = loop.open(), loop.open(), loop.open()
    failed = ended(loop, guilty)
    assert (failed.reason, str(failed.error)) == (FinishReason.FAILED, "the target's step failed: not a number")
    for innocent in (first, third):
        assert ended(loop, innocent).reason is FinishReason.LENGTH
        assert loop.tokens(innocent) == TABLE.answer(PROMPT, 33, frozenset({0}))
    begin = engine.num_together.index(3)
    assert engine.num_together[begin : begin + 5] == [3, 1, 1, 1, 2], "each is stepped once more, alone, and then they go on together"
    loop.stop()
    assert engine.num_open == 0


async def test_a_step_that_is_too_much_at_once_ends_nobody() -> None:
    engine = Poisoned(max_together=1)
    loop = Loop(engine)
    with loop.scheduler.inbox._lock:
        both = [loop.open(), loop.open()]
    for answer in both:
        assert ended(loop, answer).reason is FinishReason.LENGTH
        assert loop.tokens(answer) == TABLE.answer(PROMPT, 33, frozenset({0}))
    assert max(engine.num_together) > 1
    loop.stop()


class NoKeep(TableEngine):
    """A result cannot be applied."""

    def keep(self, sequence: int, path: tuple[int, ...], *, subtree: bool = False) -> IntArray:
        if path:
            raise RuntimeError("the cache is broken")
        return super().keep(sequence, path, subtree=subtree)


async def test_a_bug_in_an_answers_last_round_leaves_nothing_at_its_drafters() -> None:
    engine = NoKeep(TABLE)
    loop = Loop(engine)
    inbox = loop.scheduler.inbox
    tokens, parents = np.array(TABLE.answer(PROMPT, 5, frozenset()), np.int32), np.array([-1, 0], np.int32)
    tail = Tail(1, 1, 0, 0, len(PROMPT), extend_hash(0, PROMPT), tokens, parents, TailEnd.CREDIT, "lab", 10, 0, 10_000)
    with inbox._lock:  # all of it in one turn
        inbox.put(PairUp("d", 1))
        answer = loop.open(max_tokens=3, pacing="serial")
        inbox.offer(FramesArrived("d", 1, (tail,)))
    assert ended(loop, answer).reason is FinishReason.FAILED
    assert [type(frame) for frame in loop.frames] == [Open, Close]
    loop.stop()
    assert engine.num_open == 0


async def test_a_client_hears_of_its_end_whatever_freeing_does(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(engine := TableEngine(TABLE))
    monkeypatch.setattr(engine, "close", lambda _: 1 / 0)
    assert ended(loop, loop.open()).reason is FinishReason.LENGTH
    loop.stop()


async def test_an_engine_that_cannot_load_says_why() -> None:
    def load() -> TableEngine:
        raise Unavailable("no such weights")

    scheduler = Scheduler(load, lambda outgoing: None, lambda: None, lambda: None, max_sessions=1, draft_len=None)
    scheduler.start()
    with pytest.raises(Unavailable, match="no such weights"):
        scheduler.engine_ready.result(WAIT_S)
    assert scheduler.join(WAIT_S)


@pytest.mark.parametrize(("num_guesses", "share"), [(TESTS_TO_REMEMBER + 4, 1.0), (TESTS_TO_REMEMBER // 2, 0.5)])
async def test_a_session_expects_the_acceptance_that_the_one_before_it_had(num_guesses: int, share: float) -> None:
    loop = Loop(TableEngine(TABLE))
    inbox = loop.scheduler.inbox
    answer_len = num_guesses + 1
    guesses = np.array(TABLE.answer(PROMPT, len(PROMPT) + num_guesses, frozenset()), np.int32)
    parents = np.arange(-1, num_guesses - 1, dtype=np.int32)
    tail = Tail(1, 1, 0, 0, len(PROMPT), extend_hash(0, PROMPT), guesses, parents, TailEnd.CREDIT, "lab", 10, 0, 10_000)
    with inbox._lock:  # all of it in one turn
        inbox.put(PairUp("d", 1))
        first = loop.open(max_tokens=answer_len, pacing="serial")
        inbox.offer(FramesArrived("d", 1, (tail,)))
    statistics = ended(loop, first).statistics
    assert (statistics.num_drafted, statistics.num_accepted) == (num_guesses, num_guesses)
    loop.stop()
    known = own = FIRST_PRIORS.acceptance
    for num_tested in range(1, num_guesses + 1):
        own += max(ACCEPTANCE_RATE, 1.0 / (LEAST_TESTS + num_tested)) * (1.0 - own)
    assert loop.scheduler.sessions.kinds.unlike.priors.drafts.acceptance == pytest.approx(known + share * MEMORY * (own - known))


async def test_a_text_that_repeats_itself_is_looked_up_and_the_next_session_expects_as_much() -> None:
    table = dataclasses.replace(TABLE, period=20)
    loop = Loop(TableEngine(table, num_blocks=1024))
    for pacing, lookup in (("lookup", False), ("plain", True), ("lookup", True)):
        loop.freed()
        assert loop.scheduler.sessions.kinds.unlike.priors.lookup == FIRST_RIGHTS
        answer = loop.open(200, pacing, table, lookup=lookup)
        statistics = ended(loop, answer).statistics
        assert loop.tokens(answer) == table.answer(PROMPT, len(PROMPT) + 200, frozenset({0}))
        assert (statistics.num_looked_up > 0) is (lookup and pacing == "lookup")
        assert statistics.session_us > statistics.reconcile_us == 0, "the service counts, and there is no drafter"
        assert statistics.plan_us > statistics.num_guessed == 0
    assert statistics.num_drafted == statistics.num_looked_up > statistics.num_looked_up_accepted > 100
    loop.stop()
    assert loop.scheduler.sessions.kinds.unlike.priors.lookup[-1] != FIRST_RIGHTS[-1], "long matches were judged often enough"
    assert loop.scheduler.sessions.kinds.unlike.priors.drafts == FIRST_PRIORS, "no drafter was judged"


async def test_drafters_join_and_leave_and_old_connections_are_not_heard() -> None:
    loop = Loop(TableEngine(TABLE, num_blocks=1024))
    inbox = loop.scheduler.inbox
    inbox.put(PairUp("d", 1))
    answer = loop.open(4 * MAX_UNDELIVERED_TOKENS, pacing="serial")
    loop.wait(answer, TokensCommitted)
    assert isinstance(loop.frames[0], Open)
    handle = loop.frames[0].session
    bad = BadFrame(handle, 1, ProtocolViolation("tail.parents: nonsense"))
    inbox.offer(FramesArrived("d", 7, (bad,)))
    inbox.offer(FramesArrived("d", 1, (Opened(handle + 50, 1, 0), BadFrame(None, 0, ProtocolViolation("what?")))))
    assert not [frame for frame in loop.frames if isinstance(frame, Close)]
    inbox.offer(FramesArrived("d", 1, (bad,)))
    with loop.changed:
        assert loop.changed.wait_for(lambda: [frame for frame in loop.frames if isinstance(frame, Close)], WAIT_S)
    inbox.put(PairDown("d", 1, "gone"))
    inbox.put(PairUp("d", 2))
    loop.scheduler.inbox.put(CancelAsked(answer, "done"))
    ended(loop, answer)
    loop.stop()
    assert loop.scheduler.snapshot.num_drafter_sessions == 0


async def test_plain_steps_pass_unasked_until_a_session_comes() -> None:
    """Two answers, the second begun in the midst of the first: policies are asked for about every fourth step, and nobody waits."""
    loop = Loop(TableEngine(TABLE, num_blocks=1024))
    planner = loop.scheduler.steps._planner
    asked: list[int] = []
    late: list[AnswerStream] = []
    ask = planner.plan

    def counted(views: Sequence[tuple[PolicyKey, SessionView]], *rest: Any, **named: Any) -> PacingPlan:
        asked.append(len(views))
        if sum(num > 0 for num in asked) > REST_AFTER and not late:  # opened by the engine thread: the first cannot end meanwhile
            late.append(loop.open(60))
        return ask(views, *rest, **named)

    planner.plan = counted  # type: ignore[method-assign]
    first = loop.open(MAX_UNDELIVERED_TOKENS)
    ended(loop, first)
    (second,) = late
    ended(loop, second)
    loop.stop()
    assert loop.tokens(first) == TABLE.answer(PROMPT, 3 + MAX_UNDELIVERED_TOKENS, frozenset({0}))
    assert loop.tokens(second) == TABLE.answer(PROMPT, 63, frozenset({0}))
    num_asked = sum(num > 0 for num in asked)
    assert loop.scheduler.steps.num_steps / (1 + PLAIN_REPEATS) <= num_asked < loop.scheduler.steps.num_steps / 2


@pytest.mark.parametrize("least_promise", [0.0, 100.0])
async def test_a_plan_is_repeated_over_guesses_from_the_text_that_promise_no_more_than_it_says(least_promise: float) -> None:
    table = dataclasses.replace(TABLE, period=20)
    loop = Loop(TableEngine(table, num_blocks=1024))
    planner = loop.scheduler.steps._planner
    asked: list[bool] = []
    ask = planner.plan

    def quiet(views: Sequence[tuple[PolicyKey, SessionView]], *rest: Any, **named: Any) -> PacingPlan:
        plan = ask(views, *rest, **named)
        asked.append(any(view.lookup_rights for _, view in views))
        take = tuple(dataclasses.replace(part, max_nodes=0, from_lookup=False) for part in plan.take)
        return PacingPlan(take, None, "verify", PLAIN_REPEATS, least_promise)

    planner.plan = quiet  # type: ignore[method-assign]
    ended(loop, loop.open(120, "lookup", table, lookup=True))
    loop.stop()
    num_steps = loop.scheduler.steps.num_steps
    assert any(asked), "the text offers guesses"
    assert len(asked) < num_steps / 3 if least_promise else len(asked) > num_steps / 2


async def test_waiting_commits_of_an_answer_merge() -> None:
    request = SessionRequest(spec_of(0, PROMPT, 9, TABLE), "plain", "coupled", None, None)
    answer = AnswerStream(request, lambda: None)
    answer.push(SessionStarted("f"))
    for committed in (TokensCommitted(3, (1,), (), None), TokensCommitted(4, (2, 3), (), None)):
        assert not answer.hold(committed)
        answer.push(committed)
    assert isinstance(await answer.next(), SessionStarted)
    assert await answer.next() == TokensCommitted(3, (1, 2, 3), (), None)


LONG_PROMPT = list(range(1, 39)) * 2  # of four blocks and twelve tokens
NUM_TOKENS = 12


def long_answer_of(max_tokens: int, tenant: str = "", prompt: list[int] = LONG_PROMPT) -> AnswerStream:
    spec = dataclasses.replace(spec_of(0, prompt, max_tokens, TABLE), tenant=tenant)
    return AnswerStream(SessionRequest(spec, "plain", "coupled", None, None), lambda: None)


async def test_samples_that_come_together_are_read_once() -> None:
    engine = TableEngine(TABLE, prefix_cache=True, num_blocks=1024, max_rows=32)
    loop = Loop(engine)
    measured = engine.num_fed
    answers = [long_answer_of(NUM_TOKENS) for _ in range(4)]
    for answer in answers:
        loop.scheduler.inbox.put(OpenAsked(answer))
    ends = [ended(loop, answer) for answer in answers]
    truth = TABLE.answer(LONG_PROMPT, len(LONG_PROMPT) + NUM_TOKENS, frozenset({0}))
    assert all(loop.tokens(answer) == truth for answer in answers)
    assert [end.statistics.num_cached_prompt for end in ends] == [0, 64, 64, 64]
    assert engine.num_fed - measured == len(LONG_PROMPT) + 3 * (len(LONG_PROMPT) - 64) + 4 * (len(truth) - 1)
    loop.stop()
    assert engine.num_free_blocks == engine.limits.num_blocks


async def test_a_prompt_that_was_answered_is_found_by_its_own_tenant_only() -> None:
    engine = TableEngine(TABLE, prefix_cache=True)
    loop = Loop(engine)
    found = []
    for tenant in ("", "a", "", "a", "b"):
        answer = long_answer_of(3, tenant)
        loop.scheduler.inbox.put(OpenAsked(answer))
        found.append(ended(loop, answer).statistics.num_cached_prompt)
    assert found == [0, 0, 64, 64, 0]
    loop.stop()


async def test_a_follow_up_counts_the_answer_before_it_as_prompt() -> None:
    engine = TableEngine(TABLE, prefix_cache=True)
    loop = Loop(engine)
    first = long_answer_of(20)
    loop.scheduler.inbox.put(OpenAsked(first))
    ended(loop, first)
    turn = LONG_PROMPT + loop.tokens(first) + [7, 8]
    second = long_answer_of(3, prompt=turn)
    loop.scheduler.inbox.put(OpenAsked(second))
    assert ended(loop, second).statistics.num_cached_prompt == (len(turn) - 4) // 16 * 16
    assert loop.tokens(second) == TABLE.answer(turn, len(turn) + 3, frozenset({0}))
    loop.stop()


class FailingOnce(TableEngine):
    """The first step of sequence `guilty` fails."""

    guilty = -1

    def step(self, plan: StepPlan) -> StepResult:
        if any(rows.sequence == self.guilty for rows in plan.sequences):
            raise RuntimeError("spoilt")
        return super().step(plan)


async def test_a_reader_that_fails_does_not_hold_up_who_waited_for_it() -> None:
    engine = FailingOnce(TABLE, prefix_cache=True)
    loop = Loop(engine)
    engine.guilty = 1  # the first handle
    answers = [long_answer_of(NUM_TOKENS) for _ in range(3)]
    for answer in answers:
        loop.scheduler.inbox.put(OpenAsked(answer))
    ends = [ended(loop, answer) for answer in answers]
    assert ends[0].reason is FinishReason.FAILED
    assert [end.statistics.num_cached_prompt for end in ends[1:]] == [0, 64]
    loop.stop()
