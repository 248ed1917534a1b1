"""Commits that travel together, over real grpc: fewer messages, the same tokens, and nothing but time is lost with those not yet sent.

pytest tests/integration/test_verifier_stream_interval.py
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import TableEngine
from fakes_verifier_service import CALL_TIMEOUT_S, TABLE, GatedEngine, Serving, serving, start, truth
from outrider.v1 import generation_pb2
from outrider.v1 import verifier_pb2 as pb
from verifier_service.settings import MAX_STREAM_INTERVAL_MS

PLAIN = generation_pb2.DraftOptions(off=True)
NUM_HELD = 8
MANY = 2000


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="oi-") as name:
        yield Path(name)


async def begun(verifier: Serving, message: pb.DecodeStart) -> tuple[object, list[int]]:
    """A stream of which the first commit has been read."""
    call = verifier.stub.Decode(timeout=CALL_TIMEOUT_S)
    await call.write(pb.DecodeRequest(start=message))
    assert (await call.read()).HasField("started")
    return call, list((await call.read()).committed.token_ids)


async def held(verifier: Serving, engine: GatedEngine, message: pb.DecodeStart) -> tuple[object, list[int]]:
    """A begun stream whose verifier has committed further tokens since, and sent none of them."""
    engine.gate()
    call, tokens = await begun(verifier, message)
    engine.allow(NUM_HELD)
    async with asyncio.timeout(CALL_TIMEOUT_S):
        while engine.num_made < 1 + NUM_HELD:
            await asyncio.sleep(0.001)
    return call, tokens


async def rest(call: object) -> list[list[int]]:
    """Tokens of each message that is left."""
    messages: list[list[int]] = []
    while (response := await call.read()).HasField("committed"):  # type: ignore[attr-defined]
        messages.append(list(response.committed.token_ids))
    assert response.HasField("finished")
    return messages


async def test_what_follows_fast_comes_in_one_message_with_the_end(folder: Path) -> None:
    engine = GatedEngine()
    async with serving(folder, engine=engine, stream_interval_ms=MAX_STREAM_INTERVAL_MS) as verifier:
        engine.gate()
        call, tokens = await begun(verifier, start(draft=PLAIN))
        engine.allow(MANY)
        messages = await rest(call)
    assert len(messages) == 1, "one for all that came within the interval"
    assert tokens + messages[0] == truth()


@pytest.mark.parametrize("takes_end", [False, True])
async def test_the_end_comes_with_the_last_tokens_to_whom_knows_it(folder: Path, takes_end: bool) -> None:
    async with serving(folder, engine=TableEngine(TABLE)) as verifier:
        call = verifier.stub.Decode(timeout=CALL_TIMEOUT_S)
        await call.write(pb.DecodeRequest(start=start(draft=PLAIN, takes_end=takes_end)))
        messages = [message async for message in call]
    last = messages[-1]
    assert last.WhichOneof("message") == ("committed" if takes_end else "finished")
    end = last.committed.end if takes_end else last.finished
    assert end.finish_reason == generation_pb2.FINISH_REASON_LENGTH
    assert end.statistics.num_rounds == len(truth())
    assert [message.committed.HasField("end") for message in messages[1:-1]] == [False] * (len(messages) - 2)
    assert [token for message in messages for token in message.committed.token_ids] == truth()


async def test_what_was_committed_and_not_sent_is_decoded_again_elsewhere(folder: Path) -> None:
    first, second = folder / "1", folder / "2"
    for each in (first, second):
        each.mkdir()
    engine = GatedEngine()
    async with serving(first, engine=engine, stream_interval_ms=MAX_STREAM_INTERVAL_MS) as lost:
        call, tokens = await held(lost, engine, start(draft=PLAIN))
        call.cancel()  # type: ignore[attr-defined]  # as a broken connection: the reader has the first message and no more
        engine.allow(MANY)
        await lost.until_idle()
    assert len(tokens) == 1
    async with serving(second, engine=TableEngine(TABLE)) as taker:
        onward = start(draft=PLAIN)
        onward.prefix.extend(tokens)
        call, more = await begun(taker, onward)
        tokens += more + [token for message in await rest(call) for token in message]
    assert tokens == truth()


async def test_a_drain_is_told_with_what_is_held(folder: Path) -> None:
    engine = GatedEngine()
    async with serving(folder, engine=engine, stream_interval_ms=MAX_STREAM_INTERVAL_MS) as verifier:
        call, tokens = await held(verifier, engine, start(draft=PLAIN, max_tokens=1000))
        draining = asyncio.ensure_future(verifier.server.drain(CALL_TIMEOUT_S))
        committed = (await call.read()).committed  # type: ignore[attr-defined]
        assert committed.draining
        tokens += committed.token_ids
        assert tokens == truth()[: len(tokens)]
        call.cancel()  # type: ignore[attr-defined]
        engine.allow(MANY)
        await draining
