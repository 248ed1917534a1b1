"""Verifiers that die, drain, freeze or stand still in the midst of an answer, over real sockets: the client sees the same answer, later.

Losses are scripted (tests/fakes_verifier.py). Real processes are in test_failover_processes.py.

    pytest tests/integration/test_gateway_failover.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from fakes_verifier import IDLE_TIMEOUT_S, MODEL_DIR, FakeVerifier, GatewayUnderTest, Hold, Hurt, fake_identity, gateway_over, serving
from outrider.client import connect
from outrider.errors import InvalidRequest, OutriderError, Overloaded, Unavailable
from outrider.gateway.gateway import GatewayConfig, start_gateway
from outrider.gateway.limits import FailoverLimits, GatewayLimits, LivenessLimits
from outrider.gateway.tokenizer import load_tokenizer
from outrider.rpc.status import DeadlinePassed, RemoteFailure
from outrider.telemetry import names
from outrider.types.generation import AnswerEvent, Delta, Done, Finished, GenerationRequest, Started
from outrider.types.identity import Numerics
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2

TOKENIZER = load_tokenizer(MODEL_DIR)
EOS = 3
# An emoji of four byte tokens, then a letter that combines with an accent of two, then what begins a stop string and does not end one.
SCRIPT = [*TOKENIZER.encode("x😀e\u0301!nevnev"), *TOKENIZER.encode(" and on"), EOS]
STOPPED = [token for letter in "x\u00e9nevnever" for token in TOKENIZER.encode(letter)] + TOKENIZER.encode("zz")[:1] * 2
REQUEST = GenerationRequest(prompt="Say something:", seed=7, stop=("never", "!ax"), top_logprobs=1)
QUICK = LivenessLimits(silence_s=0.1, probe_timeout_s=0.4, stuck_s=0.6)
OTHER = replace(fake_identity(), fingerprint="dd" * 16)
TIMEOUT_S = 20.0


async def stream(
    under_test: GatewayUnderTest, request: GenerationRequest = REQUEST, timeout_s: float | None = TIMEOUT_S
) -> list[AnswerEvent]:
    return [event async for event in under_test.client.generate(request, timeout_s)]


def text_of(events: list[AnswerEvent], index: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.index == index)


def tokens_of(events: list[AnswerEvent], index: int = 0) -> list[int]:
    return [token for event in events if isinstance(event, Delta) and event.index == index for token in event.token_ids]


def finished(events: list[AnswerEvent], index: int = 0) -> Finished:
    (found,) = [event for event in events if isinstance(event, Finished) and event.index == index]
    return found


def deltas(events: list[AnswerEvent]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def counted(under_test: GatewayUnderTest, metric: names.Metric = names.NUM_FAILOVERS) -> dict[str, float]:
    """By cause."""
    return {series.label_values[1]: series.value for series in under_test.gateway.servicer.metrics.snapshot() if series.metric is metric}


async def undisturbed() -> list[AnswerEvent]:
    async with gateway_over(FakeVerifier(SCRIPT)) as under_test:
        return await stream(under_test)


@pytest.mark.parametrize("hurt_after", range(0, len(SCRIPT)))
async def test_an_answer_goes_on_exactly_where_it_was_cut(hurt_after: int) -> None:
    """Wherever: in the midst of a character, of what may become a stop string, before the first token, before the last."""
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=hurt_after), FakeVerifier(SCRIPT)
    whole = await undisturbed()
    async with gateway_over(first, second) as under_test:
        events = await stream(under_test)
        assert counted(under_test) == {"gone": 1}
    assert deltas(events) == deltas(whole), "same runs, texts, origins and log-probabilities"
    before, after = finished(whole), finished(events)
    assert (after.reason, after.stop_string, after.usage) == (before.reason, before.stop_string, before.usage)
    assert (before.num_failovers, before.exact, after.num_failovers, after.exact) == (0, True, 1, True)
    assert after.statistics.num_emitted == len(SCRIPT)
    old, new = first.starts[0], second.starts[0]
    assert list(new.prefix) == [*old.prefix, *SCRIPT[:hurt_after]]
    assert new.incarnation > old.incarnation
    assert (new.session_id, new.num_prompt_tokens, new.max_tokens) == (old.session_id, old.num_prompt_tokens, old.max_tokens)
    assert (new.noise, new.sampling, list(new.stop_token_ids)) == (old.noise, old.sampling, list(old.stop_token_ids))


@pytest.mark.parametrize("hurt_after", range(1, len(STOPPED) - 2))
async def test_a_stop_string_is_found_across_the_cut(hurt_after: int) -> None:
    first, second = FakeVerifier(STOPPED, hurt=Hurt.DRAIN, hurt_after=hurt_after), FakeVerifier(STOPPED)
    async with gateway_over(first, second) as under_test:
        events = await stream(under_test)
    end = finished(events)
    assert (text_of(events), tokens_of(events), end.stop_string) == ("x\u00e9nev", STOPPED[:-2], "never")
    assert (end.usage.completion_tokens, end.num_failovers) == (len(STOPPED) - 2, 1)


@pytest.mark.parametrize("hurt_after", [0, 3, 9])
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


async def test_a_resumed_request_that_fails_over_keeps_both_its_beginnings() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=6), FakeVerifier(SCRIPT)
    async with gateway_over(first, second) as under_test:
        events = await stream(under_test, replace(REQUEST, resume_token_ids=tuple(SCRIPT[:3])))
    assert tokens_of(events) == SCRIPT[3:]
    assert finished(events).usage.completion_tokens == len(SCRIPT)
    assert list(second.starts[0].prefix)[second.starts[0].num_prompt_tokens :] == SCRIPT[:6]


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
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while first.num_asked < num_asked + 3:
                await asyncio.sleep(0.01)
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


async def test_samples_fail_over_each_by_itself() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=5, hold=Hold.AFTER_STARTED), FakeVerifier(SCRIPT)
    async with gateway_over(first, second) as under_test:
        answer = asyncio.ensure_future(stream(under_test, replace(REQUEST, num_samples=4)))
        await first.wait_live(4)
        first.release.set()
        events = await answer
        assert counted(under_test) == {"gone": 4}
    done = events[-1]
    assert isinstance(done, Done)
    assert done.usage.completion_tokens == 4 * len(SCRIPT)
    assert [tokens_of(events, index) for index in range(4)] == [SCRIPT] * 4
    assert len({text_of(events, index) for index in range(4)}) == 1
    assert sorted(start.noise.sample_index for start in second.starts) == [0, 1, 2, 3]


async def test_an_answer_survives_several_verifiers_and_its_statistics_are_summed() -> None:
    fakes = [FakeVerifier(SCRIPT, run_lens=(2,), hurt=Hurt.DRAIN, hurt_after=4 * (1 + number)) for number in range(3)]
    async with gateway_over(*fakes, FakeVerifier(SCRIPT)) as under_test:
        events = await stream(under_test)
    end = finished(events)
    assert tokens_of(events) == SCRIPT
    lost = sum(len(fake.starts) and fake.num_commits for fake in fakes)
    assert end.num_failovers == sum(bool(fake.starts) for fake in fakes) > 0
    assert end.statistics.num_emitted == len(SCRIPT)
    assert end.statistics.num_accepted == lost, "one accepted and one bonus token in every lost round"


async def test_the_only_verifier_may_come_back_at_its_address() -> None:
    first = FakeVerifier(SCRIPT, hurt=Hurt.DIE, hurt_after=4)
    async with gateway_over(first) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        await first.hurting.wait()
        assert first.server is not None
        address = first.server.address
        await first.wait_live(0)
        await first.dead()
        async with serving(FakeVerifier(SCRIPT), address):
            events = await answer
    assert tokens_of(events) == SCRIPT
    assert finished(events).num_failovers == 1


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


async def test_a_full_verifier_is_waited_for() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT, refuse=Overloaded("no room"))
    async with gateway_over(first, second) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while not second.starts:
                await first.hurting.wait()
                await asyncio.sleep(0)
        second.refuse = None
        assert tokens_of(await answer) == SCRIPT
    assert len({start.incarnation for start in second.starts}) == len(second.starts), "every opening has an incarnation of its own"


@pytest.mark.parametrize("timeout_s", [None, 0.4])
async def test_when_nobody_comes_back_the_answer_ends_within_the_named_time_or_the_deadline(timeout_s: float | None) -> None:
    only = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4)
    async with gateway_over(only, failover=FailoverLimits(place_timeout_s=0.3 if timeout_s is None else 60.0)) as under_test:
        with pytest.raises(Unavailable if timeout_s is None else DeadlinePassed):
            await asyncio.wait_for(stream(under_test, timeout_s=timeout_s), 5.0)
        await under_test.idle()
        if timeout_s is None:
            assert counted(under_test, names.NUM_FAILED_FAILOVERS) == {"gone": 1}


async def test_a_request_that_may_be_what_kills_verifiers_does_not_get_them_all() -> None:
    fakes = [FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=0) for _ in range(5)]
    async with gateway_over(*fakes) as under_test:
        with pytest.raises(Unavailable):
            await stream(under_test)
    assert sum(fake.hurting.is_set() for fake in fakes) == 3


async def test_rejection_acceptance_promises_no_tokens_and_is_not_moved() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT)
    async with gateway_over(first, second) as under_test:
        with pytest.raises(Unavailable, match="shutting down"):
            await stream(under_test, replace(REQUEST, acceptance="rejection"))
    assert not second.starts


async def test_a_wrong_request_is_not_tried_elsewhere() -> None:
    first, second = FakeVerifier(SCRIPT, fail=InvalidRequest("draft", "no")), FakeVerifier(SCRIPT)
    async with gateway_over(first, second) as under_test:
        with pytest.raises(InvalidRequest, match="draft: no"):
            await stream(under_test)
    assert not second.starts


@pytest.mark.parametrize("fault", [RemoteFailure("engine fault"), OutriderError("no class")])
async def test_a_broken_verifier_is_avoided_by_the_sample_it_failed(fault: OutriderError) -> None:
    first, second = FakeVerifier(SCRIPT, fail=fault), FakeVerifier(SCRIPT)
    async with gateway_over(first, second) as under_test:
        events = await stream(under_test)
        assert counted(under_test) == {"broken": 1}
    assert tokens_of(events) == SCRIPT
    assert (len(first.starts), len(second.starts)) == (1, 1)


@pytest.mark.parametrize("identity", [OTHER, replace(OTHER, numerics=Numerics.FAST)])
async def test_another_fingerprint_goes_on_and_is_labelled(identity: object) -> None:
    first, reserve = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT, identity=identity)  # type: ignore[arg-type]
    async with gateway_over(first, reserve) as under_test:
        events = await stream(under_test)
    started, end = events[0], finished(events)
    assert isinstance(started, Started)
    assert (started.exact, end.exact, end.num_failovers) == (True, False, 1)
    assert tokens_of(events) == SCRIPT


async def test_fast_numerics_fail_over_and_never_were_exact() -> None:
    fast = replace(fake_identity(), numerics=Numerics.FAST)
    first, second = FakeVerifier(SCRIPT, identity=fast, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT, identity=fast)
    async with gateway_over(first, second) as under_test:
        events = await stream(under_test)
    assert (finished(events).exact, finished(events).num_failovers) == (False, 1)


async def test_a_verifier_of_the_same_fingerprint_is_preferred_however_busy() -> None:
    first, same, other = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT), FakeVerifier(SCRIPT, identity=OTHER)
    async with gateway_over(first, other, same) as under_test:  # the other one's turn would be next
        events = [await stream(under_test) for _ in range(2)]
    assert all(finished(answer).exact for answer in events)
    assert not other.starts


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
            await asyncio.sleep(5 * (QUICK.silence_s + QUICK.probe_timeout_s))  # nothing happens, and that is what is tested
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
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while fake.num_asked < num_asked + 4:
                await asyncio.sleep(0.01)
        fake.release.set()
        assert finished(await answer).num_failovers == 0
        assert counted(under_test) == {}
        for call in calls:
            call.cancel()


async def test_a_client_that_leaves_while_its_answer_waits_for_a_verifier_leaves_nothing() -> None:
    only = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4)
    async with gateway_over(only, failover=FailoverLimits(place_timeout_s=IDLE_TIMEOUT_S)) as under_test:
        running = under_test.client.generate(REQUEST)
        for _ in range(5):
            await anext(running)
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while len(only.starts) < 3:  # it is being tried, and refused
                await asyncio.sleep(0.01)
        await running.aclose()  # type: ignore[attr-defined]
        await under_test.idle()


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
    async with gateway_over(*fakes, limits=limits) as under_test:
        answers = [asyncio.ensure_future(ask(under_test)) for _ in range(4 * num_each)]
        gate.set()
        for fake in fakes:
            await fake.wait_live(num_each)
        fakes[0].hurt = Hurt.DRAIN
        fakes[0].hurt_after = 0
        fakes[0].release.set()
        await fakes[0].wait_live(0)
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while sum(len(fake.starts) for fake in fakes[1:]) < 4 * num_each:
                await asyncio.sleep(0.01)
        shares = [len(fake.starts) - num_each for fake in fakes[1:]]
        for fake in fakes[1:]:
            fake.release.set()
        assert all([tokens_of(await answer) == SCRIPT for answer in answers])
    assert sum(shares) == num_each, "each was opened once again, no more"
    assert max(shares) - min(shares) <= 2, shares


@asynccontextmanager
async def two_gateways(fake: FakeVerifier) -> AsyncIterator[list[GatewayUnderTest]]:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(fake))
        found = []
        for _ in range(2):
            gateway = await start_gateway(GatewayConfig(("127.0.0.1:0",), (address,), MODEL_DIR))
            stack.push_async_callback(gateway.stop, 0.0)
            client = await stack.enter_async_context(await connect(gateway.address))
            found.append(GatewayUnderTest(gateway, client, None))
        yield found


@pytest.mark.parametrize("num_events", range(1, len(SCRIPT) + 2))
async def test_a_client_that_loses_its_gateway_gets_the_missing_rest_from_another(num_events: int) -> None:
    request = replace(REQUEST, request_id="mine")
    whole = await undisturbed()
    fake = FakeVerifier(SCRIPT)
    async with two_gateways(fake) as (lost, other):
        running = lost.client.generate(request, TIMEOUT_S)
        before = [await anext(running) for _ in range(num_events)]
        await lost.gateway.stop(0.0)
        await running.aclose()  # type: ignore[attr-defined]
        again = replace(request, resume_token_ids=tuple(tokens_of(before)))
        after = await stream(other, again)
        await fake.wait_live(0)
    assert text_of(before) + text_of(after) == text_of(whole)
    assert tokens_of(before) + tokens_of(after) == tokens_of(whole)
    assert [(delta.origins, delta.logprobs) for delta in deltas(before + after)] == [
        (delta.origins, delta.logprobs) for delta in deltas(whole)
    ]
    assert finished(after).usage == finished(whole).usage
    assert finished(after).reason == finished(whole).reason
