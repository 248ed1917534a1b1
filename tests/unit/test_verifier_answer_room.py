"""Answers that grow beyond their first KV blocks: more as they are wanted, the newest gives way, and no token is another for it.

Run: pytest tests/unit/test_verifier_answer_room.py
"""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest

from fakes import TableEngine
from fakes_scheduler import TABLE, Loop, ended
from fakes_simulation import spec_of
from outrider.errors import Overloaded
from outrider.session.events import FinishReason, Keep, RoundPlanned, RoundVerified, Verify
from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.plain import PlainPacing
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.types import text_room
from outrider.types.step import StepPlan
from outrider.types.text_room import first_len, next_len, wants_room
from verifier_service.answer import MAX_UNDELIVERED_TOKENS, AnswerStream, SessionEnded, SessionRequest
from verifier_service.answer_room import AnswerRoom
from verifier_service.hosted import HostedSession, host
from verifier_service.inbox import CancelAsked, OpenAsked
from verifier_service.live_sessions import LiveSessions
from verifier_service.prompt_kinds import PromptKind
from verifier_service.session_priors import SessionPriors
from verifier_service.step_planner import StepPlanner

BLOCK_LEN = 4
NO_END = frozenset[int]()
UNREAD = MAX_UNDELIVERED_TOKENS + 1  # tokens that make a reader a slow one


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is hundreds of tokens in a service is some."""
    for name, num in (("FIRST_ROOM", 16), ("ROOM_STEP", 16), ("LEAST_ROOM", 8)):
        monkeypatch.setattr(text_room, name, num)


def stream(prompt: list[int], max_tokens: int, pacing: str = "plain", **changes: object) -> AnswerStream:
    spec = spec_of(0, prompt, max_tokens, TABLE, stop_token_ids=NO_END, max_nodes=8, lookup=True, request_id=str(prompt), **changes)
    return AnswerStream(SessionRequest(spec, pacing, "coupled", None, None), lambda: None)


def num_parked(metrics: LocalMetrics) -> float:
    return sum(series.value for series in metrics.snapshot() if series.metric is names.NUM_PARKED_SESSIONS)


class Hall:
    """Sessions of an engine, stepped by hand."""

    def __init__(self, num_blocks: int) -> None:
        self.metrics = LocalMetrics()
        self.engine = TableEngine(TABLE, num_blocks=num_blocks, block_len=BLOCK_LEN)
        self.room = AnswerRoom(self.engine, self.metrics)
        self.sessions: dict[int, HostedSession] = {}

    def admit(self, max_tokens: int) -> HostedSession:
        handle = len(self.sessions) + 1
        answer = stream([handle, handle + 1, handle + 2], max_tokens)
        hosted = host(answer, handle, PlainPacing(), self.engine, PromptKind(0, SessionPriors(), 0), handle)
        self.sessions[handle] = hosted
        return hosted

    def rounds(self, num: int = 1) -> None:
        """Of everybody that has room, one after the other."""
        for _ in range(num):
            self.room.make(self.sessions, 0)
            for hosted in tuple(self.sessions.values()):
                if not hosted.is_left_out(0) and hosted.session.finished is None:
                    self._round(hosted)

    def _round(self, hosted: HostedSession) -> None:
        (verify,) = hosted.session.step(RoundPlanned(512, 0, 0))
        assert isinstance(verify, Verify)
        (result,) = self.engine.step(StepPlan((hosted.rows(verify),))).results
        effects = hosted.session.step(RoundVerified(result.verdict, 1, 1))
        assert not any(isinstance(effect, Keep) for effect in effects)
        if hosted.is_cramped:
            self.room.want(hosted)
        if hosted.session.finished is not None:
            self.end(hosted)

    def end(self, hosted: HostedSession) -> None:
        del self.sessions[hosted.handle]
        self.room.forget(hosted.handle)
        if not hosted.is_parked:
            self.engine.close(hosted.handle)

    def text(self, hosted: HostedSession) -> list[int]:
        return hosted.session.prefix.tokens_from(0)


def test_first_room_and_steps_are_bounded_by_the_length_that_may_be() -> None:
    assert (first_len(5, 100), first_len(5, 9), next_len(30, 100), next_len(30, 35)) == (21, 9, 46, 35)
    assert [wants_room(committed, 21, 100) for committed in (13, 14, 21)] == [False, True, True]
    assert not wants_room(21, 21, 21)


def test_a_short_answer_has_all_its_room_at_once_and_a_long_one_a_part() -> None:
    hall = Hall(100)
    hall.admit(10)
    assert hall.engine.num_free_blocks == 100 - 4  # 3 + 10 tokens, 4 to a block
    assert not hall.room.is_short_of(hall.sessions.values())
    hall.admit(300)
    assert hall.engine.num_free_blocks == 96 - 5  # 3 + 16
    hall.rounds(9)
    assert hall.engine.num_free_blocks == 91, "nobody wants more yet"
    hall.rounds(3)
    assert hall.engine.num_free_blocks < 96, "the first has ended, the second has more"
    assert num_parked(hall.metrics) == 0


def test_the_newest_gives_way_and_goes_on_when_there_is_room() -> None:
    hall = Hall(24)
    old, middle, new = hall.admit(60), hall.admit(60), hall.admit(60)
    while not new.is_parked:
        hall.rounds()
    assert not old.is_parked
    assert not middle.is_parked
    assert hall.room.num_waiting(hall.sessions) == num_parked(hall.metrics) == 1
    known = hall.text(new)
    while old.session.finished is None:
        hall.rounds()
        assert not old.is_parked, "the oldest never gives way"
    hall.rounds()
    while hall.sessions:
        hall.rounds()
    assert hall.text(new)[: len(known)] == known
    for hosted in (old, middle, new):
        prompt = [hosted.handle, hosted.handle + 1, hosted.handle + 2]
        assert hall.text(hosted)[3:] == TABLE.answer(prompt, 63, NO_END)
    assert (hall.engine.num_open, hall.engine.num_free_blocks, hall.room.is_wanted) == (0, 24, False)


def test_one_that_is_parked_may_end() -> None:
    hall = Hall(24)
    hall.admit(60), hall.admit(60)
    new = hall.admit(60)
    while not new.is_parked:
        hall.rounds()
    assert new.is_left_out(0)
    hall.end(new)
    assert hall.room.num_waiting(hall.sessions) == 0
    hall.rounds()
    assert hall.engine.num_open == len(hall.sessions) == 2


def test_who_comes_back_does_not_push_out_whom_it_gave_way_to() -> None:
    """It waits until those that are there could grow once more beside it."""
    hall = Hall(24)
    hall.admit(60), hall.admit(60)
    new = hall.admit(60)
    num_returned = 0
    while hall.sessions:
        was_parked = new.is_parked
        others = [hosted for hosted in hall.sessions.values() if hosted is not new]
        num_growing = sum(hosted.is_growing for hosted in others)
        hall.room.make(hall.sessions, 0)
        if was_parked and not new.is_parked:
            num_returned += 1
            assert hall.engine.num_free_blocks >= num_growing * 4
        hall.rounds()
    assert num_returned > 0


def test_who_reads_nothing_gives_way_to_whoever_can_go_on_although_it_is_the_oldest() -> None:
    hall = Hall(20)
    unread, other = hall.admit(60), hall.admit(60)
    unread.answer.count_emitted(UNREAD)
    while hall.sessions.get(other.handle) is other:
        hall.rounds()
        assert not other.is_parked
    assert unread.is_parked
    assert num_parked(hall.metrics) == 1, "nobody is read anew before it is found that another may wait as well"
    hall.rounds()
    assert unread.is_parked, "it could do nothing with room"
    assert hall.room.num_waiting(hall.sessions) == 0
    unread.answer.delivered(UNREAD)
    assert hall.room.num_waiting(hall.sessions) == 1
    while hall.sessions:
        hall.rounds()
        assert not unread.is_parked
    for hosted in (unread, other):
        prompt = [hosted.handle, hosted.handle + 1, hosted.handle + 2]
        assert hall.text(hosted)[3:] == TABLE.answer(prompt, 63, NO_END)
    assert (hall.engine.num_open, hall.engine.num_free_blocks) == (0, 20)


def test_one_that_waits_has_the_room_of_one_whose_client_stops_reading() -> None:
    hall = Hall(24)
    old, middle, new = hall.admit(60), hall.admit(60), hall.admit(60)
    while not new.is_parked:
        hall.rounds()
    old.answer.count_emitted(UNREAD)
    hall.rounds()
    assert [hosted.is_parked for hosted in (old, middle, new)] == [True, False, False]


def test_when_the_first_that_waits_has_left_the_next_one_is_asked() -> None:
    sessions, engine = live(28)
    old, long, short = stream([1, 2, 3], 93), stream([5] * 24, 20), stream([7, 2, 3], 5)
    for answer in (old, long, short):
        sessions.open(answer, stopping=False)
    for answer in (long, short):
        sessions._room._park(sessions[answer.handle])
    engine.reserve(old.handle, 96)
    sessions[old.handle].held_len = 96
    sessions.make_room()
    assert [sessions[answer.handle].is_parked for answer in (long, short)] == [True, True], "in order"
    assert engine.num_free_blocks == 4, "of which the second wants two"
    sessions.cancel(CancelAsked(long, "enough"))
    sessions.make_room()
    assert not sessions[short.handle].is_parked


def live(num_blocks: int) -> tuple[LiveSessions, TableEngine]:
    engine = TableEngine(TABLE, num_blocks=num_blocks, block_len=BLOCK_LEN)
    return LiveSessions(engine, StepPlanner(4), 8, lambda num_sessions: CostCurve(((1, 1000.0),))), engine


def test_nobody_comes_who_would_have_to_give_way_at_once() -> None:
    sessions, engine = live(16)
    for first in (1, 5):  # each holds 5 blocks, and grows by 4
        sessions.open(stream([first, 2, 3], 45), stopping=False)
    assert (len(sessions), engine.num_free_blocks) == (2, 6)
    refused = stream([7, 2, 3], 45)
    sessions.open(refused, stopping=False)
    (message,) = [message for answer, message in sessions.take_outgoing().answers if answer is refused]
    assert isinstance(message, SessionEnded)
    assert isinstance(message.error, Overloaded)
    assert "will grow into them" in str(message.error)
    assert (len(sessions), engine.num_free_blocks) == (2, 6)


def test_one_that_is_parked_comes_back_when_the_others_could_still_grow() -> None:
    sessions, engine = live(16)
    old, parked = stream([1, 2, 3], 45), stream([5, 2, 3], 45)
    for answer in (old, parked):
        sessions.open(answer, stopping=False)
    engine.reserve(old.handle, 36)
    sessions[old.handle].held_len = 36
    sessions._room._park(sessions[parked.handle])
    sessions.make_room()
    assert engine.num_free_blocks == 7, "room for its five, and then not for the four that the other wants next"
    assert sessions[parked.handle].is_parked
    sessions.cancel(CancelAsked(old, "enough"))
    sessions.make_room()
    assert not sessions[parked.handle].is_parked
    assert engine.num_free_blocks == 16 - 5


def test_while_one_is_parked_nobody_comes_and_its_end_frees_nothing_twice(caplog: pytest.LogCaptureFixture) -> None:
    sessions, engine = live(16)
    parked = stream([5, 2, 3], 45)
    for answer in (stream([1, 2, 3], 45), parked):
        sessions.open(answer, stopping=False)
    sessions._room._park(sessions[parked.handle])
    refused = stream([7, 2, 3], 5)
    sessions.open(refused, stopping=False)
    (message,) = [message for answer, message in sessions.take_outgoing().answers if answer is refused]
    assert isinstance(message, SessionEnded)
    assert "wait for KV blocks" in str(message.error)
    begun = stream([8, 2, 3], 45, incarnation=2, num_prompt=2)
    sessions.open(begun, stopping=False)
    sessions.cancel(CancelAsked(parked, "enough"))
    sessions.free_ended()
    sessions.open(refused, stopping=False)
    assert len(sessions) == 1, "what became free is kept for the one that lost its verifier in the midst of its answer"
    sessions.open(begun, stopping=False)
    assert len(sessions) == 2
    sessions.cancel(CancelAsked(begun, "enough"))
    sessions.free_ended()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (len(sessions), engine.num_open, sessions._room.is_wanted) == (1, 1, False)


def test_one_that_is_parked_and_reads_nothing_keeps_nobody_out() -> None:
    sessions, _ = live(16)
    parked = stream([5, 2, 3], 45)
    sessions.open(parked, stopping=False)
    sessions._room._park(sessions[parked.handle])
    parked.count_emitted(UNREAD)
    sessions.open(stream([7, 2, 3], 5), stopping=False)
    assert len(sessions) == 2


@pytest.mark.parametrize("pacing", ["plain", "lookup", "adaptive"])
async def test_answers_are_plain_decodings_however_little_room_there_is(pacing: str) -> None:
    """By the service's own thread. Whoever is refused comes again, as a gateway would."""
    chance = random.Random(5)
    metrics = LocalMetrics()
    engine = TableEngine(TABLE, num_blocks=60, block_len=BLOCK_LEN, prefix_cache=True)
    loop = Loop(engine, metrics=metrics)
    asked = {(number, number + 1, number * 2): chance.choice([20, 90, 140]) for number in range(1, 13)}
    left, num_refused = dict(asked), 0
    while left:
        streams = {prompt: stream(list(prompt), max_tokens, pacing) for prompt, max_tokens in left.items()}
        for answer in streams.values():
            loop.scheduler.inbox.put(OpenAsked(answer))
        for prompt, answer in streams.items():
            message = ended(loop, answer)
            if isinstance(message.error, Overloaded):
                num_refused += 1
                continue
            assert message.reason is FinishReason.LENGTH
            assert loop.tokens(answer) == TABLE.answer(list(prompt), 3 + left.pop(prompt), NO_END)
    loop.stop()
    assert num_parked(metrics) > 0
    assert num_refused > 0
    assert (engine.num_open, engine.num_free_blocks) == (0, 60)


