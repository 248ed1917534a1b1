"""Cancelled at every state, by every party, nothing stays: no request, no stream, no verifier session.

`gateway_over` asserts at its end that the gateway and every verifier hold nothing.

    pytest tests/integration/test_gateway_cancel.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from fakes_verifier import IDLE_TIMEOUT_S, FakeVerifier, GatewayUnderTest, Hold, gateway_over
from outrider.client import OutriderClient, connect
from outrider.errors import Cancelled, Overloaded, Unavailable
from outrider.gateway.limits import FailoverLimits, GatewayLimits
from outrider.rpc.status import DeadlinePassed
from outrider.rpc.turnover import FIRST_HELD_S
from outrider.telemetry import names
from outrider.types.generation import AnswerEvent, Delta, GenerationRequest, Started
from outrider.v1 import generation_pb2 as pb

REQUEST = GenerationRequest(prompt="hi", seed=1, request_id="it")
LETTERS = list(range(40, 60))
# Rows of log-probabilities that make every commit some 12 kB, so that a few fill a flow-control window.
WIDE_ROWS = 1500
NUM_WIDE = 300  # of them


async def consume(under_test: GatewayUnderTest, request: GenerationRequest, timeout_s: float | None = None) -> list[AnswerEvent]:
    return [event async for event in under_test.client.generate(request, timeout_s)]


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize("hold", Hold)
async def test_a_client_that_leaves_frees_everything_at_every_state(hold: Hold, num_samples: int) -> None:
    fake = FakeVerifier(LETTERS, hold=hold)
    async with gateway_over(fake) as under_test:
        task = asyncio.ensure_future(consume(under_test, replace(REQUEST, num_samples=num_samples)))
        await fake.wait_live(num_samples)
        await fake.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.wait_live(0)


async def streamed(client: OutriderClient) -> None:
    async for _ in client.generate(REQUEST):
        pass


async def at_once(client: OutriderClient) -> None:
    await client.generate_once(REQUEST)


@pytest.mark.parametrize("share_stream", [False, True])
@pytest.mark.parametrize("ask", [streamed, at_once])
async def test_who_reads_from_a_client_that_is_closed_is_told_so_and_not_cancelled(
    ask: Callable[[OutriderClient], Awaitable[None]], share_stream: bool
) -> None:
    fake = FakeVerifier(LETTERS, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake) as under_test:
        client = await connect(under_test.gateway.address, share_stream=share_stream)
        task = asyncio.ensure_future(ask(client))
        await fake.reached.wait()
        await client.close()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(task, IDLE_TIMEOUT_S)
        await fake.wait_live(0)


@pytest.mark.parametrize("hold", Hold)
async def test_abort_by_id_ends_the_stream_with_cancelled_at_every_state(hold: Hold) -> None:
    fake = FakeVerifier(LETTERS, hold=hold)
    async with gateway_over(fake) as under_test:
        task = asyncio.ensure_future(consume(under_test, REQUEST))
        await fake.reached.wait()
        await under_test.client.abort("it")
        with pytest.raises(Cancelled, match="'it' was aborted"):
            await task
        await fake.wait_live(0)


@pytest.mark.parametrize("answer_is_out", [False, True])
async def test_an_id_is_free_again_while_the_verifier_still_frees_the_session_before(answer_is_out: bool) -> None:
    leaving = asyncio.Event()

    class Slow(FakeVerifier):
        async def _count(self, session_id: str, change: int) -> None:
            if change < 0:
                leaving.set()
                await self.release.wait()
            await super()._count(session_id, change)

    fake = Slow(LETTERS)
    async with gateway_over(fake) as under_test:
        first = under_test.client.generate(REQUEST)
        assert isinstance(await anext(first), Started)
        if answer_is_out:  # the cancellation comes while the verifier frees the session, not while it answers
            await leaving.wait()
        await first.aclose()  # type: ignore[attr-defined]
        await under_test.idle()
        second = under_test.client.generate(REQUEST)
        assert isinstance(await anext(second), Started)
        fake.release.set()
        async for _ in second:
            pass


@pytest.mark.parametrize("hold", Hold)
async def test_a_deadline_that_passes_frees_everything_at_every_state(hold: Hold) -> None:
    fake = FakeVerifier(LETTERS, hold=hold)
    async with gateway_over(fake) as under_test:
        with pytest.raises(DeadlinePassed):
            await consume(under_test, REQUEST, timeout_s=0.3)
        await fake.wait_live(0)


async def test_a_request_whose_deadline_passed_is_counted_as_such_with_its_first_token() -> None:
    """Those that were too slow for their clients are the ones that an operator looks for."""
    fake = FakeVerifier(LETTERS, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake) as under_test:
        with pytest.raises(DeadlinePassed):
            await consume(under_test, REQUEST, timeout_s=2.0)
        await fake.wait_live(0)
        await under_test.gateway.servicer.wait_idle()
        found = {series.metric: series for series in under_test.gateway.servicer.metrics.snapshot() if series.counts}
    assert found[names.REQUEST_SECONDS].label_values[1] == "DEADLINE_EXCEEDED"
    assert sum(found[names.FIRST_TOKEN_SECONDS].counts) == 1


async def test_the_deadline_travels_to_the_verifier() -> None:
    remaining: list[float | None] = []

    class Watching(FakeVerifier):
        async def Decode(self, requests: AsyncIterator[object], context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
            remaining.append(context.time_remaining())
            await super().Decode(requests, context)  # type: ignore[arg-type]

    async with gateway_over(Watching(LETTERS)) as under_test:
        await consume(under_test, REQUEST, timeout_s=5.0)
        await consume(under_test, REQUEST)
    assert remaining[0] is not None
    assert 0 < remaining[0] < 5.1, "timeouts travel in steps of some milliseconds"
    assert remaining[1] is None


async def test_one_sample_refused_closes_the_others_and_refuses_the_request() -> None:
    class Half(FakeVerifier):
        async def _held(self, at: Hold) -> None:
            if at is Hold.BEFORE_STARTED and self.starts[-1].noise.sample_index == 1:
                raise Overloaded("no room for the second")
            await super()._held(at)

    async with gateway_over(Half(LETTERS)) as under_test:
        with pytest.raises(Overloaded, match="no room for the second"):
            await consume(under_test, replace(REQUEST, num_samples=3))


@pytest.mark.parametrize(
    ("first_s", "second_s", "told_s"), [(2.0, 0.5, 0.5), (0.5, 2.0, 0.5), (None, 0.5, 0.5), (0.5, None, 0.5), (None, None, None)]
)
async def test_when_all_are_full_the_client_is_told_the_soonest_time(
    first_s: float | None, second_s: float | None, told_s: float | None
) -> None:
    verifiers = [FakeVerifier(LETTERS, refuse=Overloaded("full", pause_s)) for pause_s in (first_s, second_s)]
    async with gateway_over(*verifiers) as under_test:
        for _ in range(2):  # who is asked first takes turns
            with pytest.raises(Overloaded, match="full") as refused:
                await consume(under_test, REQUEST)
            assert refused.value.retry_after_s == told_s


async def test_a_full_gateway_says_when_to_come_again() -> None:
    fake = FakeVerifier(LETTERS, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake, limits=GatewayLimits(max_live_requests=1)) as under_test:
        first = asyncio.ensure_future(consume(under_test, REQUEST))
        await fake.wait_live(1)
        with pytest.raises(Overloaded, match="requests are live") as refused:
            await consume(under_test, replace(REQUEST, request_id="other"))
        assert refused.value.retry_after_s == FIRST_HELD_S
        fake.release.set()
        await first


async def test_one_sample_that_fails_ends_the_others() -> None:
    fake = FakeVerifier(LETTERS, fail=Unavailable("one is gone"), hold=None)
    async with gateway_over(fake) as under_test:
        with pytest.raises(Unavailable, match="one is gone"):
            await consume(under_test, replace(REQUEST, num_samples=3))
        await fake.wait_live(0)


async def test_the_only_verifier_that_dies_for_good_ends_its_requests_with_unavailable() -> None:
    fake = FakeVerifier(LETTERS, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake, failover=FailoverLimits(place_timeout_s=0.5)) as under_test:
        running = under_test.client.generate(REQUEST)
        assert isinstance(await anext(running), Started)
        assert isinstance(await anext(running), Delta)
        assert fake.server is not None
        await fake.server.stop(grace_s=0.0)
        with pytest.raises(Unavailable):
            await anext(running)


async def test_a_verifier_that_cancels_what_nobody_cancelled_makes_the_answer_unavailable() -> None:
    async with gateway_over(FakeVerifier(LETTERS, fail=Cancelled("closing down"))) as under_test:
        with pytest.raises(Unavailable, match="closing down"):
            await consume(under_test, REQUEST)


def wide() -> FakeVerifier:
    """Whose answer no windows hold."""
    return FakeVerifier([40] * NUM_WIDE, logprob_rows=WIDE_ROWS)


async def unread_call(under_test: GatewayUnderTest, fake: FakeVerifier, **fields: Any) -> Any:
    """Its client has read that it was started and reads no more; its verifier is held back by now."""
    call = under_test.stub.Generate(pb.GenerateRequest(prompt="hi", top_logprobs=1, max_tokens=NUM_WIDE, **fields))
    assert (await call.read()).HasField("started")
    await asyncio.wait_for(fake.stalled.wait(), IDLE_TIMEOUT_S)
    return call


async def told(call: Any) -> grpc.aio.AioRpcError:
    """How a call ends that is read on, which nobody keeps waiting for."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(_count(call), IDLE_TIMEOUT_S)
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    return caught.value


