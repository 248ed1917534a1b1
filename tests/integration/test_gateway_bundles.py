"""Messages that travel together, over a real socket: to whom asked for it, in the order of the same answer to everybody else.

pytest tests/integration/test_gateway_bundles.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from fakes_verifier import FakeVerifier, Hold, gateway_over
from outrider.gateway.client_stream import ClientStream
from outrider.rpc.convert.bundle import TAKES_BUNDLES, unbundled
from outrider.v1 import generation_pb2 as pb

TOKENS = range(20, 28)
TIMEOUT_S = 10.0


async def answered(fake: FakeVerifier, request: pb.GenerateRequest, *, bundles: bool) -> list[pb.GenerateResponse]:
    """As they came, but for times."""
    async with gateway_over(fake) as under_test:
        call = under_test.stub.Generate(request, timeout=TIMEOUT_S, metadata=TAKES_BUNDLES if bundles else ())
        came = [message async for message in call]
    for finished in (each.finished for one in came for each in unbundled(one) if each.HasField("finished")):
        finished.ClearField("total_us")
        finished.ClearField("time_to_first_token_us")
    return came


def kinds(messages: list[pb.GenerateResponse]) -> list[list[str | None]]:
    return [[each.WhichOneof("event") for each in unbundled(message)] for message in messages]


def flat(messages: list[pb.GenerateResponse]) -> list[pb.GenerateResponse]:
    found = [each for message in messages for each in unbundled(message)]
    for each in found:
        each.ClearField("following")
    return found


REQUEST = pb.GenerateRequest(prompt="Say:", max_tokens=len(TOKENS), request_id="it")
REQUEST.sampling.seed = 7


@pytest.mark.parametrize("end_with_tokens", [False, True])
async def test_both_kinds_of_clients_are_told_the_same(end_with_tokens: bool) -> None:
    alone, together = [
        await answered(FakeVerifier(TOKENS, run_lens=(4,), end_with_tokens=end_with_tokens), REQUEST, bundles=bundles)
        for bundles in (False, True)
    ]
    assert kinds(alone) == [["started"], ["delta"], ["delta"], ["finished"], ["done"]]
    last = [["delta", "finished", "done"]] if end_with_tokens else [["delta"], ["finished", "done"]]
    assert kinds(together)[-len(last) :] == last
    assert len(together) < len(alone)
    assert flat(together) == flat(alone)


async def test_a_beginning_is_told_though_nothing_follows_for_long() -> None:
    fake = FakeVerifier(TOKENS, hold=Hold.AFTER_STARTED)
    async with gateway_over(fake) as under_test:
        call = under_test.stub.Generate(REQUEST, timeout=TIMEOUT_S, metadata=TAKES_BUNDLES)
        first = await anext(aiter(call))
        assert kinds([first]) == [["started"]]
        fake.release.set()
        rest = [message async for message in call]
    assert sum(len(each.delta.token_ids) for each in flat(rest)) == len(TOKENS)


async def test_a_beginning_that_waits_comes_before_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborted once the gateway has it: that the verifier has sent it says nothing of that."""
    fake = FakeVerifier(TOKENS, hold=Hold.AFTER_STARTED)
    came: list[pb.GenerateResponse] = []
    begun, write = asyncio.Event(), ClientStream.write

    async def noted(stream: ClientStream, *responses: pb.GenerateResponse) -> None:
        await write(stream, *responses)
        begun.set()

    monkeypatch.setattr(ClientStream, "write", noted)
    async with gateway_over(fake) as under_test:
        call = under_test.stub.Generate(REQUEST, timeout=TIMEOUT_S, metadata=TAKES_BUNDLES)
        reading = asyncio.ensure_future(_read_into(came, call))
        async with asyncio.timeout(TIMEOUT_S):
            await begun.wait()
        await under_test.stub.Abort(pb.AbortRequest(request_id="it"), timeout=TIMEOUT_S)
        with pytest.raises(grpc.aio.AioRpcError, match="was aborted"):
            await reading
        fake.release.set()
    assert kinds(came) == [["started"]]


async def _read_into(came: list[pb.GenerateResponse], call: AsyncIterator[pb.GenerateResponse]) -> None:
    async for message in call:
        came.append(message)


async def test_samples_keep_their_order() -> None:
    request = pb.GenerateRequest(n=3)
    request.MergeFrom(REQUEST)
    came = flat(await answered(FakeVerifier(TOKENS, run_lens=(3,)), request, bundles=True))
    assert [came[0].WhichOneof("event"), came[-1].WhichOneof("event")] == ["started", "done"]
    for index in range(3):
        own = [each for each in came[1:-1] if (each.delta if each.HasField("delta") else each.finished).index == index]
        assert [each.WhichOneof("event") for each in own] == ["delta"] * 3 + ["finished"]
        assert [token for each in own for token in each.delta.token_ids] == list(TOKENS)
