"""A verifier that drains, over real grpc: it says so, long answers may leave, short ones finish."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from fakes import TableEngine
from fakes_verifier_service import CALL_TIMEOUT_S, TABLE, decode, serving, start, truth
from outrider.types.step import StepPlan, StepResult
from outrider.v1 import verifier_pb2 as pb


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="ov-") as name:
        yield Path(name)


class SlowEngine(TableEngine):
    """A step takes a millisecond of the engine thread."""

    def step(self, plan: StepPlan) -> StepResult:
        threading.Event().wait(0.001)
        return super().step(plan)


async def test_a_drain_lets_short_answers_finish_and_ends_long_ones(folder: Path) -> None:
    engine = SlowEngine(TABLE)
    async with serving(folder, engine=engine) as verifier:
        short = asyncio.ensure_future(decode(verifier, start("short", 20)))
        long = asyncio.ensure_future(decode(verifier, start("long", 3000)))
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while verifier.server.scheduler.snapshot.num_sessions < 2:
                await asyncio.sleep(0)
        await verifier.server.drain(1.5)
        assert (await short).tokens == truth(20)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await long
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        await verifier.until_idle()


async def test_a_verifier_that_drains_says_so_with_its_commits_and_is_done_when_it_is_left(folder: Path) -> None:
    async with serving(folder, engine=SlowEngine(TABLE)) as verifier:
        call = verifier.stub.Decode(timeout=CALL_TIMEOUT_S)
        await call.write(pb.DecodeRequest(start=start("long", 3000)))
        assert (await call.read()).HasField("started")
        assert not (await call.read()).committed.draining
        draining = asyncio.ensure_future(verifier.server.drain(3600.0))
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while not (await call.read()).committed.draining:
                assert not draining.done()
            assert (await call.read()).committed.token_ids, "it decodes on"
            call.cancel()
            await draining
        await verifier.until_idle()
