"""How commits leave a verifier: the first at once, those that follow fast together, the last without waiting.

Run: pytest tests/unit/test_verifier_answer.py
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import numpy as np

from outrider.session.events import FinishReason
from outrider.session.opening import VerifierSpec
from outrider.types.frames import DraftLimits
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.statistics import DraftStatistics
from outrider.types.step import TokenLogprobs
from outrider.types.tree import TokenOrigin
from verifier_service.answer import AnswerMessage, AnswerStream, SessionEnded, SessionRequest, SessionStarted, TokensCommitted

FOR_EVER_S = 3600.0
BOUND_S = 30.0  # against hanging


def stream(interval_s: float = FOR_EVER_S) -> AnswerStream:
    spec = VerifierSpec(
        session=1, incarnation=1, request_id="r", prefix=np.array([1, 2], np.int32), num_prompt=2, max_len=50, stop_token_ids=frozenset(),
        vocab_size=10, sampling=SamplingParams(), noise=NoiseAddress(0), limits=DraftLimits(max_len=50), max_draft_len=0, max_nodes=0,
    )  # fmt: skip
    return AnswerStream(SessionRequest(spec, "plain", "coupled", None, None), lambda: None, interval_s)


def committed(begin: int, *tokens: int) -> TokensCommitted:
    return TokensCommitted(begin, tokens, (TokenOrigin.BONUS,) * len(tokens), None)


ENDED = SessionEnded(FinishReason.LENGTH, DraftStatistics())


def tell(answer: AnswerStream, message: TokensCommitted) -> None:
    """As the engine thread does where the loop does not come for a commit by itself."""
    assert not answer.hold(message)
    answer.push(message)


async def begun(answer: AnswerStream) -> None:
    """Its first commit is written."""
    answer.push(SessionStarted("f"))
    tell(answer, committed(2, 7))
    assert await answer.next() == SessionStarted("f")
    assert await answer.next() == committed(2, 7)


async def gathering(answer: AnswerStream, *on_way: TokensCommitted) -> asyncio.Future[AnswerMessage]:
    """The next message, for which the loop waits until it is due. The engine thread has had to tell of one commit for it, and of these,
    which the loop has yet to hear of."""
    tell(answer, committed(3, 8))
    for message in on_way:
        assert not answer.hold(message)
    waiting = asyncio.ensure_future(answer.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def test_the_first_commit_leaves_at_once_and_later_ones_together() -> None:
    answer = stream()
    await begun(answer)
    waiting = await gathering(answer, committed(4, 9))
    answer.push(committed(4, 9))  # the loop was told of it before it waited
    assert answer.hold(committed(5, 1))
    assert answer.hold(committed(6, 2))
    answer.push(ENDED)
    assert await waiting == committed(3, 8, 9, 1, 2)
    assert await answer.next() == ENDED


async def test_the_loop_comes_for_what_is_held_and_stays_while_commits_are_fast() -> None:
    answer = stream(0.02)
    await begun(answer)
    clock = asyncio.get_running_loop().time
    written_s = clock()
    waiting = await gathering(answer)
    assert answer.hold(committed(4, 9))
    assert await asyncio.wait_for(waiting, BOUND_S) == committed(3, 8, 9)
    assert clock() - written_s > 0.019
    waiting = asyncio.ensure_future(answer.next())  # nothing is there, but it will soon be
    await asyncio.sleep(0)
    assert answer.hold(committed(5, 1))
    assert await asyncio.wait_for(waiting, BOUND_S) == committed(5, 1)


async def test_nothing_is_held_once_commits_are_slower_than_messages() -> None:
    answer = stream(0.05)
    await begun(answer)
    await asyncio.wait_for(await gathering(answer), BOUND_S)
    waiting = asyncio.ensure_future(answer.next())
    await asyncio.sleep(0)
    assert not answer_rests(answer)
    while not answer_rests(answer):
        await asyncio.sleep(0.001)
    tell(answer, committed(4, 9))
    assert await asyncio.wait_for(waiting, BOUND_S) == committed(4, 9)
    waiting = asyncio.ensure_future(answer.next())
    await asyncio.sleep(0)
    assert not answer.hold(committed(5, 1)), "no timer runs after a commit that did not come fast"
    waiting.cancel()


def answer_rests(answer: AnswerStream) -> bool:
    """Whether its loop has to be told: no timer runs and nobody comes."""
    return not answer._comes


async def test_every_commit_leaves_by_itself_without_an_interval() -> None:
    answer = stream(0.0)
    await begun(answer)
    for begin in range(3, 6):
        tell(answer, committed(begin, 7))
        assert await answer.next() == committed(begin, 7)


async def test_commits_wait_for_the_interval_and_no_longer() -> None:
    answer = stream(0.01)
    clock = asyncio.get_running_loop().time
    begin_s = clock()
    for begin in range(2, 6):
        tell(answer, committed(begin, 7))
        assert await answer.next() == committed(begin, 7)
    assert clock() - begin_s > 0.029


async def test_a_drain_hurries_what_is_held() -> None:
    answer = stream()
    await begun(answer)
    waiting = await gathering(answer)
    assert answer.hold(committed(4, 9))
    answer.hurry()
    assert await asyncio.wait_for(waiting, BOUND_S) == committed(3, 8, 9)


async def test_a_reader_that_leaves_is_not_waited_for() -> None:
    answer = stream()
    await begun(answer)
    waiting = await gathering(answer)
    assert answer.hold(committed(4, 9))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not answer.hold(committed(5, 1))


async def test_no_commit_of_another_thread_is_lost_or_told_twice() -> None:
    answer = stream(0.001)
    loop = asyncio.get_running_loop()
    num = 3000
    num_told = 0
    pushed = threading.Event()

    def push(message: AnswerMessage) -> None:
        answer.push(message)
        pushed.set()

    def engine() -> None:
        nonlocal num_told
        for begin in range(2, 2 + num):
            message = committed(begin, begin % 7)
            if not answer.hold(message):
                num_told += 1
                pushed.clear()
                loop.call_soon_threadsafe(push, message)
                assert pushed.wait(BOUND_S)  # so that the loop has its turns
        loop.call_soon_threadsafe(answer.push, ENDED)

    thread = threading.Thread(target=engine)
    thread.start()
    tokens: list[int] = []
    while isinstance(message := await asyncio.wait_for(answer.next(), BOUND_S), TokensCommitted):
        assert message.begin == 2 + len(tokens)
        tokens += message.tokens
    thread.join()
    assert tokens == [begin % 7 for begin in range(2, 2 + num)]
    assert num_told < num


async def test_the_second_commit_needs_no_telling() -> None:
    """The first one written, the loop comes by itself when the next message is due, and once more only if there was one."""
    answer = stream(0.02)
    await begun(answer)
    waiting = asyncio.ensure_future(answer.next())
    await asyncio.sleep(0)
    assert answer.hold(committed(3, 8))
    assert await asyncio.wait_for(waiting, BOUND_S) == committed(3, 8)


async def test_no_commit_overtakes_one_that_the_loop_has_yet_to_hear_of() -> None:
    """The pause ends while a commit is on its way, and the reader has its turn before that one and behind the next."""
    answer = stream()
    await begun(answer)
    assert not answer.hold(committed(3, 8))
    waiting = asyncio.ensure_future(answer.next())
    await asyncio.sleep(0)
    tell_of_the_second = not answer.hold(committed(4, 9))
    answer.hurry()  # or the timer: the reader's turn is due
    await asyncio.sleep(0)
    answer.push(committed(3, 8))
    assert tell_of_the_second
    answer.push(committed(4, 9))
    assert await asyncio.wait_for(waiting, BOUND_S) == committed(3, 8, 9)
    follows = asyncio.ensure_future(answer.next())
    await asyncio.sleep(0)
    assert answer.hold(committed(5, 1)), "nothing is on its way any more"
    answer.hurry()
    assert await asyncio.wait_for(follows, BOUND_S) == committed(5, 1)


async def test_a_commit_told_of_in_a_pause_wakes_nobody() -> None:
    answer = stream()
    await begun(answer)
    waiting = await gathering(answer, committed(4, 9))
    reader = answer._reader
    answer.push(committed(4, 9))
    assert reader is not None
    assert not reader.done()
    answer.push(ENDED)
    assert await waiting == committed(3, 8, 9)


async def test_commits_that_leave_together_have_all_their_rows() -> None:
    answer = stream()
    await begun(answer)
    rows = [TokenLogprobs(np.full(num, -1.0 * num), np.full((num, 2), num), np.full((num, 2), -0.5)) for num in (1, 2)]
    parts = [replace(committed(3, 8), logprobs=rows[0]), replace(committed(4, 9, 1), logprobs=rows[1])]
    for part in parts:
        tell(answer, part)
    answer.push(ENDED)
    both = await answer.next()
    assert isinstance(both, TokensCommitted)
    assert both.logprobs is not None
    assert (both.tokens, both.logprobs.chosen.tolist()) == ((8, 9, 1), [-1.0, -2.0, -2.0])
    assert (both.logprobs.top_ids.tolist(), both.logprobs.top.shape) == ([[1, 1], [2, 2], [2, 2]], (3, 2))
