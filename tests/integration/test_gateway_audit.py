"""Finished answers are decoded once more, plainly, while nobody waits; one that differs is counted and logged without a word of it.

Over real sockets, with verifiers that answer a replay otherwise where a test wants it (tests/fakes_verifier.py); real processes are in
test_metrics_processes.py.

    pytest tests/integration/test_gateway_audit.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from fakes_failover import EOS, OTHER, QUICK, REQUEST, SCRIPT, STOPPED, counted, stream, tokens_of
from fakes_verifier import FakeVerifier, GatewayUnderTest, Hold, fake_identity, gateway_over
from outrider.errors import Overloaded
from outrider.gateway.__main__ import parse_config
from outrider.gateway.auditor import AuditLimits
from outrider.gateway.sent_answer import is_chosen
from outrider.rpc.status import RemoteFailure
from outrider.telemetry import names
from outrider.types.identity import Numerics
from outrider.v1 import generation_pb2, verifier_pb2

OURS = (fake_identity().fingerprint,)
ALL = AuditLimits(share=1.0, settle_s=0.0, retry_s=0.01)
TIMEOUT_S = 30.0
AUDITS, MISMATCHES = names.NUM_IDENTITY_AUDITS, names.NUM_IDENTITY_MISMATCHES
Script = Callable[[verifier_pb2.DecodeStart], Sequence[int]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0)  # gateway and verifier are of this loop: a turn of theirs


async def outcomes(under_test: GatewayUnderTest, num_audits: int) -> dict[str, float]:
    """By outcome, once so many audits were counted."""
    await until(lambda: sum(counted(under_test, AUDITS).values()) >= num_audits)
    return counted(under_test, AUDITS)


def num_mismatches(under_test: GatewayUnderTest) -> float:
    (value,) = [series.value for series in under_test.gateway.servicer.metrics.snapshot() if series.metric is MISMATCHES]
    return value


def is_replay(start: verifier_pb2.DecodeStart) -> bool:
    return start.draft.off


def replayed_as(script: Sequence[int]) -> Script:
    """A broken verifier: its drafts change the answer. SCRIPT to clients, this when it decodes plainly."""
    return lambda start: script if is_replay(start) else SCRIPT


async def test_an_equal_replay_is_counted_and_nothing_else() -> None:
    fake = FakeVerifier(SCRIPT, run_lens=(3, 1))
    async with gateway_over(fake, audit=ALL) as under_test:
        events = await stream(under_test, replace(REQUEST, num_samples=2, cache_salt="mine"))
        assert await outcomes(under_test, 1) == {"equal": 1}
        assert num_mismatches(under_test) == 0
    assert tokens_of(events) == tokens_of(events, 1) == SCRIPT
    first, second = fake.starts[:2]
    audits = fake.starts[2:]
    assert [audit.noise.sample_index for audit in audits] == [0, 1]
    for start, audit in zip(sorted((first, second), key=lambda start: start.noise.sample_index), audits, strict=True):
        assert (audit.noise, audit.sampling, list(audit.prefix)) == (start.noise, start.sampling, list(start.prefix))
        assert (audit.num_prompt_tokens, audit.max_tokens) == (start.num_prompt_tokens, start.max_tokens)
        assert list(audit.stop_token_ids) == list(start.stop_token_ids)
        assert audit.draft.off
        assert (audit.HasField("top_logprobs"), start.HasField("top_logprobs")) == (False, True)
        assert audit.tenant not in ("", start.tenant), "what others read before must not be taken for granted"
    assert len({start.session_id for start in fake.starts}) == 4


@pytest.mark.parametrize(
    ("replay", "position"),
    [
        ([*SCRIPT[:5], SCRIPT[5] + 1, *SCRIPT[6:]], 5),
        ([SCRIPT[0] + 1, *SCRIPT[1:]], 0),
        ([*SCRIPT[:-1], SCRIPT[-1] + 1], len(SCRIPT) - 1),
        ([*SCRIPT[:4], EOS], 4),
        (SCRIPT[:7], 7),
    ],
)
async def test_a_replay_that_differs_is_counted_and_logged(replay: list[int], position: int, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeVerifier(replayed_as(replay), run_lens=(2, 3))
    async with gateway_over(fake, audit=ALL) as under_test:
        await stream(under_test, replace(REQUEST, request_id="the-one"))
        assert await outcomes(under_test, 1) == {"mismatch": 1}
        assert num_mismatches(under_test) == 1
        address = fake.server.address if fake.server else ""
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage() == (
        f"identity mismatch: sample 0 of request the-one differs from its plain replay at {address} from token {position} of the answer "
        f"on; fingerprint {fake.identity.fingerprint}"
    )


async def test_the_sample_that_differs_is_named(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeVerifier(lambda start: [*SCRIPT[:3], 99, EOS] if is_replay(start) and start.noise.sample_index == 2 else SCRIPT)
    async with gateway_over(fake, audit=ALL) as under_test:
        await stream(under_test, replace(REQUEST, num_samples=3))
        assert await outcomes(under_test, 1) == {"mismatch": 1}
    assert "identity mismatch: sample 2 of request" in caplog.text


async def test_what_follows_a_stop_string_is_nobodys() -> None:
    fake = FakeVerifier(lambda start: [*STOPPED[:-2], 77, 78] if is_replay(start) else STOPPED, run_lens=(4,))
    async with gateway_over(fake, audit=ALL) as under_test:
        events = await stream(under_test)
        assert await outcomes(under_test, 1) == {"equal": 1}
    assert tokens_of(events) == STOPPED[:-2]


async def test_an_answer_that_the_verifier_ended_must_end_there_again() -> None:
    """At the end of its context: the gateway is told LENGTH before max_tokens."""
    letters = SCRIPT[:-1]

    def script(start: verifier_pb2.DecodeStart) -> list[int]:
        return [*letters, letters[0]] if is_replay(start) else letters

    class EndsEarly(FakeVerifier):
        def _finished(self, start: verifier_pb2.DecodeStart, end: int, stopped: asyncio.Event) -> verifier_pb2.DecodeFinished:
            finished = super()._finished(start, end, stopped)
            finished.finish_reason = generation_pb2.FINISH_REASON_LENGTH
            return finished

    fake = EndsEarly(script)
    async with gateway_over(fake, audit=ALL) as under_test:
        await stream(under_test, replace(REQUEST, stop=()))
        assert await outcomes(under_test, 1) == {"mismatch": 1}


async def test_a_resumed_answer_is_replayed_from_where_it_was_resumed(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeVerifier(replayed_as([*SCRIPT[:6], 99, EOS]))
    async with gateway_over(fake, audit=ALL) as under_test:
        events = await stream(under_test, replace(REQUEST, resume_token_ids=tuple(SCRIPT[:4]), resume_fingerprints=OURS))
        assert await outcomes(under_test, 1) == {"mismatch": 1}
    assert tokens_of(events) == SCRIPT[4:]
    assert fake.starts[0].prefix == fake.starts[1].prefix
    assert "from token 6 of the answer on" in caplog.text, "counted from its first token, resumed ones included"


async def test_tokens_that_nobody_promised_are_not_compared() -> None:
    fake = FakeVerifier(replayed_as(SCRIPT[:3]), identity=replace(fake_identity(), numerics=Numerics.FAST))
    async with gateway_over(fake, audit=ALL) as under_test:
        await stream(under_test)
        assert await outcomes(under_test, 1) == {"not_promised": 1}
        assert num_mismatches(under_test) == 0
    assert len(fake.starts) == 1


async def test_verifiers_of_another_fingerprint_are_not_asked() -> None:
    ours, other = FakeVerifier(SCRIPT), FakeVerifier(SCRIPT[:2], identity=OTHER)
    async with gateway_over(ours, other, audit=ALL) as under_test:
        fingerprint = under_test.gateway._pool.identity.fingerprint
        await stream(under_test)
        assert await outcomes(under_test, 1) == {"equal": 1}
    served = ours if ours.identity.fingerprint == fingerprint else other
    assert [len(fake.starts) for fake in (ours, other)] == ([2, 0] if served is ours else [0, 2])


async def test_as_many_wait_as_may_and_none_after_the_end() -> None:
    fake = FakeVerifier(SCRIPT)
    never = replace(ALL, settle_s=TIMEOUT_S * 10, max_waiting=1)
    async with gateway_over(fake, audit=never) as under_test:
        for _ in range(4):
            await stream(under_test)
            await until(lambda: under_test.gateway.servicer._auditor.num_waiting <= 1)
        dropped = (await outcomes(under_test, 1))["dropped"]
        assert dropped >= 2, "one has its turn, one waits"
        await under_test.gateway.stop(5.0)
        assert counted(under_test, AUDITS) == {"dropped": dropped, "shutdown": 4 - dropped}
    assert len(fake.starts) == 4


async def test_a_replay_makes_way_for_a_client_at_once() -> None:
    """Held for ever by its verifier, it can only end by being given up; afterwards it is begun anew."""
    held = iter([True])

    def script(start: verifier_pb2.DecodeStart) -> list[int]:
        if is_replay(start) and next(held, False):
            fake.hold = Hold.AFTER_FIRST_COMMIT
        return SCRIPT

    fake = FakeVerifier(script)
    async with gateway_over(fake, audit=ALL) as under_test:
        await stream(under_test)
        await fake.reached.wait()
        fake.hold = None
        assert tokens_of(await stream(under_test)) == SCRIPT
        assert await outcomes(under_test, 2) == {"equal": 2}
    assert sum(map(is_replay, fake.starts)) == 3
    assert [is_replay(start) for start in fake.starts][:3] == [False, True, False]


async def test_a_replay_waits_while_a_client_is_served() -> None:
    fake = FakeVerifier(SCRIPT, hold=Hold.AFTER_FIRST_COMMIT)
    async with gateway_over(fake, audit=ALL) as under_test:
        first = asyncio.ensure_future(stream(under_test))
        await fake.reached.wait()
        fake.hold = None
        for _ in range(4):
            await stream(under_test)  # each has ended, and the first is still live
        assert counted(under_test, AUDITS) == {}
        assert not any(map(is_replay, fake.starts))
        fake.release.set()
        await first
        assert await outcomes(under_test, 5) == {"equal": 5}


async def test_a_verifier_that_serves_others_is_not_idle() -> None:
    fake = FakeVerifier(SCRIPT)
    async with gateway_over(fake, audit=ALL) as under_test:
        fake.num_live += 1  # another gateway's
        await stream(under_test)
        num_asked = fake.num_asked
        await fake.wait_until(lambda: fake.num_asked > num_asked + 3)
        assert (counted(under_test, AUDITS), len(fake.starts)) == ({}, 1)
        fake.num_live -= 1
        assert await outcomes(under_test, 1) == {"equal": 1}


async def test_patience_ends() -> None:
    fake = FakeVerifier(SCRIPT)
    async with gateway_over(fake, audit=replace(ALL, patience_s=0.2)) as under_test:
        fake.num_live += 1
        await stream(under_test)
        assert await outcomes(under_test, 1) == {"gave_up": 1}
        fake.num_live -= 1


@pytest.mark.parametrize("error", [RemoteFailure("a fault"), Overloaded("full")])
async def test_a_replay_that_fails_is_tried_again_a_few_times(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def script(start: verifier_pb2.DecodeStart) -> list[int]:
        if is_replay(start):
            raise error
        return SCRIPT

    fake = FakeVerifier(script)
    async with gateway_over(fake, audit=replace(ALL, max_replays=3)) as under_test:
        await stream(under_test)
        assert await outcomes(under_test, 1) == {"failed": 1}
        assert num_mismatches(under_test) == 0
        assert tokens_of(await stream(under_test)) == SCRIPT, "clients are served as ever"
        assert await outcomes(under_test, 2) == {"failed": 2}  # nothing may be held at the end, by the second one's replays neither
    assert sum(map(is_replay, fake.starts)) == 2 * 3
    assert f"ended early: {type(error).__name__}" in caplog.text


async def test_a_verifier_that_falls_silent_holds_no_audit(caplog: pytest.LogCaptureFixture) -> None:
    def script(start: verifier_pb2.DecodeStart) -> list[int]:
        if is_replay(start) and sum(map(is_replay, fake.starts)) == 1:
            fake.freeze()
        return SCRIPT

    fake = FakeVerifier(script)
    async with gateway_over(fake, audit=ALL, liveness=QUICK) as under_test:
        await stream(under_test)
        await until(lambda: "ended early: VerifierLost" in caplog.text)
        fake.thaw()
        assert await outcomes(under_test, 1) == {"equal": 1}


async def test_a_replay_under_way_ends_with_the_gateway() -> None:
    def script(start: verifier_pb2.DecodeStart) -> list[int]:
        fake.hold = Hold.AFTER_FIRST_COMMIT if is_replay(start) else None
        return SCRIPT

    fake = FakeVerifier(script)
    async with gateway_over(fake, audit=ALL) as under_test:
        await stream(under_test)
        await fake.reached.wait()
        await under_test.gateway.stop(5.0)
        assert counted(under_test, AUDITS) == {"shutdown": 1}


async def test_nothing_is_audited_unless_asked_for() -> None:
    fake = FakeVerifier(SCRIPT)
    async with gateway_over(fake) as under_test:
        await stream(under_test)
        assert under_test.gateway.servicer._auditor.begin("any") is None
        assert counted(under_test, AUDITS) == {}


def test_a_share_is_chosen_by_the_request_id_alone() -> None:
    ids = [f"request-{number}" for number in range(4000)]
    chosen = [request_id for request_id in ids if is_chosen(request_id, 0.1)]
    assert 300 < len(chosen) < 500
    assert chosen == [request_id for request_id in ids if is_chosen(request_id, 0.1)]
    assert set(chosen) < {request_id for request_id in ids if is_chosen(request_id, 0.2)}
    assert all(is_chosen(request_id, 1.0) for request_id in ids)
    assert not any(is_chosen(request_id, 0.0) for request_id in ids)


@pytest.mark.parametrize("wrong", [("--audit-share", "1.5"), ("--audit-share", "nan"), ("--audit-max-live", "-1"), ("--metrics-host", "x")])
def test_wrong_options_are_refused_by_name(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(["--verifier", "127.0.0.1:1", *wrong])
    assert wrong[0].replace("host", "port") in capsys.readouterr().err
