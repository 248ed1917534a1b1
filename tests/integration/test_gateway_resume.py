"""A client that loses its gateway asks another for the rest, over real sockets.

pytest tests/integration/test_gateway_resume.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from fakes_failover import (
    OTHER,
    REQUEST,
    SCRIPT,
    TIMEOUT_S,
    deltas,
    finished,
    stream,
    text_of,
    tokens_of,
    undisturbed,
)
from fakes_verifier import MODEL_DIR, FakeVerifier, GatewayUnderTest, Hurt, fake_identity, gateway_over, serving
from mostly_slow import mostly_slow
from outrider.client import connect
from outrider.errors import AlreadyExists, Cancelled, Overloaded, Unavailable
from outrider.gateway.gateway import GatewayConfig, start_gateway
from outrider.gateway.limits import GatewayLimits
from outrider.resuming import AnswerSoFar, ResumeLimits, generate_resuming
from outrider.types.generation import AnswerEvent, Delta, Done, Finished, GenerationRequest, Started


async def test_a_resumed_request_that_fails_over_keeps_both_its_beginnings() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=6), FakeVerifier(SCRIPT)
    async with gateway_over(first, second) as under_test:
        events = await stream(under_test, replace(REQUEST, resume_token_ids=tuple(SCRIPT[:3])))
    assert tokens_of(events) == SCRIPT[3:]
    assert finished(events).usage.completion_tokens == len(SCRIPT)
    assert list(second.starts[0].prefix)[second.starts[0].num_prompt_tokens :] == SCRIPT[:6]


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
        ours = (fake.identity.fingerprint,)
        again = replace(request, resume_token_ids=tuple(tokens_of(before)), resume_fingerprints=ours)
        after = await stream(other, again)
        await fake.wait_live(0)
    assert text_of(before) + text_of(after) == text_of(whole)
    assert tokens_of(before) + tokens_of(after) == tokens_of(whole)
    assert [(delta.origins, delta.logprobs) for delta in deltas(before + after)] == [
        (delta.origins, delta.logprobs) for delta in deltas(whole)
    ]
    assert finished(after).usage == finished(whole).usage
    assert finished(after).reason == finished(whole).reason
    assert (started(after).exact, finished(after).exact) == (True, True)


MINE = fake_identity().fingerprint


@pytest.mark.parametrize("num_done", [1, len(SCRIPT)])
@pytest.mark.parametrize(
    ("fingerprints", "is_exact"),
    [((MINE,), True), ((), False), ((OTHER.fingerprint,), False), ((MINE, OTHER.fingerprint), False)],
    ids=["the same", "unknown", "another", "one of two"],
)
async def test_the_rest_is_called_exact_only_where_the_same_numerics_made_the_beginning(
    fingerprints: tuple[str, ...], is_exact: bool, num_done: int
) -> None:
    async with gateway_over(FakeVerifier(SCRIPT)) as under_test:
        again = replace(REQUEST, resume_token_ids=tuple(SCRIPT[:num_done]), resume_fingerprints=fingerprints)
        events = await stream(under_test, again)
    assert tokens_of(events) == SCRIPT[num_done:], "whatever it is called, it goes on"
    assert (started(events).exact, finished(events).exact) == (is_exact, is_exact)


async def test_a_client_is_told_whose_tokens_it_gets_and_who_hands_that_back_is_promised_nothing_false() -> None:
    """The first verifier is lost and the only other one has another fingerprint; then the gateway is lost too."""
    first, reserve = FakeVerifier(SCRIPT, hurt=Hurt.DIE, hurt_after=3), FakeVerifier(SCRIPT, identity=OTHER)
    async with gateway_over(first, reserve) as under_test:
        events = await stream(under_test)
        told = [delta.fingerprint for delta in deltas(events) if delta.token_ids]
        so_far = AnswerSoFar(REQUEST)
        for event in events[:6]:
            so_far.add(event)
        assert started(events).fingerprint == MINE
        assert told[:3] == ["", "", ""]
        assert told[3] == OTHER.fingerprint
        assert set(told[4:]) == {""}
        again = so_far.again()
        assert set(again.resume_fingerprints) == {MINE, OTHER.fingerprint}
        rest = await stream(under_test, again)
    assert tokens_of(events[:6]) + tokens_of(rest) == SCRIPT
    assert started(rest).fingerprint == OTHER.fingerprint
    assert not finished(rest).exact


@pytest.mark.parametrize("is_full", [False, True])
async def test_the_rest_goes_where_its_beginning_was_made_while_somebody_there_takes_it(is_full: bool) -> None:
    """Requests go to the first one's fingerprint; the other is a reserve here, and is what made the beginning at another gateway."""
    first, reserve = FakeVerifier(SCRIPT), FakeVerifier(SCRIPT, identity=OTHER, refuse=Overloaded("full") if is_full else None)
    async with gateway_over(first, reserve) as under_test:
        again = replace(REQUEST, resume_token_ids=tuple(SCRIPT[:3]), resume_fingerprints=(OTHER.fingerprint,))
        events = await stream(under_test, again)
        for unclear in ((), (MINE, OTHER.fingerprint)):
            assert started(await stream(under_test, replace(again, resume_fingerprints=unclear))).fingerprint == MINE
        assert started(await stream(under_test)).fingerprint == MINE
    assert tokens_of(events) == SCRIPT[3:]
    assert started(events).fingerprint == (MINE if is_full else OTHER.fingerprint)
    assert started(events).exact is finished(events).exact is not is_full


