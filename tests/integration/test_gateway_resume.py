"""A client that loses its gateway asks another for the rest, over real sockets.

pytest tests/integration/test_gateway_resume.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from fakes_failover import (
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
from fakes_verifier import MODEL_DIR, FakeVerifier, GatewayUnderTest, Hurt, gateway_over, serving
from outrider.client import connect
from outrider.gateway.gateway import GatewayConfig, start_gateway


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