async def test_one_that_is_parked_may_be_cancelled_and_nothing_of_it_stays() -> None:
    metrics = LocalMetrics()
    engine = TableEngine(TABLE, num_blocks=40, block_len=BLOCK_LEN)
    loop = Loop(engine, metrics=metrics)
    streams = [stream([number, 9, number], 120) for number in range(1, 4)]
    for answer in streams:
        loop.scheduler.inbox.put(OpenAsked(answer))
    while len(loop.tokens(streams[-1])) < 10:
        loop.more(streams[-1], len(loop.tokens(streams[-1])))
    loop.scheduler.inbox.put(CancelAsked(streams[-1], "enough"))
    assert ended(loop, streams[-1]).reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
    for answer in streams[:2]:
        assert ended(loop, answer).reason is FinishReason.LENGTH
    loop.stop()
    assert (engine.num_open, engine.num_free_blocks) == (0, 40)


def test_what_was_cached_of_a_prompt_is_told_once() -> None:
    hall = Hall(100)
    hosted = hall.admit(60)
    hall.rounds(3)
    hall.engine.close(hosted.handle)
    hosted.park()
    assert hosted.session.view(0).num_uncached == hosted.session.committed_len
    hall.engine.open(hosted.handle, hosted.sequence, np.asarray(hall.text(hosted), np.int32))
    hosted.go_on(19, 2, 1_000)
    assert hosted.session.statistics.num_cached_prompt == 0
    assert hosted.session.view(5_000_000).waiting_since_us == 1_000
