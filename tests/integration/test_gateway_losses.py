"""How the loss of a verifier is found, what is not one, and how the streams of a lost one spread, over real sockets.

pytest tests/integration/test_gateway_losses.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest

from fakes_failover import (
    QUICK,
    REQUEST,
    SCRIPT,
    TIMEOUT_S,
    counted,
    deltas,
    finished,
    stream,
    tokens_of,
    undisturbed,
)
from fakes_verifier import IDLE_TIMEOUT_S, FakeVerifier, GatewayUnderTest, Hold, Hurt, gateway_over
from mostly_slow import mostly_slow
from outrider.gateway.limits import GatewayLimits
from outrider.types.generation import AnswerEvent, Started
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2


@pytest.mark.parametrize("hurt_after", mostly_slow([0, 9, 3], 2))
@pytest.mark.parametrize(("hurt", "cause"), [(Hurt.DIE, "gone"), (Hurt.FREEZE, "silent"), (Hurt.STUCK, "stuck")])
async def test_every_way_of_being_lost_is_found_and_mended(hurt: Hurt, cause: str, hurt_after: int) -> None:
    first, second = FakeVerifier(SCRIPT, hurt=hurt, hurt_after=hurt_after), FakeVerifier(SCRIPT)
    whole = await undisturbed()
    async with gateway_over(first, second, liveness=QUICK) as under_test:
        events = await stream(under_test)
        assert counted(under_test) == {cause: 1}
        first.thaw()
    assert deltas(events) == deltas(whole)
    assert (len(first.starts), len(second.starts)) == (1, 1)


async def test_a_frozen_verifier_that_thaws_is_a_zombie_whose_words_nobody_reads() -> None:
    zombie = FakeVerifier(SCRIPT, hurt=Hurt.FREEZE, hurt_after=4)
    second = FakeVerifier(SCRIPT)
    async with gateway_over(zombie, second, liveness=QUICK, refresh_s=0.1) as under_test:
        events = await stream(under_test)
        assert tokens_of(events) == SCRIPT
        zombie.thaw()
        await zombie.wait_live(0)
        await second.wait_live(0)
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while len(zombie.starts) < 2:  # it is asked again who it is, and serves again
                assert tokens_of(await stream(under_test)) == SCRIPT


async def test_a_request_that_finds_a_frozen_verifier_begins_at_the_next() -> None:
    first, second = FakeVerifier(SCRIPT), FakeVerifier(SCRIPT)
    async with gateway_over(first, second, liveness=QUICK) as under_test:
        first.freeze()
        for _ in range(2):  # they take turns
            events = await stream(under_test)
            assert (tokens_of(events), finished(events).num_failovers) == (SCRIPT, 0)
        first.thaw()
    assert not [start for start in first.starts if start.incarnation > 1]


async def test_a_stuck_verifier_that_still_tells_who_it_is_gets_nothing_more() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.STUCK, hurt_after=4), FakeVerifier(SCRIPT)
    async with gateway_over(first, second, liveness=QUICK, refresh_s=0.05) as under_test:
        await stream(under_test)
        num_asked = first.num_asked
        await first.wait_until(lambda: first.num_asked >= num_asked + 3)
        for _ in range(4):
            assert tokens_of(await stream(under_test)) == SCRIPT
        first.thaw()
    assert (len(first.starts), len(second.starts)) == (1, 5)


async def test_a_verifier_that_drains_may_finish_what_it_has_however_silent() -> None:
    """It refuses to say how it is, but lives."""
    first, second = FakeVerifier(SCRIPT, hold=Hold.AFTER_STARTED), FakeVerifier(SCRIPT)

    async def drain(grace_s: float) -> None:
        await first.wait_live(0)

    async with gateway_over(first, second, liveness=QUICK) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        await first.reached.wait()
        assert first.server is not None
        stopping = asyncio.ensure_future(first.server.stop(drain, IDLE_TIMEOUT_S))
        await asyncio.sleep(3 * (QUICK.silence_s + QUICK.probe_timeout_s))  # it is silent, and that is what is tested
        first.release.set()
        events = await answer
        await stopping
    assert (tokens_of(events), finished(events).num_failovers) == (SCRIPT, 0)


async def test_the_only_verifier_that_froze_and_thaws_takes_its_own_answer_over() -> None:
    only = FakeVerifier(SCRIPT, hurt=Hurt.FREEZE, hurt_after=4)
    async with gateway_over(only, liveness=QUICK) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        await only.hurting.wait()
        await only.wait_live(0)  # its stream was cancelled: it is lost
        only.thaw()
        events = await answer
        assert counted(under_test) == {"silent": 1}
    assert tokens_of(events) == SCRIPT
    assert [start.incarnation for start in only.starts] == [1, 2]


async def test_a_slow_client_is_not_a_silent_verifier() -> None:
    """The verifier is held back for many times the allowed silence, and nobody even asks whether it lives."""
    num_rounds = 300
    fake = FakeVerifier([40] * num_rounds, logprob_rows=1500)
    async with gateway_over(fake, liveness=QUICK) as under_test:
        call = under_test.stub.Generate(pb.GenerateRequest(prompt="hi", top_logprobs=1, max_tokens=num_rounds))
        await call.read()
        await asyncio.wait_for(fake.stalled.wait(), IDLE_TIMEOUT_S)
        num_asked = fake.num_asked
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            await asyncio.sleep(10 * QUICK.silence_s)  # nothing happens, and that is what is tested
        assert fake.num_asked == num_asked
        num_deltas = 0
        while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            num_deltas += message.HasField("delta")
        assert counted(under_test) == {}
    assert num_deltas == num_rounds
    assert len(fake.starts) == 1


async def test_slow_clients_do_not_make_their_verifier_look_lost_to_others() -> None:
    """Their streams fill their windows, and the question whether it lives goes over the same connection."""
    num_slow, num_rounds = 8, 60

    class Mixed(FakeVerifier):
        async def _held(self, at: Hold) -> None:
            if self.starts[-1].noise.seed == 99:
                await super()._held(at)

    fake = Mixed([40] * num_rounds, logprob_rows=1500, hold=Hold.AFTER_STARTED)
    async with gateway_over(fake, liveness=QUICK) as under_test:
        slow = pb.GenerateRequest(prompt="hi", top_logprobs=1, max_tokens=num_rounds, sampling=sampling_pb2.SamplingParams(seed=1))
        calls = [under_test.stub.Generate(slow) for _ in range(num_slow)]
        for call in calls:
            await call.read()
        await asyncio.wait_for(fake.stalled.wait(), IDLE_TIMEOUT_S)
        answer = asyncio.ensure_future(stream(under_test, replace(REQUEST, seed=99, max_tokens=3)))
        await fake.reached.wait()
        num_asked = fake.num_asked
        await fake.wait_until(lambda: fake.num_asked >= num_asked + 4)
        fake.release.set()
        assert finished(await answer).num_failovers == 0
        assert counted(under_test) == {}
        for call in calls:
            call.cancel()


async def test_streams_lost_together_do_not_fall_on_one_verifier_together() -> None:
    num_each = 32
    fakes = [FakeVerifier(lambda start: SCRIPT, hurt=None) for _ in range(4)]
    gate = asyncio.Event()

    async def ask(under_test: GatewayUnderTest) -> list[AnswerEvent]:
        events = []
        async for event in under_test.client.generate(REQUEST, TIMEOUT_S):
            events.append(event)
            if isinstance(event, Started):
                await gate.wait()
        return events

    for fake in fakes:
        fake.hold = Hold.AFTER_STARTED
    limits = GatewayLimits(max_live_requests=4 * num_each, max_live_samples=4 * num_each)
    patient = replace(QUICK, silence_s=IDLE_TIMEOUT_S)  # 128 streams on a busy machine: one that is only late is not lost, too
    async with gateway_over(*fakes, limits=limits, liveness=patient) as under_test:
        answers = [asyncio.ensure_future(ask(under_test)) for _ in range(4 * num_each)]
        gate.set()
        for fake in fakes:
            await fake.wait_live(num_each)
        fakes[0].hurt = Hurt.DRAIN
        fakes[0].hurt_after = 0
        fakes[0].release.set()
        await fakes[0].wait_live(0)
        for fake in fakes[1:]:
            await fake.wait_until(lambda fake=fake: len(fake.starts) >= num_each + num_each // 3)  # type: ignore[misc]
        for fake in fakes[1:]:
            fake.release.set()
        assert all([tokens_of(await answer) == SCRIPT for answer in answers])
    shares = [len(fake.starts) - num_each for fake in fakes[1:]]
    assert sum(shares) == num_each, "each was opened once again, no more"
    assert max(shares) - min(shares) <= 2, shares
