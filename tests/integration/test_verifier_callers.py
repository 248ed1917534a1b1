"""Callers of Decode that say what is no message, over real grpc: their answer ends there and then, and nothing of it stays.

pytest tests/integration/test_verifier_callers.py
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fakes_verifier_service import CALL_TIMEOUT_S, GatedEngine, serving, start
from outrider.v1 import verifier_pb2 as pb

GARBAGE = b"\xff\xff\xff\xff"
LONG = 1000


async def read_on(responses: AsyncIterator[pb.DecodeResponse], tokens: list[int]) -> None:
    async for response in responses:
        tokens += response.committed.token_ids


async def test_what_is_no_message_ends_an_answer_in_its_midst() -> None:
    """It was decoded to its end, sent whole, and then refused."""
    engine = GatedEngine()
    with tempfile.TemporaryDirectory(prefix="oc-") as folder:
        async with (
            serving(Path(folder), engine=engine, stream_interval_ms=0.0) as verifier,
            grpc.aio.insecure_channel(verifier.server.rpc.address) as channel,
        ):
            engine.gate()
            method: Any = channel.stream_stream("/outrider.v1.VerifierService/Decode", None, pb.DecodeResponse.FromString)
            call = method(timeout=CALL_TIMEOUT_S)
            await call.write(pb.DecodeRequest(start=start(max_tokens=LONG)).SerializeToString())
            responses = aiter(call)
            assert (await anext(responses)).HasField("started")
            assert (await anext(responses)).HasField("committed")
            await call.write(GARBAGE)
            await verifier.until_asked(1)  # to end it
            engine.allow(LONG)
            tokens: list[int] = []
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await read_on(responses, tokens)
            await verifier.until_idle()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "request: is no message that this method takes"
    assert len(tokens) < LONG // 2
