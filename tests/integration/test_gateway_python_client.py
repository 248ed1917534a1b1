"""What the Python client says of values and calls that cannot be: errors of ours, whichever way its streams go.

pytest tests/integration/test_gateway_python_client.py
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fakes_verifier import FakeVerifier, gateway_over
from outrider.client import OutriderClient, connect
from outrider.errors import InvalidRequest, Unavailable
from outrider.resuming import generate_resuming
from outrider.rpc.status import DeadlinePassed
from outrider.types.generation import AnswerEvent, ChatMessage, GenerationRequest

EOS = 3
REQUEST = GenerationRequest(prompt="hi", seed=7)
WAYS = pytest.mark.parametrize("share_stream", [False, True])
Call = Callable[[OutriderClient], Awaitable[object]]


@asynccontextmanager
async def served(*, share_stream: bool) -> AsyncIterator[OutriderClient]:
    async with (
        gateway_over(FakeVerifier([EOS])) as under_test,
        await connect(under_test.gateway.address, share_stream=share_stream) as client,
    ):
        yield client


async def events(client: OutriderClient, request: Any = REQUEST, timeout_s: float | None = 10.0) -> list[AnswerEvent]:
    return [event async for event in client.generate(request, timeout_s)]


async def resumed(address: str, timeout_s: float | None) -> list[AnswerEvent]:
    return [event async for event in generate_resuming((address,), REQUEST, timeout_s)]


UNSENDABLE: list[tuple[Call, str]] = [
    (lambda client: client.tokenize("\ud800"), "text"),
    (lambda client: client.tokenize(5), "text"),  # type: ignore[arg-type]
    (lambda client: client.tokenize_chat([{"role": "user", "content": "x"}]), "messages[0]"),  # type: ignore[list-item]
    (lambda client: client.tokenize_chat(5), "messages"),  # type: ignore[arg-type]
    (lambda client: client.abort("\ud800"), "request_id"),
    (lambda client: events(client, GenerationRequest(messages=({"role": "user"},))), "messages[0]"),  # type: ignore[arg-type]
    (lambda client: events(client, GenerationRequest(messages=(ChatMessage("user", "x"), ("user", "x")))), "messages[1]"),  # type: ignore[arg-type]
    (lambda client: events(client, GenerationRequest(prompt="x", sampling={"temperature": 0.0})), "request"),  # type: ignore[arg-type]
    (lambda client: client.generate_once(GenerationRequest(prompt="\ud800")), "request"),
]


async def test_a_value_that_cannot_be_sent_is_refused_by_name() -> None:
    async with served(share_stream=False) as client:
        for call, field in UNSENDABLE:
            with pytest.raises(InvalidRequest) as refusal:
                await call(client)
            assert refusal.value.field == field


@WAYS
@pytest.mark.parametrize("timeout_s", [1e9, 1e12, 1e300, math.inf])
async def test_an_infinite_timeout_is_none_at_all_and_so_is_one_that_nobody_sees_pass(share_stream: bool, timeout_s: float) -> None:
    async with served(share_stream=share_stream) as client:
        assert len(await events(client, timeout_s=timeout_s)) == len(await events(client, timeout_s=None))
        assert (await client.generate_once(REQUEST, timeout_s)).samples


@WAYS
@pytest.mark.parametrize("timeout_s", [math.nan, -1.0, -math.inf])
async def test_a_timeout_that_is_no_time_is_refused_by_name(share_stream: bool, timeout_s: float) -> None:
    async with served(share_stream=share_stream) as client:
        for asked in (events(client, timeout_s=timeout_s), client.generate_once(REQUEST, timeout_s), resumed(client.address, timeout_s)):
            with pytest.raises(InvalidRequest, match=r"^timeout_s: must be at least 0"):
                await asked
        assert await events(client)


async def test_a_timeout_of_nothing_has_passed() -> None:
    async with served(share_stream=False) as client:
        with pytest.raises(DeadlinePassed):
            await events(client, timeout_s=0.0)
        assert await resumed(client.address, math.inf)


@WAYS
async def test_a_closed_client_says_so(share_stream: bool) -> None:
    calls: list[Call] = [
        events,
        lambda client: client.generate_once(REQUEST),
        lambda client: client.abort("x"),
        lambda client: client.tokenize("x"),
        lambda client: client.model_info(),
    ]
    async with served(share_stream=share_stream) as client:
        await events(client)
        await client.close()
        for call in calls:
            with pytest.raises(Unavailable, match="was closed"):
                await call(client)
