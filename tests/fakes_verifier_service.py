"""A verifier service whole, over real grpc, on a table instead of a model, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest

from fakes import TableEngine, TruthTable
from outrider.engine.config import EngineConfig
from outrider.types.step import StepPlan, StepResult
from outrider.v1 import generation_pb2, sampling_pb2
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.verifier_pb2_grpc import VerifierServiceStub
from verifier_service.service import VerifierServer
from verifier_service.settings import DraftDefaults, VerifierSettings

TABLE = TruthTable(vocab_size=40, seed=3)
PROMPT = [5, 6, 7, 8]
CALL_TIMEOUT_S = 60.0


class GatedEngine(TableEngine):
    """From `gate` on it makes no step that is not allowed. num_made: of those."""

    def __init__(self) -> None:
        super().__init__(TABLE)
        self.num_made = 0
        self._allowed: threading.Semaphore | None = None

    def gate(self) -> None:
        """One step is allowed, and the verifier has measured its steps by now."""
        self._allowed = threading.Semaphore(1)

    def allow(self, num_steps: int) -> None:
        assert self._allowed is not None
        self._allowed.release(num_steps)

    def step(self, plan: StepPlan) -> StepResult:
        if self._allowed is None:
            return super().step(plan)
        assert self._allowed.acquire(timeout=CALL_TIMEOUT_S)
        result = super().step(plan)
        self.num_made += 1
        return result


@dataclass
class Serving:
    """A running verifier and a client of it."""

    server: VerifierServer
    engine: TableEngine
    stub: VerifierServiceStub

    async def info(self) -> pb.VerifierServiceGetInfoResponse:
        response: pb.VerifierServiceGetInfoResponse = await self.stub.GetInfo(pb.VerifierServiceGetInfoRequest())
        return response

    async def until_idle(self) -> None:
        """Return once nothing is held any more."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while True:
                live = (await self.info()).live
                num_drafter_sessions = self.server.scheduler.snapshot.num_drafter_sessions
                held = live.sessions, live.streams, live.kv_blocks_used, num_drafter_sessions, self.server.scheduler.sessions.has_ended
                if held == (0, 0, 0, 0, False):
                    return

    async def until_asked(self, num_starts: int) -> None:
        """Return once so many starts wait for the engine thread."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while len(self.server.scheduler.inbox) < num_starts:
                await asyncio.sleep(0)

    async def until_connected(self, endpoint: str) -> None:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while not any(pair.endpoint == endpoint and pair.connected for pair in (await self.info()).pairs):
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving(folder: Path, *drafters: str, engine: TableEngine | None = None, **changes: object) -> AsyncIterator[Serving]:
    engine = engine or TableEngine(TABLE)
    defaults = VerifierSettings(
        engine=EngineConfig("table"),
        listen=f"unix:{folder}/v.sock",
        drafters=drafters,
        draft=DraftDefaults(pacing="serial", draft_len=4),
        wait_drafters_s=5.0,
    )
    server = VerifierServer(replace(defaults, **changes), lambda: engine, lambda: None)  # type: ignore[arg-type]
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.rpc.address) as channel:
            yield Serving(server, engine, VerifierServiceStub(channel))  # type: ignore[no-untyped-call]
    finally:
        await server.rpc.stop(server.drain, 0.5)
        await server.stop()


def start(session_id: str = "s", max_tokens: int = 60, **fields: object) -> pb.DecodeStart:
    base = pb.DecodeStart(session_id=session_id, incarnation=1, prefix=PROMPT, num_prompt_tokens=len(PROMPT), max_tokens=max_tokens)
    base.sampling.CopyFrom(sampling_pb2.SamplingParams(temperature=0.0))
    base.MergeFrom(pb.DecodeStart(**fields))  # type: ignore[arg-type]
    return base


@dataclass
class Answer:
    tokens: list[int]
    origins: list[int]
    num_logprobs: int
    finished: pb.DecodeFinished


async def decode(serving: Serving, message: pb.DecodeStart) -> Answer:
    """One whole stream."""
    call = serving.stub.Decode(timeout=CALL_TIMEOUT_S)
    await call.write(pb.DecodeRequest(start=message))
    answer = Answer([], [], 0, pb.DecodeFinished())
    async for response in call:
        kind = response.WhichOneof("message")
        if kind == "committed":
            assert response.committed.begin == len(message.prefix) + len(answer.tokens)
            answer.tokens += response.committed.token_ids
            answer.origins += response.committed.origins
            answer.num_logprobs += len(response.committed.logprobs)
        elif kind == "finished":
            answer.finished = response.finished
    return answer


async def decode_until(serving: Serving, message: pb.DecodeStart, has_happened: Callable[[generation_pb2.DraftStatistics], bool]) -> None:
    """Decode the same request until its statistics show it (a busy machine may finish before a drafter has opened); each must be exact."""
    async with asyncio.timeout(CALL_TIMEOUT_S):
        for attempt in itertools.count():
            message.session_id = f"{message.session_id.partition('#')[0]}#{attempt}"
            answer = await decode(serving, message)
            assert answer.tokens == truth(message.max_tokens)
            if has_happened(answer.finished.statistics):
                return


def truth(max_tokens: int = 60, prompt: list[int] = PROMPT) -> list[int]:
    return TABLE.answer(prompt, len(prompt) + max_tokens, frozenset())


async def refusal(serving: Serving, message: pb.DecodeStart) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await decode(serving, message)
    return failure.value.code(), failure.value.details() or ""
