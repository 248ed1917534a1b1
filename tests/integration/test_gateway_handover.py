"""Answers that leave a verifier which drains, over real sockets: exact, for one that has taken them only, else they stay.

Verifiers answer from a script (tests/fakes_verifier.py). Real processes that drain are in test_failover_processes.py.

    pytest tests/integration/test_gateway_handover.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fakes_failover import OTHER, REQUEST, SCRIPT, counted, deltas, finished, stream, tokens_of, undisturbed
from fakes_verifier import FakeVerifier, Hold, Hurt, gateway_over
from outrider.errors import OutriderError, Overloaded
from outrider.gateway.handover import Handover
from outrider.gateway.limits import FailoverLimits
from outrider.types.identity import ModelIdentity

AT_ONCE = FailoverLimits(handover_min_tokens=1, handover_spread_s=0.0)
WAITING_S = 3600.0


def draining(run_len: int = 1) -> FakeVerifier:
    """One that drains and ends no answer before it is released."""
    return FakeVerifier(SCRIPT, run_lens=(run_len,), draining=True, hold=Hold.BEFORE_FINISHED)


async def test_an_answer_leaves_a_draining_verifier_at_the_end_of_a_round() -> None:
    async with gateway_over(FakeVerifier(SCRIPT, run_lens=(3,))) as under_test:
        whole = await stream(under_test)
    first, second = draining(run_len=3), FakeVerifier(SCRIPT, run_lens=(3,))
    async with gateway_over(first, second, failover=AT_ONCE) as under_test:
        events = await stream(under_test)
        assert counted(under_test) == {"draining": 1}
        await first.wait_live(0)
        assert tokens_of(await stream(under_test)) == SCRIPT
        assert len(first.starts) == 1, "new requests go elsewhere"
    assert deltas(events) == deltas(whole), "same runs, texts, origins and log-probabilities"
    before, after = finished(whole), finished(events)
    assert (after.reason, after.usage, after.num_failovers, after.exact) == (before.reason, before.usage, 1, True)
    assert after.statistics.num_emitted == len(SCRIPT)
    old, new = first.starts[0], second.starts[0]
    assert list(new.prefix) == [*old.prefix, *SCRIPT[:3]]
    assert new.incarnation > old.incarnation


@pytest.mark.parametrize(
    ("num_others", "refuse", "identity"),
    [(0, None, None), (1, Overloaded("full"), None), (1, None, OTHER)],
    ids=["nobody else", "all full", "another fingerprint"],
)
async def test_an_answer_stays_where_nobody_else_takes_it(
    num_others: int, refuse: OutriderError | None, identity: ModelIdentity | None
) -> None:
    first = draining()
    others = [FakeVerifier(SCRIPT, refuse=refuse, identity=identity or first.identity) for _ in range(num_others)]
    async with gateway_over(first, *others, failover=AT_ONCE) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        await first.wait_live(1)
        first.release.set()
        events = await answer
        assert counted(under_test) == {}
    assert deltas(events) == deltas(await undisturbed())
    assert (finished(events).num_failovers, finished(events).exact) == (0, True)
    assert all(bool(other.starts) == bool(refuse) for other in others)


@pytest.mark.parametrize(
    ("acceptance", "limits"),
    [
        ("rejection", AT_ONCE),
        ("coupled", replace(AT_ONCE, handover_min_tokens=len(SCRIPT))),
        ("coupled", replace(AT_ONCE, handover_spread_s=WAITING_S)),
    ],
    ids=["it may not move", "little of it is left", "its time has not come"],
)
async def test_not_every_answer_leaves(acceptance: str, limits: FailoverLimits) -> None:
    first, second = draining(), FakeVerifier(SCRIPT)
    first.release.set()
    async with gateway_over(first, second, failover=limits) as under_test:
        events = await stream(under_test, replace(REQUEST, acceptance=acceptance, max_tokens=len(SCRIPT)))
    assert tokens_of(events) == SCRIPT
    assert not second.starts


async def test_who_takes_too_long_to_take_an_answer_does_not_get_it() -> None:
    first, second = draining(), FakeVerifier(SCRIPT, hold=Hold.BEFORE_STARTED)
    first.release.set()
    async with gateway_over(first, second, failover=replace(AT_ONCE, handover_timeout_s=0.05)) as under_test:
        events = await stream(under_test)
        assert counted(under_test) == {}
        await second.wait_live(0)
    assert deltas(events) == deltas(await undisturbed())
    assert second.starts


async def test_a_client_that_leaves_while_its_answer_is_handed_over_leaves_nothing() -> None:
    first, second = draining(), FakeVerifier(SCRIPT, hold=Hold.BEFORE_STARTED)
    async with gateway_over(first, second, failover=replace(AT_ONCE, handover_timeout_s=WAITING_S)) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        await second.wait_live(1)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        await under_test.idle()


async def test_two_that_drain_do_not_hand_an_answer_to_and_fro() -> None:
    first, second = draining(), draining()
    for verifier in (first, second):
        verifier.release.set()
    async with gateway_over(first, second, failover=AT_ONCE) as under_test:
        events = await stream(under_test)
    assert (tokens_of(events), finished(events).num_failovers) == (SCRIPT, 1)
    assert (len(first.starts), len(second.starts)) == (1, 1)


async def test_a_handover_does_not_count_among_the_losses_that_an_answer_may_have() -> None:
    """The first hands it over, the second is lost, and the first, which still drains, is better than nobody."""
    first, second = draining(), FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=6)
    first.release.set()
    async with gateway_over(first, second, failover=replace(AT_ONCE, max_failovers=1)) as under_test:
        events = await stream(under_test)
        assert counted(under_test) == {"draining": 1, "gone": 1}
    assert (tokens_of(events), finished(events).num_failovers) == (SCRIPT, 2)
    assert [start.incarnation for start in (*first.starts, *second.starts)] == [1, 3, 2]


def test_answers_leave_within_the_spread_and_are_offered_again_after_longer_and_longer_pauses() -> None:
    limits = FailoverLimits(handover_min_tokens=10, handover_spread_s=1.0, min_backoff_s=0.1, max_backoff_s=1.0)
    handovers = [Handover(limits) for _ in range(200)]
    assert not any(handover.is_due(9, 0.0) for handover in handovers)
    assert sum(handover.is_due(10, 0.0) for handover in handovers) < 10
    assert 20 < sum(handover.is_due(10, 0.5) for handover in handovers) < 180, "neither all at once nor all late"
    assert all(handover.is_due(10, 1.0) for handover in handovers)
    one, now_s, pauses_s = handovers[0], 1.0, []
    for _ in range(6):
        one.refused(now_s)
        begun_s = now_s
        while not one.is_due(10, now_s):
            now_s += 0.01
        pauses_s.append(now_s - begun_s)
    assert pauses_s[0] <= 0.17
    assert pauses_s[-1] >= 0.49
