"""Who watches over a gateway's verifiers goes on watching, whatever a topology says in the midst of it, and knows what each holds now.

Run: pytest tests/integration/test_gateway_watch.py
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from fakes_verifier import IDLE_TIMEOUT_S, FakeVerifier, fake_identity, gateway_over, serving
from outrider.errors import Unavailable
from outrider.gateway import verifiers
from outrider.gateway.topology import Topology
from outrider.gateway.verifiers import MAX_MISSED_TOPOLOGIES, Verifier, VerifierPool
from outrider.types.generation import GenerationRequest

GONE = "127.0.0.1:1"


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_verifier_may_leave_the_fleet_in_the_turn_in_which_it_is_asked_anew(
    num_turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifiers, "INFO_TIMEOUT_S", 0.1)  # nobody answers at GONE, and each round waits for that
    fake, readiness = FakeVerifier([5, 3]), asyncio.Queue[bool]()
    async with serving(fake) as address:
        pool = VerifierPool((address,))
        await pool.connect(IDLE_TIMEOUT_S)
        gone = Verifier(GONE)
        gone.num_missed = MAX_MISSED_TOPOLOGIES - 1
        pool._verifiers += (gone,)
        pool.watch(readiness.put, 0.0)
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await pool.follow(Topology(1, ()))
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            assert [await readiness.get() for _ in range(3)] == [True] * 3, "it goes on asking"
            await pool.follow(Topology(2, ()))
            while len(pool._verifiers) > 1:  # one that is being asked is forgotten with a later topology
                await pool.follow(Topology(3, ()))
                await readiness.get()
        await pool.close()
        await gone.close()


async def test_a_watch_that_ends_by_a_fault_says_so(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    async def fail(is_ready: bool) -> None:
        ended.set()
        raise ValueError("a fault of ours")

    async with serving(FakeVerifier([5, 3])) as address:
        pool = VerifierPool((address,))
        await pool.connect(IDLE_TIMEOUT_S)
        pool.watch(fail, 0.0)
        await asyncio.wait_for(ended.wait(), IDLE_TIMEOUT_S)
        await pool.close()
    assert "watched over no more" in caplog.text
    assert "a fault of ours" in caplog.text


async def test_one_that_stays_away_is_told_of_once_and_so_is_its_return(caplog: pytest.LogCaptureFixture) -> None:
    fake, readiness = FakeVerifier([5, 3]), asyncio.Queue[bool]()
    async with serving(fake) as address:
        pool = VerifierPool((address,))
        await pool.connect(IDLE_TIMEOUT_S)
        fake.refuse_info = Unavailable("loading")
        with caplog.at_level(logging.INFO, logger=verifiers.__name__):
            pool.watch(readiness.put, 0.0)
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                assert [await readiness.get() for _ in range(5)][-3:] == [False] * 3
                fake.refuse_info = None
                while not await readiness.get():
                    pass
        await pool.close()
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"verifier {address} is left out: loading", f"verifier {address} answers again"]


async def test_contexts_are_those_of_verifiers_that_take_requests_now() -> None:
    fakes = [FakeVerifier([5, 3], identity=fake_identity(max_context=context)) for context in (400, 300)]
    readiness = asyncio.Queue[bool]()
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(fake)) for fake in fakes]
        pool = VerifierPool(addresses)
        await pool.connect(IDLE_TIMEOUT_S)
        assert sorted(pool.contexts) == [300, 400]
        fakes[0].identity = fake_identity(max_context=200)  # as if it were restarted with a smaller cache
        pool.watch(readiness.put, 0.0)
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while sorted(pool.contexts) != [200, 300]:
                await readiness.get()
            fakes[1].refuse_info = Unavailable("loading")
            while sorted(pool.contexts) != [200]:
                await readiness.get()
            fakes[1].refuse_info, fakes[1].identity = None, replace(fakes[1].identity, fingerprint="ee" * 16)
            while not all(one.identity for one in pool._verifiers):
                await readiness.get()
        assert sorted(pool.contexts) == [200], "a reserve takes no requests"
        pool._verifiers[0].draining = True
        assert not pool.contexts, "nor does one that drains"
        await pool.close()


@pytest.mark.parametrize("contexts", [(400, 300), (300, 400)])
async def test_an_answer_without_a_length_may_go_on_at_any_verifier_that_takes_its_prompt(contexts: tuple[int, int]) -> None:
    fakes = [FakeVerifier([5, 3], identity=fake_identity(max_context=context)) for context in contexts]
    async with gateway_over(*fakes) as under_test:
        answered = [await under_test.client.generate_once(GenerationRequest(prompt="hi")) for _ in contexts]
        info = await under_test.client.model_info()
    starts = [start for fake in fakes for start in fake.starts]
    assert len(starts) == len(answered) == 2, "they take turns"
    assert [start.num_prompt_tokens + start.max_tokens for start in starts] == [300, 300]
    assert info.max_completion_tokens == 399
