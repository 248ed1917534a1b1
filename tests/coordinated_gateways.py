"""A gateway that knows its two scripted verifiers from a coordinator over real gRPC, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from fakes_coordinator import WAIT_S, FakeFleet, coordinator_over, fake_replica
from fakes_verifier import FakeVerifier, GatewayUnderTest, gateway_over, serving
from outrider.gateway.coordinators import CoordinatorLimits
from outrider.types.fleet import Placement
from outrider.types.generation import GenerationRequest

TOKENS = [10, 11, 12, 13, 14]
# The machine of a test may be busy: a placement may take long there, unless the test is about that.
PATIENT = CoordinatorLimits(place_timeout_s=10.0, refresh_s=0.02)
REQUEST = GenerationRequest(token_ids=(5, 6, 7), max_tokens=len(TOKENS))


@dataclass
class Fleet:
    """Two verifiers behind a gateway that knows them from a coordinator only."""

    fleet: FakeFleet
    first: FakeVerifier
    second: FakeVerifier
    addresses: tuple[str, str]
    under_test: GatewayUnderTest

    async def answer(self, request: GenerationRequest = REQUEST) -> tuple[int, ...]:
        answer = await self.under_test.client.generate_once(request, timeout_s=WAIT_S)
        return tuple(answer.samples[0].token_ids)

    async def until_finished(self, num: int = 1) -> None:
        await self.fleet.until(lambda: len(self.fleet.finished) == num)


@contextlib.asynccontextmanager
async def coordinated(
    fleet: FakeFleet, limits: CoordinatorLimits = PATIENT, *more_coordinators: str, configured: bool = False
) -> AsyncIterator[Fleet]:
    first, second = FakeVerifier(TOKENS), FakeVerifier(TOKENS)
    async with contextlib.AsyncExitStack() as stack:
        a, b = [await stack.enter_async_context(serving(verifier)) for verifier in (first, second)]
        for number, address in enumerate((a, b)):
            fleet.announce(fake_replica(f"verifier-{number}", address), 0.0)
        coordinator = await stack.enter_async_context(coordinator_over(fleet))
        under_test = await stack.enter_async_context(
            gateway_over(coordinators=(coordinator, *more_coordinators), coordination=limits, verifiers=(a,) if configured else ())
        )
        yield Fleet(fleet, first, second, (a, b), under_test)


def placed_at(fleet: Fleet, which: int, **changes: object) -> None:
    placement = Placement(fleet.addresses[which], (), (fleet.addresses[1 - which],), 1.0, "")
    fleet.fleet.choose = lambda wish: replace(placement, **changes)  # type: ignore[arg-type]
