"""A gateway's samples at a verifier share one stream where the verifier carries calls, and have one each where it does not: same answers.

Every other test of the gateway runs over trunks, since the fake verifier carries calls unless it is told not to.
"""

from __future__ import annotations

import asyncio

import pytest

from fakes_verifier import IDLE_TIMEOUT_S, FakeVerifier, GatewayUnderTest, Hold, gateway_over, serving
from outrider.gateway.verifiers import Verifier
from outrider.types.generation import Delta, GenerationRequest

WAYS = pytest.mark.parametrize("carries_calls", [True, False], ids=["trunk", "stream_each"])
SCRIPT = list(range(40, 60))
NUM_REQUESTS = 16


async def asked(under_test: GatewayUnderTest, number: int) -> tuple[int, ...]:
    request = GenerationRequest(prompt="Say something:", seed=number, max_tokens=len(SCRIPT))
    deltas = [event async for event in under_test.client.generate(request) if isinstance(event, Delta)]
    return tuple(token for delta in deltas for token in delta.token_ids)


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
        before = local.stub
        info = await local.get_info()
        assert info.carries_calls
        assert local.stub is before
        await local.close()