async def test_a_slow_reader_holds_the_verifier_back_and_can_still_be_aborted() -> None:
    fake = wide()
    async with gateway_over(fake) as under_test:
        call = await unread_call(under_test, fake, request_id="slow")
        assert fake.num_commits < 3 * GatewayLimits().max_queued_events, "the queue and two flow-control windows, no more"
        assert under_test.gateway.servicer.live_counts().queued <= GatewayLimits().max_queued_events
        await under_test.client.abort("slow")
        await fake.wait_live(0)
        await under_test.idle()
        assert "'slow' was aborted" in str((await told(call)).details())


async def _count(call: grpc.aio.UnaryStreamCall) -> int:  # type: ignore[type-arg]
    return len([message async for message in _rest(call)])


async def test_a_slow_reader_that_reads_on_gets_everything() -> None:
    fake = wide()
    async with gateway_over(fake) as under_test:
        call = await unread_call(under_test, fake)
        kinds = [message.WhichOneof("event") async for message in _rest(call)]
    assert kinds == ["delta"] * NUM_WIDE + ["finished", "done"]


@pytest.mark.parametrize("num_samples", [1, 2])
async def test_who_stays_and_takes_nothing_is_not_waited_for_without_end(num_samples: int) -> None:
    fake = wide()
    async with gateway_over(fake, limits=GatewayLimits(max_unread_s=0.4)) as under_test:
        call = await unread_call(under_test, fake, n=num_samples)
        await fake.wait_live(0)
        await under_test.idle()
        assert "has taken nothing of its answer for 0.4 s" in str((await told(call)).details())


