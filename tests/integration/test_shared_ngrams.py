"""Verifiers that share n-grams, over real grpc and a real Redis: the same tokens whatever is in it or becomes of it, in fewer rounds."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fakes import TableEngine, TruthTable
from fakes_redis import HOST, redis_server, strange_server
from fakes_verifier_service import CALL_TIMEOUT_S, Answer, Serving, decode, serving, start
from outrider.session.shared_lookup import END_LEN
from outrider.store.ngram_keys import NgramKeys
from outrider.store.redis_store import RedisNgrams
from outrider.store.shared_ngrams import SharedNgrams
from outrider.telemetry import names
from outrider.v1 import generation_pb2
from outrider.v1 import verifier_pb2 as pb
from outrider_bench.chaos.redis_server import RedisServer
from outrider_bench.loopback import free_address
from verifier_service.settings import DraftDefaults
from verifier_service.sharing_settings import SharingSettings

TABLE = TruthTable(vocab_size=100_000, seed=3)
PROMPT = [3000 + number for number in range(24)]
NUM_TOKENS = 64
TRUTH = TABLE.answer(PROMPT, len(PROMPT) + NUM_TOKENS, frozenset())
MEMORY = SharingSettings(memory=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="ov-") as name:
        yield Path(name)


@pytest.fixture
def server(folder: Path) -> Iterator[RedisServer]:
    with redis_server(folder) as running:
        yield running


@asynccontextmanager
async def sharing(folder: Path, settings: SharingSettings, name: str = "v") -> AsyncIterator[Serving]:
    draft = DraftDefaults(pacing="lookup", draft_len=4)
    async with serving(folder, engine=TableEngine(TABLE), sharing=settings, draft=draft, listen=f"unix:{folder}/{name}.sock") as verifier:
        yield verifier


def through(redis: RedisServer) -> SharingSettings:
    return SharingSettings(redis_url=redis.url)


def question(session_id: str, tenant: str = "", *, off: bool = False, no_lookup: bool = False) -> pb.DecodeStart:
    options = generation_pb2.DraftOptions(off=off, no_lookup=no_lookup)
    message = start(session_id, NUM_TOKENS, tenant=tenant, draft=options)
    message.prefix[:] = PROMPT
    message.num_prompt_tokens = len(PROMPT)
    return message


def shared_of(verifier: Serving) -> SharedNgrams:
    assert verifier.server.sharing is not None
    return verifier.server.sharing


async def until_known(verifier: Serving, at: int, tenant: str = "") -> None:
    """Return once the verifier's memory knows what follows the truth's first `at` tokens."""
    shared = shared_of(verifier)
    keys = shared.keys(tenant, "", verifier.engine.identity)
    key = keys.at_end((PROMPT + TRUTH)[: len(PROMPT) + at])[0][1]
    async with asyncio.timeout(CALL_TIMEOUT_S):
        while not shared.memory.lookup([key])[0]:
            await asyncio.sleep(0)


async def until_stored(verifier: Serving, num_answers: int) -> None:
    async with asyncio.timeout(CALL_TIMEOUT_S):
        while shared_of(verifier).num_published < num_answers:
            await asyncio.sleep(0)


async def asked(verifier: Serving, message: pb.DecodeStart) -> Answer:
    answer = await decode(verifier, message)
    assert answer.tokens == TRUTH
    return answer


def emitted_per_round(answer: Answer) -> float:
    return len(answer.tokens) / answer.finished.statistics.num_rounds


# --- the gain ----------------------------------------------------------------------------------------------------------------


async def test_the_second_time_takes_fewer_rounds_for_the_same_tenant_only(folder: Path) -> None:
    async with sharing(folder, MEMORY) as verifier:
        first = await asked(verifier, question("1", "a"))
        assert emitted_per_round(first) < 1.1
        await until_known(verifier, 0, "a")
        second = await asked(verifier, question("2", "a"))
        assert emitted_per_round(second) > 3.0
        assert second.finished.statistics.num_looked_up_accepted > NUM_TOKENS / 2
        stranger = await asked(verifier, question("3", "b"))
        assert stranger.finished.statistics.num_looked_up == 0
        for off in (False, True):
            opted_out = await asked(verifier, question(f"out{off}", "a", off=off, no_lookup=not off))
            assert opted_out.finished.statistics.num_looked_up == 0
        verifier.server.refresh_metrics()
        values = {series.metric: series.value for series in verifier.server.metrics.snapshot()}
        assert values[names.NUM_SHARED_NGRAM_ACCEPTED_TOKENS] == second.finished.statistics.num_looked_up_accepted
        assert names.SHARED_NGRAMS_CONNECTED not in values, "there is no Redis"


@pytest.mark.parametrize(("pacing", "warned"), [("serial", True), ("lookup", False)])
async def test_a_pacing_that_would_not_use_it_is_told_of(folder: Path, pacing: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(folder, sharing=MEMORY, draft=DraftDefaults(pacing=pacing)):
        assert ("takes no guesses from texts" in caplog.text) is warned


async def test_who_opted_out_is_not_learnt(folder: Path) -> None:
    async with sharing(folder, MEMORY) as verifier:
        await asked(verifier, question("1", no_lookup=True))
        await asked(verifier, question("2", off=True))
        await verifier.until_idle()
        assert shared_of(verifier)._queue.qsize() == len(shared_of(verifier).memory) == 0


@pytest.mark.parametrize(("has_stop_strings", "is_learnt"), [(False, True), (True, False)])
async def test_an_answer_that_may_have_ended_earlier_is_not_learnt(folder: Path, *, has_stop_strings: bool, is_learnt: bool) -> None:
    async with sharing(folder, MEMORY) as verifier:
        message = question("1")
        message.has_stop_strings = has_stop_strings
        await asked(verifier, message)
        await verifier.until_idle()
        shared_of(verifier).stop(CALL_TIMEOUT_S)  # once it has taken what waits
        assert (shared_of(verifier).num_learnt == 1) is is_learnt


async def test_a_cancelled_answer_is_not_learnt(folder: Path) -> None:
    """It may have been decoded beyond a stop that only the gateway knows."""
    async with sharing(folder, MEMORY) as verifier:
        call = verifier.stub.Decode(timeout=CALL_TIMEOUT_S)
        message = question("1")
        message.max_tokens = 2000
        await call.write(pb.DecodeRequest(start=message))
        async for response in call:
            if response.WhichOneof("message") == "committed":
                await call.write(pb.DecodeRequest(stop=pb.DecodeStop(detail="a stop string")))
                break
        async for response in call:
            if response.WhichOneof("message") == "finished":
                break
        await verifier.until_idle()
        assert shared_of(verifier)._queue.qsize() == len(shared_of(verifier).memory) == 0


async def test_another_verifier_profits_through_redis(folder: Path, server: RedisServer) -> None:
    async with sharing(folder, through(server)) as one, sharing(folder, through(server), "w") as other:
        first = await asked(one, question("1", "a"))
        await until_stored(one, 1)
        second = await asked(other, question("1", "a"))
        await until_known(other, NUM_TOKENS - 1, "a")
        third = await asked(other, question("2", "a"))
        assert emitted_per_round(first) < 1.1
        assert emitted_per_round(third) > 3.0
        assert emitted_per_round(second) >= emitted_per_round(first), "fetched while it ran"
        stranger = await asked(other, question("3", "b"))
        assert stranger.finished.statistics.num_looked_up == 0
        one.server.refresh_metrics()
        values = {(series.metric, series.label_values): series.value for series in one.server.metrics.snapshot()}
        assert values[names.SHARED_NGRAMS_CONNECTED, ("verifier",)] == 1.0
        assert values[names.NUM_SHARED_NGRAM_PUBLICATIONS, ("verifier", "stored")] == 1.0


# --- exactness ---------------------------------------------------------------------------------------------------------------


def fill(redis: RedisServer, wrong_by: int) -> None:
    """Entries for every place of the answer: the truth, or other tokens."""
    identity = TableEngine(TABLE).identity
    store, text = RedisNgrams(redis.url, answer_timeout_s=CALL_TIMEOUT_S), PROMPT + TRUTH
    entries = NgramKeys("", identity.vocab_hash, identity.vocab_size).entries(text, len(PROMPT), len(text))
    assert store.observe([(key, tuple((token + wrong_by) % TABLE.vocab_size for token in followed)) for key, followed in entries])
    store.close()


@pytest.mark.parametrize("wrong_by", [0, 1])
async def test_right_and_wrong_continuations_give_the_same_tokens(folder: Path, server: RedisServer, wrong_by: int) -> None:
    fill(server, wrong_by)
    async with sharing(folder, through(server)) as verifier:
        shared, text = shared_of(verifier), PROMPT + TRUTH
        keys = shared.keys("", "", verifier.engine.identity)
        for at in range(NUM_TOKENS):
            shared.texts(keys).find(text[: len(PROMPT) + at][-END_LEN:])
            await until_known(verifier, at)
        statistics = (await asked(verifier, question("1"))).finished.statistics
        assert statistics.num_looked_up > 0
        assert (statistics.num_looked_up_accepted > 0) is (wrong_by == 0)


async def test_guesses_that_are_always_wrong_are_verified_ever_less(folder: Path) -> None:
    """Whatever is learnt is spoilt again before each question: the odds find out."""
    async with sharing(folder, MEMORY) as verifier:
        shared = shared_of(verifier)
        keys, text = shared.keys("", "", verifier.engine.identity), PROMPT + TRUTH
        spoilt = [(key, tuple(token % 999 + 1 for token in followed)) for key, followed in keys.entries(text, len(PROMPT), len(text))]
        drafted: list[int] = []
        for number in range(8):
            async with asyncio.timeout(CALL_TIMEOUT_S):
                while shared.num_learnt < number:
                    await asyncio.sleep(0)
            shared.memory.observe(spoilt)
            answer = await asked(verifier, question(str(number)))
            drafted.append(answer.finished.statistics.num_looked_up)
        num_free = NUM_TOKENS - 1  # on this table a row more costs nothing, so one guess a round always pays
        assert drafted[-1] - num_free < (drafted[0] - num_free) / 2, drafted


# --- Redis, lost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["nobody", "silent", "garbage"])
async def test_a_redis_that_is_none_from_the_start_costs_nothing_but_guesses(folder: Path, url: str) -> None:
    with strange_server(lambda asked: b"" if url == "silent" else b"\xff\x00 what? \r\n") as strange:
        settings = SharingSettings(redis_url=f"redis://{free_address(HOST)}" if url == "nobody" else strange)
        async with sharing(folder, settings) as verifier:
            await asked(verifier, question("1"))
            await until_known(verifier, 0)
            second = await asked(verifier, question("2"))
            assert emitted_per_round(second) > 3.0, "this process still shares with itself"


async def test_kills_stops_and_an_empty_restart_lose_no_request(folder: Path, server: RedisServer) -> None:
    async with sharing(folder, through(server)) as verifier:
        shared = shared_of(verifier)
        assert shared.store is not None
        over, num_asked = asyncio.Event(), 0

        async def keep_asking(name: str) -> None:
            nonlocal num_asked
            while not over.is_set():
                num_asked += 1
                await asked(verifier, question(f"{name}-{num_asked}", f"tenant{num_asked % 3}"))

        async def until(*, connected: bool) -> None:
            """Seen by what the verifier does, whose answers go on meanwhile."""
            assert shared.store is not None
            async with asyncio.timeout(CALL_TIMEOUT_S):
                while shared.store.counts.is_connected is not connected:
                    await asyncio.sleep(0.01)

        askers = [asyncio.ensure_future(keep_asking(name)) for name in "abc"]
        await until(connected=True)
        for _ in range(2):
            server.kill()
            await until(connected=False)
            await asyncio.to_thread(server.start)
            await until(connected=True)
            server.pause()
            await until(connected=False)
            server.go_on()
            await until(connected=True)
        await until_stored(verifier, shared.num_published + 1)
        over.set()
        await asyncio.wait_for(asyncio.gather(*askers), CALL_TIMEOUT_S)
        assert num_asked > 8
        assert shared.store.counts.num_failures >= 4
