"""Whom a gateway waits for when it starts: one verifier, and a moment for the others.

pytest tests/integration/test_gateway_first_verifiers.py
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinated_gateways import PATIENT, REQUEST
from fakes_coordinator import WAIT_S, FakeFleet, coordinator_over, fake_replica
from fakes_verifier import MODEL_DIR, FakeVerifier, fake_identity, gateway_over, serving
from outrider.errors import OutriderError, Unavailable
from outrider.gateway import first_answers
from outrider.gateway.gateway import Gateway, GatewayConfig, start_gateway
from outrider.gateway.verifiers import Verifier, VerifierPool

EOS = 3
OTHER = replace(fake_identity(), fingerprint="dd" * 16)
# Of a start that must not be waited for to its end: longer than a test takes on a busy machine.
LONG_S = 600.0
QUICK = replace(PATIENT, retry_s=0.01)


@contextlib.asynccontextmanager
async def pool_of(*addresses: str) -> AsyncIterator[VerifierPool]:
    pool = VerifierPool(addresses)
    try:
        yield pool
    finally:
        await pool.close()


async def admitted(pool: VerifierPool, address: str) -> Verifier:
    """The verifier, once it has been."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = [verifier for verifier in pool._verifiers if verifier.address == address and verifier.identity]
            if found:
                return found[0]
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_first", [True, False], ids=["dead first", "dead last"])
async def test_one_that_is_down_holds_no_start_up_and_is_met_when_it_is_back(tmp_path: Path, is_first: bool) -> None:
    dead = f"unix:{tmp_path}/dead.sock"
    async with serving(FakeVerifier([EOS])) as alive, pool_of(*((dead, alive) if is_first else (alive, dead))) as pool:
        async with asyncio.timeout(WAIT_S):
            await pool.connect(LONG_S)
        assert [verifier.address for verifier in await pool.candidates()] == [alive]
        ours = [task for task in asyncio.all_tasks() if "outrider/gateway" in task.get_coro().cr_code.co_filename]  # type: ignore[union-attr]
        assert ours == [], "nobody is asked any more"

        async def report(is_ready: bool) -> None:
            assert is_ready

        pool.watch(report, 0.01)
        async with serving(FakeVerifier([EOS]), dead):
            await admitted(pool, dead)
            assert {verifier.address for verifier in await pool.candidates()} == {alive, dead}


async def test_who_answers_a_little_later_may_still_be_the_one_that_all_gateways_begin_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(first_answers, "SETTLE_S", LONG_S)
    late = f"unix:{tmp_path}/late.sock"
    async with serving(FakeVerifier([EOS], identity=OTHER)) as quick, pool_of(late, quick) as pool:
        connecting = asyncio.ensure_future(pool.connect(LONG_S))
        await admitted(pool, quick)
        async with serving(FakeVerifier([EOS]), late):
            await asyncio.wait_for(connecting, WAIT_S)
            assert pool.identity.fingerprint == fake_identity().fingerprint


async def test_one_that_drains_is_asked_until_it_has_been_started_anew() -> None:
    fake = FakeVerifier([EOS])
    async with serving(fake) as address, pool_of(address) as pool:
        assert fake.server is not None
        fake.server._interceptor.draining = True
        with pytest.raises(Unavailable, match=r"no verifier answers: .*draining"):
            await pool.connect(1.0)
        connecting = asyncio.ensure_future(pool.connect(LONG_S))
        async with asyncio.timeout(WAIT_S):
            while not (pool._first and pool._first.problems):
                await asyncio.sleep(0)
        fake.server._interceptor.draining = False
        await asyncio.wait_for(connecting, WAIT_S)
        assert [verifier.address for verifier in await pool.candidates()] == [address]


async def test_who_is_no_verifier_at_all_is_not_waited_for() -> None:
    async with coordinator_over(FakeFleet()) as address, pool_of(address) as pool, asyncio.timeout(WAIT_S):
        with pytest.raises(OutriderError, match="no verifier answers: Method not found"):
            await pool.connect(LONG_S)


async def test_a_start_that_fails_says_of_everybody_why(tmp_path: Path) -> None:
    a, b = f"unix:{tmp_path}/a.sock", f"unix:{tmp_path}/b.sock"
    async with pool_of(a, b) as pool:
        with pytest.raises(Unavailable, match=rf"^no verifier answers: {a} did not answer within 0.2 s; {b} did not answer within 0.2 s$"):
            await pool.connect(0.2)


async def start_behind(coordinator: str, timeout_s: float, *configured: str) -> Gateway:
    return await start_gateway(
        GatewayConfig(
            ("127.0.0.1:0",), configured, MODEL_DIR, coordinators=(coordinator,), coordination=QUICK, verifier_timeout_s=timeout_s
        )
    )


async def asked_twice_more(fleet: FakeFleet) -> None:
    """What was announced until now has been told, and taken up: coordinators are asked one time after the other."""
    num_before = fleet.num_topologies
    await fleet.until(lambda: fleet.num_topologies >= num_before + 2)


async def test_a_fleet_whose_verifiers_all_drain_is_waited_for_until_another_comes() -> None:
    fleet = FakeFleet()
    async with contextlib.AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(coordinator_over(fleet))
        alive = await stack.enter_async_context(serving(FakeVerifier([EOS])))
        fleet.announce(replace(fake_replica("old", "127.0.0.1:1"), draining=True), 0.0)
        with pytest.raises(Unavailable, match=r"no verifier that is not draining \(old at 127.0.0.1:1; told by .*\) within 1 s$"):
            await start_behind(coordinator, 1.0)
        starting = asyncio.ensure_future(start_behind(coordinator, LONG_S))
        await asked_twice_more(fleet)
        fleet.announce(fake_replica("new", alive), 0.0)
        gateway = await asyncio.wait_for(starting, WAIT_S)
        await gateway.stop(0.0)


@pytest.mark.parametrize("is_configured", [False, True], ids=["announced", "configured"])
async def test_who_announces_itself_while_the_first_one_does_not_answer_is_asked(is_configured: bool, tmp_path: Path) -> None:
    fleet, dead = FakeFleet(), f"unix:{tmp_path}/dead.sock"
    configured = (dead,) if is_configured else ()
    async with contextlib.AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(coordinator_over(fleet))
        alive = await stack.enter_async_context(serving(FakeVerifier([EOS])))
        if not is_configured:
            fleet.announce(fake_replica("dead", dead), 0.0)
        with pytest.raises(Unavailable, match=rf"^no verifier answers: {dead} did not answer within [0-9.]+ s$"):
            await start_behind(coordinator, 1.0, *configured)
        starting = asyncio.ensure_future(start_behind(coordinator, LONG_S, *configured))
        await asked_twice_more(fleet)
        fleet.known.clear()
        await asked_twice_more(fleet)
        fleet.announce(fake_replica("late", alive), 0.0)
        gateway = await asyncio.wait_for(starting, WAIT_S)
        await gateway.stop(0.0)


async def test_a_start_has_heard_of_the_fleet_before_it_serves() -> None:
    """Else its first requests would be placed by nobody, though a coordinator answers."""
    fleet = FakeFleet()
    async with coordinator_over(fleet) as coordinator:
        limits = replace(PATIENT, refresh_s=3600.0)
        async with gateway_over(FakeVerifier([EOS]), coordinators=(coordinator,), coordination=limits) as under_test:
            fleet.refuse = Unavailable("no verifier fits")
            await under_test.client.generate_once(REQUEST, timeout_s=WAIT_S)
    assert len(fleet.wishes) == 1
