"""Silence: when a verifier is asked whether it lives, how often, and who hears of its loss.

pytest tests/unit/test_gateway_liveness.py
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outrider.errors import OutriderError, Unavailable
from outrider.gateway.limits import LivenessLimits
from outrider.gateway.liveness import Listener, Liveness
from outrider.gateway.loss import LossCause, VerifierLost, loss_cause
from outrider.rpc.status import DeadlinePassed, RemoteFailure

LIMITS = LivenessLimits(silence_s=0.05, probe_timeout_s=0.1, stuck_s=0.3)
WAIT_S = 10.0


class Asked:
    """Stands for a verifier. answer: steps it tells, or what is raised. at_once: most questions that were open together."""

    def __init__(self, answer: int | OutriderError | None) -> None:
        self.answer = answer
        self.num = 0
        self.num_open = 0
        self.at_once = 0
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, timeout_s: float) -> int | None:
        self.num += 1
        self.num_open += 1
        self.at_once = max(self.at_once, self.num_open)
        self.asked.set()
        await self.may_answer.wait()
        self.num_open -= 1
        if isinstance(self.answer, OutriderError):
            raise self.answer
        return self.answer


@asynccontextmanager
async def watched(asked: Asked) -> AsyncIterator[Liveness]:
    liveness = Liveness("a:1", asked, LIMITS)
    try:
        async with asyncio.timeout(WAIT_S):
            yield liveness
    finally:
        await liveness.close()


async def wait_in(listener: Listener) -> None:
    """What a reader does whose message never comes."""
    async with listener:
        listener.since_s = asyncio.get_running_loop().time()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(DeadlinePassed("too late"), LossCause.SILENT), (Unavailable("connection refused"), LossCause.GONE), (7, LossCause.STUCK)],
)
async def test_every_waiting_stream_hears_of_the_loss_and_its_cause(answer: int | OutriderError, cause: LossCause) -> None:
    asked = Asked(answer)
    async with watched(asked) as liveness:
        ends = await asyncio.gather(*(wait_in(Listener(liveness)) for _ in range(5)), return_exceptions=True)
        assert liveness.is_stuck(7) == (cause is LossCause.STUCK)
        assert not liveness.is_stuck(8)
    assert cause is LossCause.STUCK or asked.num == 1, "they hear of it together"
    assert all(isinstance(end, VerifierLost) and end.cause is cause for end in ends), ends


async def test_many_streams_share_one_question_at_a_time() -> None:
    asked = Asked(DeadlinePassed("too late"))
    asked.may_answer.clear()
    async with watched(asked) as liveness:
        waits = [asyncio.ensure_future(wait_in(Listener(liveness))) for _ in range(8)]
        await asked.asked.wait()
        await asyncio.sleep(3 * LIMITS.silence_s)  # time in which further questions would be asked, if they were
        assert asked.num == 1
        asked.may_answer.set()
        await asyncio.gather(*waits, return_exceptions=True)
    assert asked.at_once == 1


@pytest.mark.parametrize("answer", [None, RemoteFailure("not now")])
async def test_one_that_refuses_to_tell_its_steps_lives(answer: OutriderError | None) -> None:
    asked = Asked(answer)
    async with watched(asked) as liveness:
        wait = asyncio.ensure_future(wait_in(Listener(liveness)))
        while asked.num < 8:  # longer than stuck_s
            asked.asked.clear()
            await asked.asked.wait()
        assert not wait.done()
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait


async def test_a_stream_that_nobody_reads_is_neither_silent_nor_interrupted() -> None:
    asked = Asked(DeadlinePassed("too late"))
    async with watched(asked) as liveness, Listener(liveness):
        lost = Listener(liveness)
        with pytest.raises(VerifierLost):
            await wait_in(lost)
        asked.num = 0
        await asyncio.sleep(4 * LIMITS.silence_s)  # ours waits for its client, not for the verifier
    assert asked.num == 0


async def test_steps_that_move_are_life_however_long_it_takes() -> None:
    asked = Asked(0)
    async with watched(asked) as liveness:
        wait = asyncio.ensure_future(wait_in(Listener(liveness)))
        while asked.num < 10:
            asked.answer = asked.num
            asked.asked.clear()
            await asked.asked.wait()
        assert not wait.done()
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait


async def test_what_we_slept_through_ourselves_is_nobodys_silence() -> None:
    asked = Asked(DeadlinePassed("too late"))
    async with watched(asked) as liveness:
        listener = Listener(liveness)
        wait = asyncio.ensure_future(wait_in(listener))
        await asyncio.sleep(0)
        await asyncio.sleep(LIMITS.silence_s / 10)
        time.sleep(4 * LIMITS.silence_s)  # this process was stopped: nothing of it ran
        for _ in range(3):
            await asyncio.sleep(0)
        assert asked.num == 0
        listener.since_s = None  # a message was there all the time
        await asyncio.sleep(2 * LIMITS.silence_s)
        assert asked.num == 0
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait


async def test_a_deadline_that_we_slept_over_says_nothing() -> None:
    asked = Asked(DeadlinePassed("too late"))
    asked.may_answer.clear()
    async with watched(asked) as liveness:
        wait = asyncio.ensure_future(wait_in(Listener(liveness)))
        await asked.asked.wait()
        time.sleep(2 * (LIMITS.probe_timeout_s + LIMITS.silence_s))  # this process was stopped while it waited for the answer
        asked.may_answer.set()
        asked.asked.clear()
        await asked.asked.wait()  # it is asked again, and nobody was told of a loss before
        assert not wait.done()
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait


def test_which_errors_another_verifier_may_mend() -> None:
    assert loss_cause(Unavailable("gone")) is LossCause.GONE
    assert loss_cause(RemoteFailure("broken")) is LossCause.BROKEN
    assert loss_cause(OutriderError("no class")) is LossCause.BROKEN
    assert loss_cause(VerifierLost(LossCause.STUCK, "no steps")) is LossCause.STUCK
    assert loss_cause(DeadlinePassed("late")) is None
