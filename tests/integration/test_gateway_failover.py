"""An answer that loses its verifier, over real sockets: the client sees the same one, later, or is told what became of it.

Losses are scripted (tests/fakes_verifier.py); how they are found is in test_gateway_losses.py, real processes in
test_failover_processes.py.

    pytest tests/integration/test_gateway_failover.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fakes_failover import (
    OTHER,
    REQUEST,
    SCRIPT,
    STOPPED,
    TIMEOUT_S,
    counted,
    deltas,
    finished,
    stream,
    text_of,
    tokens_of,
    undisturbed,
)
from fakes_verifier import IDLE_TIMEOUT_S, FakeVerifier, Hold, Hurt, fake_identity, gateway_over, serving
from outrider.errors import DoesNotFit, InvalidRequest, OutriderError, Overloaded, Unavailable
from outrider.gateway.limits import FailoverLimits
from outrider.rpc.status import DeadlinePassed, RemoteFailure
from outrider.telemetry import names
from outrider.types.generation import Done, Started
from outrider.types.identity import Numerics


@pytest.mark.parametrize("hurt_after", range(0, len(SCRIPT)))
async def test_an_answer_goes_on_exactly_where_it_was_cut(hurt_after: int) -> None:
    """Wherever: in the midst of a character, of what may become a stop string, before the first token, before the last."""
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=hurt_after), FakeVerifier(SCRIPT)
    whole = await undisturbed()
    async with gateway_over(first, second) as under_test:
        events = await stream(under_test)
        assert counted(under_test) == {"gone": 1}
    assert deltas(events) == deltas(whole), "same runs, texts, origins and log-probabilities"
    before, after = finished(whole), finished(events)
    assert (after.reason, after.stop_string, after.usage) == (before.reason, before.stop_string, before.usage)
    assert (before.num_failovers, before.exact, after.num_failovers, after.exact) == (0, True, 1, True)
    assert after.statistics.num_emitted == len(SCRIPT)
    old, new = first.starts[0], second.starts[0]
    assert list(new.prefix) == [*old.prefix, *SCRIPT[:hurt_after]]
    assert new.incarnation > old.incarnation
    assert (new.session_id, new.num_prompt_tokens, new.max_tokens) == (old.session_id, old.num_prompt_tokens, old.max_tokens)
    assert (new.noise, new.sampling, list(new.stop_token_ids)) == (old.noise, old.sampling, list(old.stop_token_ids))


@pytest.mark.parametrize("hurt_after", range(1, len(STOPPED) - 2))
async def test_a_stop_string_is_found_across_the_cut(hurt_after: int) -> None:
    first, second = FakeVerifier(STOPPED, hurt=Hurt.DRAIN, hurt_after=hurt_after), FakeVerifier(STOPPED)
    async with gateway_over(first, second) as under_test:
        events = await stream(under_test)
    end = finished(events)
    assert (text_of(events), tokens_of(events), end.stop_string) == ("x\u00e9nev", STOPPED[:-2], "never")
    assert (end.usage.completion_tokens, end.num_failovers) == (len(STOPPED) - 2, 1)


async def test_an_answer_in_one_message_fails_over_too() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=5), FakeVerifier(SCRIPT)
    whole = await undisturbed()
    async with gateway_over(first, second) as under_test:
        answer = await under_test.client.generate_once(REQUEST, TIMEOUT_S)
    (sample,) = answer.samples
    assert (sample.text, list(sample.token_ids)) == (text_of(whole), tokens_of(whole))
    assert len(sample.logprobs) == len(sample.origins) == len(SCRIPT)
    assert (sample.finished.num_failovers, sample.finished.exact) == (1, True)


async def test_samples_fail_over_each_by_itself() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=5, hold=Hold.AFTER_STARTED), FakeVerifier(SCRIPT)
    async with gateway_over(first, second) as under_test:
        answer = asyncio.ensure_future(stream(under_test, replace(REQUEST, num_samples=4)))
        await first.wait_live(4)
        first.release.set()
        events = await answer
        assert counted(under_test) == {"gone": 4}
    done = events[-1]
    assert isinstance(done, Done)
    assert done.usage.completion_tokens == 4 * len(SCRIPT)
    assert [tokens_of(events, index) for index in range(4)] == [SCRIPT] * 4
    assert len({text_of(events, index) for index in range(4)}) == 1
    assert sorted(start.noise.sample_index for start in second.starts) == [0, 1, 2, 3]


async def test_an_answer_survives_several_verifiers_and_its_statistics_are_summed() -> None:
    fakes = [FakeVerifier(SCRIPT, run_lens=(2,), hurt=Hurt.DRAIN, hurt_after=4 * (1 + number)) for number in range(3)]
    async with gateway_over(*fakes, FakeVerifier(SCRIPT)) as under_test:
        events = await stream(under_test)
    end = finished(events)
    assert tokens_of(events) == SCRIPT
    lost = sum(len(fake.starts) and fake.num_commits for fake in fakes)
    assert end.num_failovers == sum(bool(fake.starts) for fake in fakes) > 0
    assert end.statistics.num_emitted == len(SCRIPT)
    assert end.statistics.num_accepted == lost, "one accepted and one bonus token in every lost round"


async def test_the_only_verifier_may_come_back_at_its_address() -> None:
    first = FakeVerifier(SCRIPT, hurt=Hurt.DIE, hurt_after=4)
    async with gateway_over(first) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        await first.hurting.wait()
        assert first.server is not None
        address = first.server.address
        await first.wait_live(0)
        await first.dead()
        async with serving(FakeVerifier(SCRIPT), address):
            events = await answer
    assert tokens_of(events) == SCRIPT
    assert finished(events).num_failovers == 1


async def test_a_full_verifier_is_waited_for() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT, refuse=Overloaded("no room"))
    async with gateway_over(first, second) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        await second.wait_until(lambda: len(second.starts) >= 2)
        second.refuse = None
        assert tokens_of(await answer) == SCRIPT
    assert len({start.incarnation for start in second.starts}) == len(second.starts), "every opening has an incarnation of its own"


@pytest.mark.parametrize("timeout_s", [None, 0.4])
async def test_when_nobody_comes_back_the_answer_ends_within_the_named_time_or_the_deadline(timeout_s: float | None) -> None:
    only = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4)
    async with gateway_over(only, failover=FailoverLimits(place_timeout_s=0.3 if timeout_s is None else 60.0)) as under_test:
        with pytest.raises(Unavailable if timeout_s is None else DeadlinePassed):
            await asyncio.wait_for(stream(under_test, timeout_s=timeout_s), 5.0)
        await under_test.idle()
        if timeout_s is None:
            assert counted(under_test, names.NUM_FAILED_FAILOVERS) == {"gone": 1}


async def test_a_request_that_may_be_what_kills_verifiers_does_not_get_them_all() -> None:
    fakes = [FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=0) for _ in range(5)]
    async with gateway_over(*fakes) as under_test:
        with pytest.raises(Unavailable):
            await stream(under_test)
    assert sum(fake.hurting.is_set() for fake in fakes) == 3


async def test_rejection_acceptance_promises_no_tokens_and_is_not_moved() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT)
    async with gateway_over(first, second) as under_test:
        with pytest.raises(Unavailable, match="shutting down"):
            await stream(under_test, replace(REQUEST, acceptance="rejection"))
    assert not second.starts


async def test_a_wrong_request_is_not_tried_elsewhere() -> None:
    first, second = FakeVerifier(SCRIPT, fail=InvalidRequest("draft", "no")), FakeVerifier(SCRIPT)
    async with gateway_over(first, second) as under_test:
        with pytest.raises(InvalidRequest, match="draft: no"):
            await stream(under_test)
    assert not second.starts


@pytest.mark.parametrize("fault", [RemoteFailure("engine fault"), OutriderError("no class")])
async def test_a_broken_verifier_is_avoided_by_the_sample_it_failed(fault: OutriderError) -> None:
    first, second = FakeVerifier(SCRIPT, fail=fault), FakeVerifier(SCRIPT)
    async with gateway_over(first, second) as under_test:
        events = await stream(under_test)
        assert counted(under_test) == {"broken": 1}
    assert tokens_of(events) == SCRIPT
    assert (len(first.starts), len(second.starts)) == (1, 1)


@pytest.mark.parametrize("identity", [OTHER, replace(OTHER, numerics=Numerics.FAST)])
async def test_another_fingerprint_goes_on_and_is_labelled(identity: object) -> None:
    first, reserve = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT, identity=identity)  # type: ignore[arg-type]
    async with gateway_over(first, reserve) as under_test:
        events = await stream(under_test)
    started, end = events[0], finished(events)
    assert isinstance(started, Started)
    assert (started.exact, end.exact, end.num_failovers) == (True, False, 1)
    assert tokens_of(events) == SCRIPT


async def test_fast_numerics_fail_over_and_never_were_exact() -> None:
    fast = replace(fake_identity(), numerics=Numerics.FAST)
    first, second = FakeVerifier(SCRIPT, identity=fast, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT, identity=fast)
    async with gateway_over(first, second) as under_test:
        events = await stream(under_test)
    assert (finished(events).exact, finished(events).num_failovers) == (False, 1)


async def test_a_verifier_of_the_same_fingerprint_is_preferred_however_busy() -> None:
    first, same, other = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT), FakeVerifier(SCRIPT, identity=OTHER)
    async with gateway_over(first, other, same) as under_test:  # the other one's turn would be next
        events = [await stream(under_test) for _ in range(2)]
    assert all(finished(answer).exact for answer in events)
    assert not other.starts


async def test_a_client_that_leaves_while_its_answer_waits_for_a_verifier_leaves_nothing() -> None:
    only = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4)
    async with gateway_over(only, failover=FailoverLimits(place_timeout_s=IDLE_TIMEOUT_S)) as under_test:
        running = under_test.client.generate(REQUEST)
        for _ in range(5):
            await anext(running)
        await only.wait_until(lambda: len(only.starts) >= 3)  # it is being tried, and refused
        await running.aclose()  # type: ignore[attr-defined]
        await under_test.idle()


async def test_a_request_that_comes_while_a_verifier_is_being_restarted_waits_for_it() -> None:
    only = FakeVerifier(SCRIPT, refuse=Unavailable("not yet"))
    async with gateway_over(only) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        await only.wait_until(lambda: len(only.starts) >= 2)
        only.refuse = None
        assert tokens_of(await answer) == SCRIPT
    assert [start.incarnation for start in only.starts] == [*range(1, len(only.starts) + 1)], "it may still hold the one before"


async def test_an_answer_that_was_asked_for_twice_and_then_lost_goes_on_in_a_newer_incarnation() -> None:
    first, second = FakeVerifier(SCRIPT, refuse=Unavailable("not yet"), hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT)
    second.refuse = Unavailable("not yet either")
    async with gateway_over(first, second) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        await first.wait_until(lambda: len(first.starts) >= 2)
        first.refuse = None
        await first.hurting.wait()
        second.refuse = None
        assert tokens_of(await answer) == SCRIPT
    incarnations = [start.incarnation for start in (*first.starts, *second.starts)]
    assert len(set(incarnations)) == len(incarnations)
    assert second.starts[-1].incarnation == max(incarnations)


async def test_who_is_too_small_for_a_request_is_passed_over() -> None:
    """Verifiers of one fingerprint may differ in how long an answer they hold, and how many."""
    small, other = FakeVerifier(SCRIPT, refuse=DoesNotFit("max_tokens", "is too much here")), FakeVerifier(SCRIPT)
    async with gateway_over(small, other) as under_test:
        for _ in range(2):  # they take turns
            assert tokens_of(await stream(under_test)) == SCRIPT
        other.refuse = Overloaded("no room")
        for _ in range(2):
            with pytest.raises(Overloaded, match="no room"):  # it may come again: one of the two holds it
                await stream(under_test)
    assert small.starts


async def test_an_answer_goes_on_at_one_that_holds_it() -> None:
    first, large = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4), FakeVerifier(SCRIPT, refuse=Overloaded("not yet"))
    small = FakeVerifier(SCRIPT, refuse=DoesNotFit("prefix", "needs 6 KV blocks; there are 3"))
    async with gateway_over(first, small, large) as under_test:
        answer = asyncio.ensure_future(stream(under_test))
        await first.hurting.wait()
        await small.wait_until(lambda: len(small.starts) >= 2)
        large.refuse = None
        assert tokens_of(await answer) == SCRIPT


async def test_a_request_that_nobody_takes_in_time_is_refused() -> None:
    only = FakeVerifier(SCRIPT, refuse=Unavailable("never"))
    async with gateway_over(only, failover=FailoverLimits(begin_timeout_s=0.3)) as under_test:
        with pytest.raises(Unavailable, match=r"never|no verifier answers"):
            await asyncio.wait_for(stream(under_test), 5.0)
    assert len(only.starts) >= 2
