"""The verifier service whole, over real grpc: engine thread, Decode streams, drafter pairs. Only the models are tables."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from fakes import TableEngine
from fakes_drafter_service import FakeDrafterService, serving_drafter, table_identity
from fakes_verifier_service import CALL_TIMEOUT_S, PROMPT, TABLE, decode, decode_until, refusal, serving, start, truth
from outrider.errors import Overloaded
from outrider.rpc.requests import Requests
from outrider.rpc.status import MAX_RETRY_AFTER_S, error_from_rpc
from outrider.types.step import StepPlan, StepResult
from outrider.v1 import drafter_pb2, generation_pb2, sampling_pb2
from outrider.v1 import verifier_pb2 as pb
from verifier_service import servicer
from verifier_service.settings import DraftDefaults

LONG = 800  # a short answer is often over before a drafter has opened


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="ov-") as name:
        yield Path(name)


async def test_a_start_behind_too_long_a_prompt_is_refused_with_the_time_to_come_again(folder: Path) -> None:
    """A step of sixteen rows claims a second: what is left to read of 3,000 tokens takes minutes, of which one is borne."""
    engine = TableEngine(TABLE, max_rows=16, num_blocks=1024, step_us=1_000_000)
    prompt = [2 + at % 30 for at in range(3_000)]
    async with serving(folder, engine=engine, max_queue_ms=60_000.0) as verifier:
        long = verifier.stub.Decode(timeout=CALL_TIMEOUT_S)
        with verifier.server.scheduler.inbox._lock:  # the engine thread takes in nothing, so it has read nothing when both are there
            await long.write(pb.DecodeRequest(start=start("long", 5, prefix=prompt, num_prompt_tokens=len(PROMPT) + len(prompt))))
            second = asyncio.ensure_future(decode(verifier, start("second")))
            await verifier.until_asked(2)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second
        error = error_from_rpc(refused.value)
        long.cancel()
        await verifier.until_idle()
        assert (await decode(verifier, start("third"))).tokens == truth()
    assert isinstance(error, Overloaded)
    assert "--max-queue-ms 60000" in str(error)
    assert error.retry_after_s == MAX_RETRY_AFTER_S


@pytest.mark.parametrize("pacing", ["plain", "serial", "pearl"])
async def test_concurrent_requests_get_the_tokens_of_plain_decoding(folder: Path, pacing: str) -> None:
    service = FakeDrafterService(TABLE, 0.8)
    async with serving_drafter(service, folder) as drafter, serving(folder, drafter) as verifier:
        draft = generation_pb2.DraftOptions(pacing=pacing)
        answers = await asyncio.gather(*(decode(verifier, start(f"s{at}", 50 + at, draft=draft)) for at in range(6)))
        for at, answer in enumerate(answers):
            assert answer.tokens == truth(50 + at)
            assert answer.finished.finish_reason == generation_pb2.FINISH_REASON_LENGTH
            stats = answer.finished.statistics
            assert stats.pacing == pacing
            assert answer.origins.count(sampling_pb2.TOKEN_ORIGIN_ACCEPTED) == stats.num_accepted
        drafts = pacing != "plain"
        assert drafts or not any(answer.finished.statistics.num_drafted for answer in answers)
        if drafts:
            await decode_until(verifier, start("again", LONG, draft=draft), lambda stats: 0 < stats.num_accepted < stats.num_drafted)
        await verifier.until_idle()


async def test_what_a_step_costs_is_told_on_lent_cores_and_without(folder: Path) -> None:
    lending = TableEngine(TABLE, step_us=900, lent_threads=2, lent_step_us=500)
    async with serving(folder, engine=lending) as verifier:
        info = await verifier.info()
        assert set(info.cost_us) == {500.0}
        assert list(info.cost_unlent_us) == [900.0] * len(info.cost_rows)
    async with serving(folder) as verifier:
        assert not (await verifier.info()).cost_unlent_us, "nothing is ever lent"


@pytest.mark.parametrize("allowed", [True, False])
async def test_guesses_from_the_text_itself_need_no_drafter_and_can_be_turned_off(folder: Path, allowed: bool) -> None:
    table = replace(TABLE, period=20)
    draft = DraftDefaults(pacing="lookup", draft_len=4, lookup=allowed)
    async with serving(folder, engine=TableEngine(table), draft=draft) as verifier:
        answer = await decode(verifier, start(max_tokens=100))
        assert answer.tokens == table.answer(PROMPT, len(PROMPT) + 100, frozenset())
        stats = answer.finished.statistics
        assert (stats.num_looked_up_accepted > 40) is allowed
        assert stats.num_looked_up == stats.num_drafted
        wished = await decode(verifier, start("w", 100, draft=generation_pb2.DraftOptions(no_lookup=True)))
        assert wished.tokens == answer.tokens
        assert wished.finished.statistics.num_drafted == 0
        assert stats.num_looked_up_accepted == stats.num_accepted == answer.origins.count(sampling_pb2.TOKEN_ORIGIN_ACCEPTED)
        await verifier.until_idle()


async def test_several_policies_share_one_engine(folder: Path) -> None:
    service = FakeDrafterService(TABLE, 0.8, width=2)
    async with serving_drafter(service, folder) as drafter, serving(folder, drafter) as verifier:
        names = ["plain", "serial", "pearl", "plain", "serial", "pearl"]
        starts = [start(f"s{at}", 80, draft=generation_pb2.DraftOptions(pacing=name)) for at, name in enumerate(names)]
        answers = await asyncio.gather(*(decode(verifier, one) for one in starts))
        assert all(answer.tokens == truth(80) for answer in answers)
        await verifier.until_idle()


async def test_without_drafters_or_with_drafts_off_decoding_is_plain(folder: Path) -> None:
    service = FakeDrafterService(TABLE, 0.8)
    async with serving_drafter(service, folder) as drafter, serving(folder, drafter) as verifier:
        answer = await decode(verifier, start(draft=generation_pb2.DraftOptions(off=True)))
        assert answer.tokens == truth()
        assert answer.finished.statistics.num_drafted == 0
        assert service.num_opens == 0


async def test_where_no_drafter_is_to_be_asked_texts_are_guessed_from_all_the_same(folder: Path) -> None:
    service = FakeDrafterService(TABLE, 0.8)
    async with serving_drafter(service, folder) as drafter, serving(folder, drafter) as verifier:
        wishes = generation_pb2.DraftOptions(pacing="lookup")
        answer = await decode(verifier, start("none", 100, draft=wishes, no_drafters=True))
        assert answer.tokens == truth(100)
        assert answer.finished.statistics.num_drafted == answer.finished.statistics.num_looked_up > 0
        serial = await decode(verifier, start("waits", 60, draft=generation_pb2.DraftOptions(pacing="serial"), no_drafters=True))
        assert serial.tokens == truth()
        assert (serial.finished.statistics.num_drafted, service.num_opens) == (0, 0)
        await verifier.until_idle()


async def test_stop_tokens_and_logprobs(folder: Path) -> None:
    service = FakeDrafterService(TABLE, 1.0)
    async with serving_drafter(service, folder) as drafter, serving(folder, drafter) as verifier:
        for at in range(3, 20):
            stop = truth()[at]
            expected = TABLE.answer(PROMPT, len(PROMPT) + 60, frozenset({stop}))
            answer = await decode(verifier, start(f"s{at}", stop_token_ids=[stop], top_logprobs=2))
            assert answer.tokens == expected
            assert answer.num_logprobs == len(expected)
            assert answer.finished.finish_reason == generation_pb2.FINISH_REASON_STOP_TOKEN
        await verifier.until_idle()


async def test_a_frozen_drafter_costs_deadlines_and_no_token(folder: Path) -> None:
    service = FakeDrafterService(TABLE, 0.9)
    async with serving_drafter(service, folder) as drafter, serving(folder, drafter) as verifier:
        await decode_until(verifier, start("warm", LONG), lambda stats: stats.num_accepted > 0)
        service.freeze()
        answer = await decode(verifier, start("frozen", 200))
        assert answer.tokens == truth(200)
        assert answer.finished.statistics.num_drafted == 0
        service.thaw()
        await decode_until(verifier, start("thawed", LONG), lambda stats: stats.num_accepted > 0)
        await verifier.until_idle()


async def test_a_lost_drafter_is_found_again(folder: Path) -> None:
    service = FakeDrafterService(TABLE, 0.9)
    async with serving_drafter(service, folder) as drafter, serving(folder, drafter) as verifier:
        call = verifier.stub.Decode()
        await call.write(pb.DecodeRequest(start=start("lost", 2000)))
        tokens: list[int] = []
        async for message in call:
            tokens += message.committed.token_ids
            if tokens and service.num_streams == 1:
                service.break_stream()
        assert tokens == truth(2000)
        await verifier.until_connected(drafter)
        await decode_until(verifier, start("after", LONG), lambda stats: stats.num_accepted > 0)
        assert service.num_streams >= 2
        await verifier.until_idle()


async def test_an_incompatible_drafter_is_named_and_never_used(folder: Path) -> None:
    service = FakeDrafterService(TABLE, 0.9)
    service.identity = replace(table_identity(40), vocab_hash="another", model="stranger")
    async with serving_drafter(service, folder) as drafter, serving(folder, drafter) as verifier:
        (pair,) = (await verifier.info()).pairs
        assert not pair.connected
        assert "stranger" in pair.problem
        assert "vocabulary hash" in pair.problem
        assert (await decode(verifier, start())).tokens == truth()
        assert service.num_opens == 0


async def test_garbage_from_a_drafter_ends_its_own_sessions_only(folder: Path) -> None:
    tail = drafter_pb2.Tail(incarnation=1, tree_id=9, token_ids=[1, 2], parents=[-1])
    bad = FakeDrafterService(TABLE, 0.9, garbage=(drafter_pb2.DraftResponseFrame(tail=tail),))
    good = FakeDrafterService(TABLE, 0.9)
    async with (
        serving_drafter(bad, folder, "bad") as bad_address,
        serving_drafter(good, folder, "good") as good_address,
        serving(folder, bad_address, good_address) as verifier,
    ):
        answers = await asyncio.gather(*(decode(verifier, start(f"s{at}", 100)) for at in range(4)))
        for answer in answers:
            assert answer.tokens == truth(100)
        await decode_until(verifier, start("good", LONG), lambda stats: stats.num_accepted > 0)
        await verifier.until_idle()
        assert all(pair.connected for pair in (await verifier.info()).pairs)


async def test_clients_that_leave_free_everything(folder: Path) -> None:
    service = FakeDrafterService(TABLE, 0.9)
    async with serving_drafter(service, folder) as drafter, serving(folder, drafter) as verifier:
        for num_messages in (0, 1, 2, 5):
            call = verifier.stub.Decode()
            await call.write(pb.DecodeRequest(start=start(f"s{num_messages}", 3000)))
            for _ in range(num_messages):
                await call.read()
            call.cancel()
        await verifier.until_idle()
        call = verifier.stub.Decode(timeout=0.05)
        await call.write(pb.DecodeRequest(start=start("deadline", 4000)))
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await verifier.until_idle()


async def test_a_stream_that_never_starts_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "START_TIMEOUT_S", 0.05)
    async with serving(folder) as verifier:
        call = verifier.stub.Decode(timeout=CALL_TIMEOUT_S)
        await call.wait_for_connection()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no start" in await call.details()
        await verifier.until_idle()


async def test_stop_ends_with_what_was_committed(folder: Path) -> None:
    async with serving(folder) as verifier:
        call = verifier.stub.Decode()
        await call.write(pb.DecodeRequest(start=start("stopped", 4000)))
        tokens: list[int] = []
        sent = False
        async for message in call:
            tokens += message.committed.token_ids
            if tokens and not sent:
                sent = True
                await call.write(pb.DecodeRequest(stop=pb.DecodeStop(detail="enough")))
            if message.HasField("finished"):
                assert message.finished.finish_reason == generation_pb2.FINISH_REASON_CANCELLED
        assert 0 < len(tokens) < 4000
        assert tokens == truth(4000)[: len(tokens)]
        await verifier.until_idle()


async def test_what_cannot_be_served_is_refused_by_name(folder: Path) -> None:
    async with serving(folder, max_prompt_len=8) as verifier:
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        cases: list[tuple[pb.DecodeStart, str]] = [
            (start("", 5), "session_id"),
            (start(paused=True), "paused"),
            (start(adapter="lora"), "adapter"),
            (start(draft=generation_pb2.DraftOptions(pacing="magic")), "draft.pacing"),
            (start(draft=generation_pb2.DraftOptions(max_len=65)), "draft.max_len"),
            (start(prefix=[40]), "prefix"),
            (start(max_tokens=0), "max_tokens"),
            (start(top_logprobs=21), "top_logprobs"),
            (start(drafters=["nonsense"]), "drafters"),
            (start(sampling=sampling_pb2.SamplingParams(top_p=2.0)), "sampling.top_p"),
            (start(prefix=[1, 2, 3, 4, 5], num_prompt_tokens=9), "prefix"),
        ]
        for message, field in cases:
            code, sentence = await refusal(verifier, message)
            assert code is invalid, sentence
            assert field in sentence
        call = verifier.stub.Decode()
        await call.write(pb.DecodeRequest(stop=pb.DecodeStop()))
        assert await call.code() is invalid
        await verifier.until_idle()


async def test_no_room_is_said_before_any_work(folder: Path) -> None:
    engine = TableEngine(TABLE, num_blocks=640)
    async with serving(folder, engine=engine, max_sessions=2) as verifier:
        code, _ = await refusal(verifier, start("never", 11000))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        calls = []
        for at in range(2):
            call = verifier.stub.Decode()
            await call.write(pb.DecodeRequest(start=start(f"s{at}", 4900)))
            assert (await call.read()).HasField("started")
            calls.append(call)
        code, sentence = await refusal(verifier, start("s2"))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 sessions" in sentence
        for call in calls:
            call.cancel()
        await verifier.until_idle()


async def test_a_live_session_is_taken_and_a_newer_incarnation_takes_over(folder: Path) -> None:
    async with serving(folder) as verifier:
        first = verifier.stub.Decode()
        await first.write(pb.DecodeRequest(start=start("same", 4000)))
        assert (await first.read()).HasField("started")
        code, _ = await refusal(verifier, start("same"))
        assert code is grpc.StatusCode.ALREADY_EXISTS
        prefix = PROMPT + truth()[:10]
        newer = pb.DecodeStart(session_id="same", incarnation=2, prefix=prefix, num_prompt_tokens=4, max_tokens=30)
        newer.sampling.temperature = 0.0
        answer = await decode(verifier, newer)
        assert answer.tokens == truth(30)[10:]
        await verifier.until_idle()


class FaultyEngine(TableEngine):
    """Raises once when told to."""

    fault = False

    def step(self, plan: StepPlan) -> StepResult:
        if self.fault:
            self.fault = False
            raise RuntimeError("a kernel failed")
        return super().step(plan)


async def test_a_failing_step_costs_its_own_sessions(folder: Path) -> None:
    engine = FaultyEngine(TABLE)
    async with serving(folder, engine=engine) as verifier:
        engine.fault = True
        code, _ = await refusal(verifier, start("unlucky"))
        assert code is grpc.StatusCode.INTERNAL
        assert (await decode(verifier, start("next"))).tokens == truth()
        await verifier.until_idle()


async def test_a_client_that_leaves_while_its_stream_ends_leaves_no_session_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut short at the first thing that the end waits for."""

    async def cut_short(_: Requests[pb.DecodeRequest]) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(Requests, "close", cut_short)
    async with serving(folder) as verifier:
        call = verifier.stub.Decode(timeout=CALL_TIMEOUT_S)
        await call.write(pb.DecodeRequest(start=start(max_tokens=4000)))
        await call.read()
        committed = await call.read()
        assert committed.HasField("committed")
        call.cancel()
        await verifier.until_idle()