class Stalling(FakeVerifier):
    """Its first stream says no more after `hurt_after` tokens; every other one is whole."""

    async def _hurt(self, num_tokens: int) -> None:
        if num_tokens >= self.hurt_after and not self.reached.is_set():
            self.reached.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("kind", ["tokens", "flag"])
async def test_a_request_asked_again_at_its_gateway_takes_the_old_call_over(kind: str) -> None:
    """The client's link broke and the gateway has not noticed: the old call lives, and its session with it."""
    fake = Stalling(SCRIPT, hurt_after=3)
    request = replace(REQUEST, request_id="mine")
    async with gateway_over(fake, limits=GatewayLimits(max_live_requests=1, max_live_samples=1)) as under_test:
        running = asyncio.ensure_future(stream(under_test, request))
        await fake.reached.wait()
        with pytest.raises(AlreadyExists, match="'mine' is live already"):
            await stream(under_test, request)
        again = replace(request, takes_over=True) if kind == "flag" else replace(request, resume_token_ids=tuple(SCRIPT[:3]))
        events = await stream(under_test, again)
        assert tokens_of(events) == SCRIPT[0 if kind == "flag" else 3 :]
        with pytest.raises(Cancelled, match="'mine' was taken over"):
            await running
        await fake.wait_live(0)
        await under_test.idle()
    assert len(fake.starts) == 2


@pytest.mark.parametrize("num_done", mostly_slow([0, 7, *(at for at in range(len(SCRIPT)) if at not in (0, 7))], 2))
async def test_a_stream_that_resumes_by_itself_is_one_answer_wherever_its_gateway_is_lost(num_done: int) -> None:
    whole = await undisturbed()
    fake = Stalling(SCRIPT, hurt_after=num_done)
    async with two_gateways(fake) as (lost, other):
        addresses = (lost.gateway.address, other.gateway.address)
        begun, events = asyncio.Event(), list[AnswerEvent]()

        async def run() -> None:
            async for event in generate_resuming(addresses, replace(REQUEST, seed=None), TIMEOUT_S):
                events.append(event)
                begun.set()

        running = asyncio.ensure_future(run())
        await fake.reached.wait()
        await begun.wait()  # who has heard nothing asks anew, and may get another seed
        assert fake.num_live == 1
        await lost.gateway.stop(0.0)
        await running
        await fake.wait_live(0)
        await other.idle()
    assert [delta.text for delta in deltas(events) if delta.text] == [delta.text for delta in deltas(whole) if delta.text]
    assert tokens_of(events) == SCRIPT
    assert [type(event) for event in events if not isinstance(event, Delta)] == [Started, Finished, Done]
    assert finished(events).exact
    assert started(events).seed == fake.starts[0].noise.seed == fake.starts[1].noise.seed


async def test_a_stream_that_resumes_goes_round_gateways_that_are_not_there_and_gives_up_in_the_end() -> None:
    async with gateway_over(FakeVerifier(SCRIPT)) as under_test:
        events = await resumed(("127.0.0.1:1", under_test.gateway.address), REQUEST)
        assert tokens_of(events) == SCRIPT
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        await resumed(("127.0.0.1:1",), REQUEST, ResumeLimits(patience_s=0.3))


async def resumed(addresses: tuple[str, ...], request: GenerationRequest, limits: ResumeLimits | None = None) -> list[AnswerEvent]:
    return [event async for event in generate_resuming(addresses, request, TIMEOUT_S, limits)]


def started(events: list[AnswerEvent]) -> Started:
    assert isinstance(events[0], Started)
    return events[0]
