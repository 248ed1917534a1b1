"""How long a new session would wait for its first step, and who is refused because of it.

pytest tests/unit/test_verifier_queue_time.py
"""

from __future__ import annotations

import numpy as np
import pytest

from fakes import TableEngine
from fakes_scheduler import TABLE, Loop, ended
from outrider.errors import Overloaded
from outrider.rpc.turnover import FIRST_HELD_S, MAX_RETRY_S, MIN_RETRY_S, Turnover
from outrider.session.events import FinishReason
from outrider.session.pacing.contract import CostCurve
from verifier_service.answer import AnswerStream
from verifier_service.inbox import CancelAsked
from verifier_service.queue_time import MAX_SLOWNESS, QueueTime

COST = CostCurve(((1, 100.0), (10, 190.0), (20, 290.0)))
LONG = [[2 + (at + start) % 30 for at in range(200)] for start in range(3)]


@pytest.mark.parametrize(("num_unread", "expected"), [(0, 0.0), (1, 100.0), (10, 190.0), (20, 290.0), (30, 480.0), (45, 720.0)])
def test_the_wait_is_the_steps_that_others_prompts_take(num_unread: int, expected: float) -> None:
    assert QueueTime(20).wait_us(num_unread, 0, COST) == pytest.approx(expected)


def test_sessions_that_decode_take_their_rows_first() -> None:
    assert QueueTime(20).wait_us(30, 10, COST) == pytest.approx(3 * 290.0)
    assert QueueTime(20).wait_us(2, 50, COST) == pytest.approx(2 * COST.verify_us(51))
    assert QueueTime(20).wait_us(0, 50, COST) == 0.0


def test_the_speed_of_reading_is_what_steps_that_read_took() -> None:
    queue = QueueTime(20)
    for _ in range(8):
        queue.observe(20, 3 * 290.0, COST)
    assert queue.wait_us(20, 0, COST) == pytest.approx(3 * 290.0)
    queue.observe(1, 100.0, COST)  # a short one tells little of long ones
    assert queue.slowness > 2.8
    queue.observe(20, 1e9, COST)  # the machine stood still
    assert queue.slowness < MAX_SLOWNESS / 2
    for _ in range(400):
        queue.observe(20, 290.0, COST)
    assert queue.slowness == pytest.approx(1.0, abs=0.01)


def test_who_would_wait_too_long_is_told_when_the_queue_is_short_enough() -> None:
    queue = QueueTime(20, 1e6)
    queue.check(1e6)
    with pytest.raises(Overloaded, match=r"2500 ms .* --max-queue-ms 1000") as refused:
        queue.check(2.5e6)
    assert refused.value.retry_after_s == pytest.approx(1.5)
    QueueTime(20, 0.0).check(1e12)


def test_places_become_free_as_often_as_they_were_given_back() -> None:
    turnover = Turnover()
    assert turnover.retry_after_s(4) == FIRST_HELD_S / 4
    for _ in range(100):
        turnover.observe(8.0)
    assert turnover.retry_after_s(4) == pytest.approx(2.0, rel=0.01)
    assert turnover.retry_after_s(0) == pytest.approx(8.0, rel=0.01)
    for _ in range(100):
        turnover.observe(1e6)
    assert turnover.retry_after_s(1) == MAX_RETRY_S
    for _ in range(200):
        turnover.observe(0.0)
    assert turnover.retry_after_s(9) == MIN_RETRY_S


def open_together(loop: Loop, prompts: list[list[int]]) -> list[AnswerStream]:
    """Sessions that the engine thread finds in its inbox at once, before it reads any of them."""
    with loop.scheduler.inbox._lock:
        return [loop.open(4, prefix=np.asarray(prompt, np.int32), num_prompt=len(prompt), max_len=len(prompt) + 4) for prompt in prompts]


def outcomes(loop: Loop, answers: list[AnswerStream]) -> list[FinishReason]:
    return [ended(loop, answer).reason for answer in answers]


def test_a_session_behind_too_many_prompts_is_refused_and_those_before_it_are_not() -> None:
    """Thirteen steps of a millisecond for each prompt of 200 tokens; the third would wait for 26."""
    loop = Loop(TableEngine(TABLE, max_rows=16, num_blocks=1024), max_queue_us=14_000.0)
    answers = open_together(loop, LONG)
    assert outcomes(loop, answers) == [FinishReason.LENGTH, FinishReason.LENGTH, FinishReason.FAILED]
    error = ended(loop, answers[2]).error
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == pytest.approx(0.012, abs=0.004)
    (later,) = open_together(loop, LONG[2:])
    assert outcomes(loop, [later]) == [FinishReason.LENGTH], "nothing waits any more"
    loop.stop()


def test_samples_of_one_prompt_wait_for_one_reading_of_it() -> None:
    loop = Loop(TableEngine(TABLE, max_rows=16, num_blocks=1024, prefix_cache=True), max_queue_us=20_000.0)
    assert outcomes(loop, open_together(loop, [LONG[0]] * 6)) == [FinishReason.LENGTH] * 6
    loop.stop()


def test_without_a_bound_nobody_is_refused_for_a_queue() -> None:
    loop = Loop(TableEngine(TABLE, max_rows=16, num_blocks=1024), max_queue_us=0.0)
    assert outcomes(loop, open_together(loop, LONG * 2)) == [FinishReason.LENGTH] * 6
    loop.stop()


@pytest.mark.parametrize(("max_sessions", "num_blocks"), [(1, 1024), (8, 8)])
def test_a_full_verifier_says_when_to_come_again(max_sessions: int, num_blocks: int) -> None:
    """The first has not taken a step when the second comes: it cannot have ended."""
    loop = Loop(TableEngine(TABLE, num_blocks=num_blocks), max_sessions=max_sessions)
    with loop.scheduler.inbox._lock:
        first, second = loop.open(100), loop.open(100)
    error = ended(loop, second).error
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == FIRST_HELD_S
    loop.scheduler.inbox.put(CancelAsked(first, "enough"))
    ended(loop, first)
    loop.stop()
