"""Two hundred samples that lose their verifier at the same moment, while the only other one is full: bounded, spread, and none is lost.

pytest tests/integration/test_gateway_storm.py
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict

from fakes_failover import REQUEST, SCRIPT, TIMEOUT_S, counted, tokens_of
from fakes_verifier import FakeVerifier, GatewayUnderTest, Hold, Hurt, gateway_over
from outrider.errors import Overloaded
from outrider.gateway.limits import FailoverLimits, GatewayLimits, LivenessLimits
from outrider.rpc.context import Context
from outrider.types.generation import AnswerEvent
from outrider.v1 import verifier_pb2 as pb

NUM_SAMPLES = 200
NUM_ROUNDS = 4  # that each sample is refused on average
WINDOW_S = 0.1
# Drawn evenly, a window of settled pauses (one second on average) holds a tenth of the samples: 20 of 200, give or take 4.
MAX_IN_A_WINDOW = 60


class Counting(FakeVerifier):
    """Notes when each session knocks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.knocks: dict[str, list[float]] = defaultdict(list)

    async def _answer(self, start: pb.DecodeStart, context: Context, stopped: asyncio.Event) -> None:
        self.knocks[start.session_id].append(asyncio.get_running_loop().time())
        await super()._answer(start, context, stopped)


async def test_a_storm_of_failovers_is_bounded_and_nobody_is_lost() -> None:
    first, second = FakeVerifier(SCRIPT, hold=Hold.AFTER_STARTED, hurt_after=0), Counting(SCRIPT, refuse=Overloaded("no room"))
    limits = FailoverLimits(place_timeout_s=60.0)
    patient = LivenessLimits(silence_s=3 * TIMEOUT_S)  # on a busy machine all of us fall silent together
    room = GatewayLimits(max_live_requests=NUM_SAMPLES, max_live_samples=NUM_SAMPLES)

    async def ask(under_test: GatewayUnderTest) -> list[AnswerEvent]:
        return [event async for event in under_test.client.generate(REQUEST, 3 * TIMEOUT_S)]

    async with gateway_over(first, second, limits=room, failover=limits, liveness=patient) as under_test:
        answers = [asyncio.ensure_future(ask(under_test)) for _ in range(NUM_SAMPLES)]
        await first.wait_live(NUM_SAMPLES)
        second.knocks.clear()  # what it refused so far was new
        first.hurt = Hurt.DRAIN
        first.release.set()
        await second.wait_until(lambda: sum(map(len, second.knocks.values())) >= NUM_ROUNDS * NUM_SAMPLES)
        second.refuse = None
        assert all([tokens_of(await answer) == SCRIPT for answer in answers])
        assert counted(under_test) == {"gone": NUM_SAMPLES}
    assert len(second.knocks) == NUM_SAMPLES
    for times_s in second.knocks.values():
        assert len(times_s) <= limits.max_openings
        # A pause begins when the refusal has come, so knocks are at least as far apart, however busy the machine is.
        for round_number, (before_s, after_s) in enumerate(itertools.pairwise(times_s)):
            least_s = 0.5 * min(limits.max_backoff_s, limits.min_backoff_s * 2**round_number)
            assert after_s - before_s >= 0.99 * least_s, (round_number, after_s - before_s)


def test_those_who_lost_their_verifier_together_do_not_come_back_together() -> None:
    """Once pauses have their full length, in any tenth of a second; on a clock of its own, for a busy machine spreads and bunches."""
    limits, windows = FailoverLimits(), Counter[int]()
    for _ in range(NUM_SAMPLES):
        times_s = itertools.takewhile(lambda at_s: at_s < 10.0, itertools.accumulate(limits.backoffs_s()))
        windows.update(int(at_s / WINDOW_S) for at_s in times_s if at_s >= 3.0)
    assert sum(windows.values()) > 3 * NUM_SAMPLES
    assert max(windows.values()) <= MAX_IN_A_WINDOW