async def _rest(call: Any) -> AsyncIterator[pb.GenerateResponse]:
    while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        yield message


async def test_many_clients_that_come_and_go_leave_nothing() -> None:
    fake = FakeVerifier(LETTERS, run_lens=(1, 3, 2))

    async def visit(under_test: GatewayUnderTest, index: int) -> None:
        """Leave after `index % 9` events, or stay to the end."""
        running = under_test.client.generate(replace(REQUEST, request_id="", num_samples=1 + index % 2))
        for _ in range(index % 9):
            await anext(running)
        await running.aclose()  # type: ignore[attr-defined]

    async with gateway_over(fake) as under_test:
        await asyncio.gather(*(visit(under_test, index) for index in range(36)))
        await under_test.idle()
        assert len(await consume(under_test, REQUEST)) > 3


async def test_a_drain_lets_live_answers_finish() -> None:
    fake = FakeVerifier(LETTERS, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake) as under_test:
        task = asyncio.ensure_future(consume(under_test, REQUEST))
        await fake.reached.wait()
        draining = asyncio.ensure_future(under_test.gateway.servicer.drain(grace_s=IDLE_TIMEOUT_S))
        fake.release.set()
        await draining
        assert "".join(event.text for event in await task if isinstance(event, Delta))


async def test_a_drain_ends_what_does_not_finish_within_its_grace() -> None:
    fake = FakeVerifier(LETTERS, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake) as under_test:
        task = asyncio.ensure_future(consume(under_test, REQUEST))
        await fake.reached.wait()
        await under_test.gateway.servicer.drain(grace_s=0.0)
        with pytest.raises(Unavailable, match="shutting down"):
            await task


async def test_a_drain_that_is_cut_short_tells_clients_to_go_on_elsewhere() -> None:
    fake = FakeVerifier(LETTERS, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake) as under_test:
        task = asyncio.ensure_future(consume(under_test, REQUEST))
        await fake.reached.wait()
        draining = asyncio.ensure_future(under_test.gateway.servicer.drain(grace_s=IDLE_TIMEOUT_S))
        await asyncio.sleep(0)
        draining.cancel()
        with pytest.raises(Unavailable, match="shutting down"):
            await task
