"""The engine thread lends an idle drafter's cores to the target: which steps of whole answers ran on them."""

from __future__ import annotations

import pytest

from fakes import TableEngine
from fakes_scheduler import PROMPT, TABLE, Loop, ended
from verifier_service.inbox import PairUp
from verifier_service.loan_worth import MIN_STAY, PROBE_AFTER


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
    loop.scheduler.inbox.put(PairUp("unix:/d", 1))
    answer = loop.open(20)
    ended(loop, answer)
    assert lent_of(loop, engine, num_before) == [2] * 20
    assert loop.tokens(answer) == TABLE.answer(PROMPT, 23, frozenset({0}))


@pytest.mark.parametrize(("drafter", "beside"), [("unix:/d", 0), ("10.0.0.7:7000", 2)])
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
