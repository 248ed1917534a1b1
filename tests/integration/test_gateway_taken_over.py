"""A request that takes its old call over, at a real verifier on a table instead of a model: sessions and KV blocks are held once.

pytest tests/integration/test_gateway_taken_over.py
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fakes import TableEngine, TruthTable
from fakes_failover import tokens_of
from fakes_verifier import IDLE_TIMEOUT_S, MODEL_DIR, GatewayUnderTest, fake_identity
from fakes_verifier_service import Serving, serving
from outrider.client import connect
from outrider.errors import Cancelled
from outrider.gateway.gateway import GatewayConfig, start_gateway
from outrider.resuming import AnswerSoFar
from outrider.types.generation import AnswerEvent, Delta, GenerationRequest
from outrider.types.identity import ModelIdentity
from outrider.types.step import StepPlan, StepResult
from outrider.v1 import identity_pb2

TABLE = TruthTable(vocab_size=2048, seed=5)
NUM_TOKENS = 600
STEP_S = 0.01
REQUEST = GenerationRequest(token_ids=(5, 6, 7), seed=1, max_tokens=NUM_TOKENS, ignore_eos=True, request_id="mine")
TRUTH = TABLE.answer([5, 6, 7], 3 + NUM_TOKENS, frozenset())


class SlowEngine(TableEngine):
    """Of a model that the gateway has the tokenizer of; a step takes a while, until `hurry` is set."""

    def __init__(self) -> None:
        super().__init__(TABLE)
        self.hurry = threading.Event()

    @property
    def identity(self) -> ModelIdentity:
        return fake_identity(max_context=self.limits.max_context, eos=(0,))

    def step(self, plan: StepPlan) -> StepResult:
        self.hurry.wait(STEP_S)
        return super().step(plan)


@dataclass
class Stack:
    verifier: Serving
    engine: SlowEngine
    gateway: GatewayUnderTest

    async def until(self, holds: Callable[[identity_pb2.LiveCounts], bool]) -> identity_pb2.LiveCounts:
        """What the verifier holds, as soon as it is so."""
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while not holds(live := (await self.verifier.info()).live):
                pass
            return live


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stacked(tmp_path) as found:
        yield found


@asynccontextmanager
async def stacked(folder: Path) -> AsyncIterator[Stack]:
    engine = SlowEngine()
    async with serving(folder, engine=engine) as verifier:
        gateway = await start_gateway(GatewayConfig(("127.0.0.1:0",), (f"unix:{folder}/v.sock",), MODEL_DIR))
        try:
            async with await connect(gateway.address) as client:
                yield Stack(verifier, engine, GatewayUnderTest(gateway, client, None))
        finally:
            engine.hurry.set()
            await gateway.stop(0.0)


async def test_sessions_and_blocks_of_the_old_call_are_free_while_the_new_one_goes_on(stack: Stack) -> None:
    old = stack.gateway.client.generate(REQUEST)
    so_far, before = AnswerSoFar(REQUEST), list[AnswerEvent]()
    while len(tokens_of(before)) < 5:
        before.append(await anext(old))
        so_far.add(before[-1])
    one = await stack.until(lambda live: live.sessions == 1)
    assert one.kv_blocks_used > 0
    new = stack.gateway.client.generate(so_far.again())
    after = [await anext(new), await anext(new)]
    assert isinstance(after[1], Delta)
    both = await stack.until(lambda live: live.sessions == 1)
    assert both.kv_blocks_used == one.kv_blocks_used, "what one request holds, not what two do"
    gateway = stack.gateway.gateway.servicer.live_counts()
    assert (gateway.sessions, gateway.streams) == (1, 1)
    with pytest.raises(Cancelled, match="'mine' was taken over"):
        _ = [event async for event in old]
    live = (await stack.verifier.info()).live
    assert (live.sessions, live.kv_blocks_used) == (1, one.kv_blocks_used), "the new one lives on"
    stack.engine.hurry.set()
    after += [event async for event in new]
    assert tokens_of(before) + tokens_of(after) == TRUTH
    await stack.gateway.idle()
    await stack.verifier.until_idle()


async def test_many_that_take_one_request_over_leave_one_and_the_right_tokens(stack: Stack) -> None:
    asked = [asyncio.ensure_future(whole(stack, replace(REQUEST, takes_over=True))) for _ in range(6)]
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        while sum(task.done() for task in asked) < len(asked) - 1:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=STEP_S)
    live = await stack.until(lambda live: live.sessions == 1)
    stack.engine.hurry.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, Cancelled) for answer in answers) == len(asked) - 1
    assert [answer for answer in answers if isinstance(answer, list)] == [TRUTH]
    assert live.kv_blocks_used > 0
    await stack.gateway.idle()
    await stack.verifier.until_idle()


async def whole(stack: Stack, request: GenerationRequest) -> list[int]:
    return tokens_of([event async for event in stack.gateway.client.generate(request, IDLE_TIMEOUT_S)])
