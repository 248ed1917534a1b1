"""A gateway's samples at a verifier share one stream where the verifier carries calls, and have one each where it does not; a client's
requests at a gateway share one where it wishes so: same answers, and each can be left by itself.

Every other test of the gateway runs over trunks to its verifiers, since the fake verifier carries calls unless it is told not to.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from fakes_verifier import IDLE_TIMEOUT_S, FakeVerifier, GatewayUnderTest, Hold, gateway_over, serving
from outrider.client import OutriderClient, connect
from outrider.errors import DoesNotFit, InvalidRequest, Unavailable
from outrider.gateway.verifiers import Verifier
from outrider.rpc.channel import ChannelLimits
from outrider.rpc.in_process_call import InProcessCall
from outrider.rpc.server import ServerLimits
from outrider.rpc.status import DeadlinePassed
from outrider.rpc.trunk_channel import LARGE_BYTES
from outrider.types.generation import Delta, GenerationRequest

WAYS = pytest.mark.parametrize("carries_calls", [True, False], ids=["trunk", "stream_each"])
SCRIPT = list(range(40, 60))
NUM_REQUESTS = 16


def request(number: int) -> GenerationRequest:
    return GenerationRequest(prompt="Say something:", seed=number, max_tokens=len(SCRIPT))


async def answered(client: OutriderClient, number: int) -> tuple[int, ...]:
    deltas = [event async for event in client.generate(request(number)) if isinstance(event, Delta)]
    return tuple(token for delta in deltas for token in delta.token_ids)


async def asked(under_test: GatewayUnderTest, number: int) -> tuple[int, ...]:
    return await answered(under_test.client, number)


async def begin_for_ever(client: OutriderClient) -> None:
    """Until a request is refused."""
    while True:
        async with aclosing(client.generate(request(2))) as events:  # type: ignore[type-var]
            await anext(events)


@WAYS
async def test_requests_at_once_share_a_stream_where_there_is_a_trunk(*, carries_calls: bool) -> None:
    fake = FakeVerifier(SCRIPT, hold=Hold.AFTER_FIRST_COMMIT, carries_calls=carries_calls)
    async with gateway_over(fake) as under_test:
        asking = [asyncio.ensure_future(asked(under_test, number)) for number in range(NUM_REQUESTS)]
        await fake.wait_live(NUM_REQUESTS)
        assert fake.server is not None
        assert (fake.server.trunks.num_calls if fake.server.trunks is not None else 0) == (NUM_REQUESTS if carries_calls else 0)
        fake.release.set()
        answers = await asyncio.wait_for(asyncio.gather(*asking), IDLE_TIMEOUT_S)
        assert answers == [tuple(SCRIPT)] * NUM_REQUESTS
        await under_test.idle()
        await fake.wait_live(0)


@pytest.mark.parametrize("order", [(True, False), (False, True)], ids=["older", "newer"])
async def test_a_verifier_may_be_replaced_by_an_older_or_a_newer_one(order: tuple[bool, bool]) -> None:
    first, second = (FakeVerifier(SCRIPT, carries_calls=carries_calls) for carries_calls in order)
    async with serving(first) as address, gateway_over(verifiers=(address,)) as under_test:
        assert await asked(under_test, 1) == tuple(SCRIPT)
        assert first.server is not None
        await first.server.stop(grace_s=0.0)
        async with serving(second, address):
            assert await asyncio.wait_for(asked(under_test, 2), IDLE_TIMEOUT_S) == tuple(SCRIPT)
            assert len(second.starts) == 1
            await under_test.idle()


async def test_a_verifier_of_this_process_needs_no_trunk() -> None:
    fake = FakeVerifier(SCRIPT)
    async with serving(fake):
        assert fake.server is not None
        local = Verifier("here", channel=fake.server.in_process_channel())
        assert (await local.get_info()).carries_calls
        call = local.stub.Decode()
        assert isinstance(call, InProcessCall)
        call.cancel()
        await local.close()


async def test_a_clients_requests_share_a_stream_where_it_wishes_so_and_one_of_them_may_leave() -> None:
    fake = FakeVerifier(SCRIPT, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake) as under_test, await connect(under_test.gateway.address, share_stream=True) as client:
        asking = [asyncio.ensure_future(answered(client, number)) for number in range(NUM_REQUESTS)]
        leaving = aiter(client.generate(request(99)))
        while not isinstance(await anext(leaving), Delta):
            pass
        await fake.wait_live(NUM_REQUESTS + 1)
        await leaving.aclose()  # type: ignore[attr-defined]
        await fake.wait_live(NUM_REQUESTS)
        fake.release.set()
        assert await asyncio.wait_for(asyncio.gather(*asking), IDLE_TIMEOUT_S) == [tuple(SCRIPT)] * NUM_REQUESTS
        await under_test.idle()


async def test_a_refusal_on_a_shared_stream_is_one_requests_own() -> None:
    fake = FakeVerifier(SCRIPT, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake) as under_test, await connect(under_test.gateway.address, share_stream=True) as client:
        asking = asyncio.ensure_future(answered(client, 1))
        await fake.wait_live(1)
        with pytest.raises(InvalidRequest) as refused:
            await anext(client.generate(replace(request(2), model="another")))
        assert refused.value.field == "model"
        with pytest.raises(DeadlinePassed):
            async for _ in client.generate(request(3), timeout_s=0.05):
                pass
        await fake.wait_live(1)
        fake.release.set()
        assert await asyncio.wait_for(asking, IDLE_TIMEOUT_S) == tuple(SCRIPT)
        await under_test.idle()


async def test_a_request_larger_than_its_client_may_send_is_refused_alone() -> None:
    fake = FakeVerifier(SCRIPT, hold=Hold.AFTER_FIRST_COMMIT)
    limits = ChannelLimits(max_message_bytes=LARGE_BYTES // 2)
    async with gateway_over(fake) as under_test, await connect(under_test.gateway.address, limits=limits, share_stream=True) as client:
        asking = asyncio.ensure_future(answered(client, 1))
        await fake.wait_live(1)
        with pytest.raises(DoesNotFit, match="bytes is more than"):
            await anext(client.generate(replace(request(2), prompt="x" * (LARGE_BYTES // 2))))
        fake.release.set()
        assert await asyncio.wait_for(asking, IDLE_TIMEOUT_S) == tuple(SCRIPT)
        await under_test.idle()


async def test_a_request_larger_than_its_gateway_takes_is_refused_alone() -> None:
    fake = FakeVerifier(SCRIPT, hold=Hold.AFTER_FIRST_COMMIT)
    server = ServerLimits(max_message_bytes=2 * LARGE_BYTES)
    async with gateway_over(fake, server=server) as under_test, await connect(under_test.gateway.address, share_stream=True) as client:
        asking = asyncio.ensure_future(answered(client, 1))
        await fake.wait_live(1)
        with pytest.raises(DoesNotFit, match="larger than max"):
            await anext(client.generate(replace(request(2), prompt="x" * 2 * LARGE_BYTES)))
        fake.release.set()
        assert await asyncio.wait_for(asking, IDLE_TIMEOUT_S) == tuple(SCRIPT)
        await under_test.idle()


async def test_a_gateway_that_drains_lets_requests_on_a_shared_stream_finish() -> None:
    fake = FakeVerifier(SCRIPT, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake) as under_test, await connect(under_test.gateway.address, share_stream=True) as client:
        asking = asyncio.ensure_future(answered(client, 1))
        await fake.wait_live(1)
        stopping = asyncio.ensure_future(under_test.gateway.stop(IDLE_TIMEOUT_S))
        with pytest.raises(Unavailable):
            await asyncio.wait_for(begin_for_ever(client), IDLE_TIMEOUT_S)
        fake.release.set()
        assert await asyncio.wait_for(asking, IDLE_TIMEOUT_S) == tuple(SCRIPT)
        await asyncio.wait_for(stopping, IDLE_TIMEOUT_S)
