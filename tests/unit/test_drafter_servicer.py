"""DrafterService over a real socket, with a table engine behind it: handshake, batches, pings, hostile peers, and zero left at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import grpc
import numpy as np
import pytest

from drafter_service import servicer
from drafter_service.drafting_thread import LoadedDrafter
from drafter_service.scheduler import SchedulerLimits
from drafter_service.servicer import DrafterServicer
from fakes_drafting import VOCAB_SIZE, TableEngine, fake_identity, table_ranking
from outrider.drafting.contract import DraftSource, Proposal, ProposeRequest
from outrider.drafting.model_source import ModelSource
from outrider.errors import ProtocolViolation, Unavailable
from outrider.rpc.channel import open_channel
from outrider.rpc.context import Context
from outrider.rpc.convert.drafter_frames import drafter_frames
from outrider.rpc.convert.link import FromDrafter, Hello, Ping, Pong, ToDrafter, Welcome
from outrider.rpc.convert.verifier_frames import draft_request
from outrider.rpc.server import RpcServer
from outrider.session.drafter_admission import DrafterBounds
from outrider.types.frames import Close, CloseReason, Commit, DraftLimits, Open, Refused, Tail, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import extend_hash
from outrider.v1 import drafter_pb2
from outrider.v1.drafter_pb2_grpc import DrafterServiceStub, add_DrafterServiceServicer_to_server

WITHIN_S = 60.0
REFUSED_WITHIN_S = 5.0
HELLO = Hello(fake_identity(), "tests")


@dataclass
class Service:
    """One drafter in this process."""

    servicer: DrafterServicer
    server: RpcServer
    stub: DrafterServiceStub
    failures: list[int] = field(default_factory=list)

    async def live(self) -> tuple[int, int, int]:
        """Sessions, streams, KV blocks held."""
        info = await self.stub.GetInfo(drafter_pb2.DrafterServiceGetInfoRequest())
        return info.live.sessions, info.live.streams, info.live.kv_blocks_used

    async def until_live(self, expected: tuple[int, int, int]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while await self.live() != expected:
                await asyncio.sleep(0)

    async def until_queued(self, num_messages: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while self.servicer.thread.inbox.num_messages < num_messages:
                await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    folder: Path, make: Callable[[TableEngine], DraftSource] = ModelSource, limits: SchedulerLimits | None = None
) -> AsyncIterator[Service]:
    failures: list[int] = []
    servicer = DrafterServicer(limits or SchedulerLimits(), 1, lambda: failures.append(1))
    engine = TableEngine()
    bounds = DrafterBounds("model", VOCAB_SIZE, frozenset(), 500, 400)
    servicer.serve(*await servicer.thread.start(lambda: LoadedDrafter(engine, make(engine), bounds)))
    server = RpcServer([f"unix:{folder}/drafter.sock"])
    server.add("outrider.v1.DrafterService", add_DrafterServiceServicer_to_server, servicer)
    await server.start()
    await server.set_serving()
    try:
        async with open_channel(server.address) as channel:
            yield Service(servicer, server, DrafterServiceStub(channel), failures)  # type: ignore[no-untyped-call]
    finally:
        await server.stop(servicer.drain)
        await servicer.thread.stop()
    if servicer.thread.failure is None:
        assert engine.num_free_blocks == engine.limits.num_blocks


class Peer:
    """A verifier's end of one stream."""

    def __init__(self, service: Service) -> None:
        self.call = service.stub.Draft()
        self.waiting: list[FromDrafter] = []

    async def send(self, *frames: ToDrafter) -> None:
        await self.call.write(draft_request(frames))

    async def next(self) -> FromDrafter:
        async with asyncio.timeout(WITHIN_S):
            while not self.waiting:
                message = await self.call.read()
                assert isinstance(message, drafter_pb2.DraftResponse), "the stream ended"
                self.waiting = drafter_frames(message)
        return self.waiting.pop(0)

    async def tails(self, sessions: set[int]) -> dict[int, list[int]]:
        """Guesses of each session up to its pause."""
        tokens: dict[int, list[int]] = {session: [] for session in sessions}
        paused: set[int] = set()
        while paused != sessions:
            frame = await self.next()
            if isinstance(frame, Tail):
                tokens[frame.session] += frame.tokens.tolist()
                if frame.end is not TailEnd.MORE:
                    paused.add(frame.session)
        return tokens

    async def status(self) -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(WITHIN_S):
            with suppress(grpc.aio.AioRpcError):
                while isinstance(await self.call.read(), drafter_pb2.DraftResponse):
                    pass
            return await self.call.code(), await self.call.details()


async def greeted(service: Service) -> Peer:
    peer = Peer(service)
    await peer.send(HELLO)
    assert isinstance(await peer.next(), Welcome)
    return peer


def opening(session: int, tokens: list[int], until: int, *, nodes: int = 32) -> Open:
    prefix = np.array(tokens, np.int32)
    limits = DraftLimits(200, nodes)
    return Open(session, 1, "r", prefix, len(tokens), len(tokens), SamplingParams(), NoiseAddress(0), limits, until)


def continuation(tokens: list[int], length: int) -> list[int]:
    answer = list(tokens)
    while len(answer) < len(tokens) + length:
        answer.append(table_ranking(answer)[0])
    return answer[len(tokens) :]


async def test_one_stream_drafts_for_many_sessions_and_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        peer = Peer(service)
        await peer.send(HELLO, *(opening(session, [1, session], 7) for session in range(4)))
        welcome = await peer.next()
        assert isinstance(welcome, Welcome)
        assert welcome.drafter == fake_identity()
        assert await peer.tails(set(range(4))) == {session: continuation([1, session], 5) for session in range(4)}
        truth = [1, 2, *continuation([1, 2], 3)]
        await peer.send(Commit(2, 1, 2, np.array(truth[2:], np.int32), extend_hash(0, truth), 2, 10, 9))
        assert await peer.tails({2}) == {2: continuation([1, 2], 7)[5:]}
        assert (await service.live())[:2] == (4, 1)
        await peer.send(*(Close(session, 1, CloseReason.FINISHED) for session in range(4)))
        await service.until_live((0, 1, 0))
        await peer.call.done_writing()
        assert await peer.status() == (grpc.StatusCode.OK, "")
        await service.until_live((0, 0, 0))


async def test_a_stream_that_is_cancelled_frees_its_sessions(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        peer = await greeted(service)
        other = await greeted(service)
        await peer.send(opening(1, [1], 150), opening(2, [2], 150))
        await other.send(opening(1, [3], 6))
        await other.tails({1})
        peer.call.cancel()
        await service.until_live((1, 1, 58))
        other.call.cancel()
        await service.until_live((0, 0, 0))


async def test_a_pair_that_does_not_match_is_told_which_side_has_what(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        peer = Peer(service)
        await peer.send(Hello(replace(fake_identity(), vocab_hash="z" * 64, model="other"), "tests"))
        code, detail = await peer.status()
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "'table' has vvvvvvvvvvvv" in detail
        assert "'other' has zzzzzzzzzzzz" in detail
        await service.until_live((0, 0, 0))


@pytest.mark.parametrize("first", [Ping(1), opening(1, [1], 4)])
async def test_a_stream_without_a_hello_is_refused(tmp_path: Path, first: ToDrafter) -> None:
    async with serving(tmp_path) as service:
        peer = Peer(service)
        await peer.send(first, HELLO)
        code, detail = await peer.status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "Hello" in detail


async def test_an_empty_stream_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        peer = Peer(service)
        await peer.call.done_writing()
        assert (await peer.status())[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_second_hello_ends_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        peer = await greeted(service)
        await peer.send(HELLO)
        assert (await peer.status())[0] is grpc.StatusCode.INVALID_ARGUMENT


class SlowWire:
    """A call's context whose messages are under way until they are let go. num_sent: of those that arrived."""

    def __init__(self) -> None:
        self.is_writing, self.let_go = asyncio.Event(), asyncio.Event()
        self.num_sent = 0

    async def write(self, message: drafter_pb2.DraftResponse) -> None:
        self.is_writing.set()
        await self.let_go.wait()
        self.num_sent += 1


@pytest.mark.parametrize("last", [HELLO, None], ids=["a second hello", "its end"])
async def test_a_stream_ends_behind_the_message_under_way(tmp_path: Path, last: Hello | None) -> None:
    """grpc takes no status while there is one: it would drop the status, and the verifier would never hear of the end."""
    async with serving(tmp_path) as service:
        wire = SlowWire()

        async def said() -> AsyncIterator[drafter_pb2.DraftRequest]:
            yield draft_request((HELLO,))
            await wire.is_writing.wait()
            if last is not None:
                yield draft_request((last,))

        call = asyncio.ensure_future(service.servicer.Draft(said(), cast(Context, wire)))
        async with asyncio.timeout(WITHIN_S):
            await wire.is_writing.wait()
        await service.until_live((0, 0, 0))
        assert not call.done()
        wire.let_go.set()
        ends = await asyncio.gather(call, return_exceptions=True)
        assert [type(end) for end in ends] == [type(None) if last is None else ProtocolViolation]
        assert wire.num_sent == 1


async def test_a_ping_is_answered_with_both_clocks(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        peer = await greeted(service)
        await peer.send(Ping(12345))
        await peer.send(Ping(12346))
        first, second = await peer.next(), await peer.next()
        assert isinstance(first, Pong)
        assert isinstance(second, Pong)
        assert (first.sent_ns, second.sent_ns) == (12345, 12346)
        assert 0 < first.clock_ns <= second.clock_ns


async def test_garbage_ends_its_own_session_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        peer = await greeted(service)
        await peer.send(opening(1, [1], 5), opening(2, [2], 5))
        await peer.tails({1, 2})
        garbage = drafter_pb2.DraftRequest()
        garbage.frames.add().commit.MergeFrom(drafter_pb2.Commit(session=1, incarnation=1, begin=1, token_ids=[1 << 31]))
        garbage.frames.add()
        garbage.frames.add().commit.MergeFrom(drafter_pb2.Commit(session=77, incarnation=1, begin=9, token_ids=[1]))
        await peer.call.write(garbage)
        closed = await peer.next()
        assert isinstance(closed, Close)
        assert (closed.session, closed.reason) == (1, CloseReason.PROTOCOL)
        truth = [2, *continuation([2], 2)]
        await peer.send(Commit(2, 1, 1, np.array(truth[1:], np.int32), extend_hash(0, truth), 2, 10, 7))
        assert await peer.tails({2}) == {2: continuation([2], 6)[4:]}
        peer.call.cancel()
        await service.until_live((0, 0, 0))


async def test_a_stream_too_many_is_refused_even_if_it_was_opened_before_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "MAX_STREAMS", 1)
    async with serving(tmp_path) as service:
        late = Peer(service)
        await late.call.wait_for_connection()
        first = await greeted(service)
        await late.send(HELLO)
        assert (await late.status())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.send(opening(1, [1], 3))
        assert await first.tails({1}) == {1: continuation([1], 2)}


async def test_a_session_too_many_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=SchedulerLimits(max_sessions=1)) as service:
        peer = await greeted(service)
        await peer.send(opening(1, [1], 3), opening(2, [1], 3))
        frames = [await peer.next() for _ in range(3)]
        assert [frame.session for frame in frames if isinstance(frame, Refused)] == [2]


async def test_a_drain_closes_sessions_and_ends_streams_cleanly(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        peer = await greeted(service)
        await peer.send(opening(1, [1], 4))
        await peer.tails({1})
        stopping = asyncio.ensure_future(service.server.stop(service.servicer.drain))
        closed = await peer.next()
        assert isinstance(closed, Close)
        assert closed.reason is CloseReason.DRAINING
        assert await peer.status() == (grpc.StatusCode.OK, "")
        await stopping
        late = Peer(service)
        assert (await late.status())[0] is grpc.StatusCode.UNAVAILABLE


async def saying_hello() -> AsyncIterator[drafter_pb2.DraftRequest]:
    yield draft_request((HELLO,))
    await asyncio.Event().wait()


async def test_a_drain_does_not_wait_for_who_shakes_hands_during_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        wire, other = SlowWire(), SlowWire()
        call = asyncio.ensure_future(service.servicer.Draft(saying_hello(), cast(Context, wire)))
        async with asyncio.timeout(WITHIN_S):
            await wire.is_writing.wait()
        draining = asyncio.ensure_future(service.servicer.drain(WITHIN_S))
        async with asyncio.timeout(WITHIN_S):
            while not all(stream.finishing for stream in service.servicer._streams.values()):
                await asyncio.sleep(0)
        other.let_go.set()
        with pytest.raises(Unavailable, match="draining"):
            async with asyncio.timeout(REFUSED_WITHIN_S):
                await service.servicer.Draft(saying_hello(), cast(Context, other))
        assert not draining.done()
        wire.let_go.set()
        await asyncio.wait_for(asyncio.gather(call, draining), WITHIN_S)


class Held(ModelSource):
    """Drafts only while it is let."""

    let = threading.Event()

    def propose(self, requests: list[ProposeRequest]) -> list[Proposal]:
        assert self.let.wait(WITHIN_S)
        return super().propose(requests)


async def test_a_busy_thread_holds_a_flood_back_and_loses_nothing(tmp_path: Path) -> None:
    Held.let.clear()
    async with serving(tmp_path, Held) as service:
        peer = await greeted(service)
        await peer.send(opening(1, [1], 3))
        truth = [1]
        flood = []
        for _ in range(180):
            truth = [*truth, table_ranking(truth)[0]]
            flood.append(Commit(1, 1, len(truth) - 1, np.array(truth[-1:], np.int32), extend_hash(0, truth), 0, 1, len(truth) + 2))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write_all(peer, [commit for commit in flood for _ in range(3)]))
            await service.until_queued(256)
            Held.let.set()
        seen = 0
        while seen < len(truth) + 2:
            frame = await peer.next()
            assert not isinstance(frame, Close), frame
            if isinstance(frame, Tail) and len(frame.tokens):
                seen = frame.base + frame.first_node + len(frame.tokens)
        peer.call.cancel()


async def write_all(peer: Peer, commits: list[Commit]) -> None:
    for commit in commits:
        await peer.send(commit)


class Broken(ModelSource):
    """A bug, not an operating error."""

    def propose(self, requests: list[ProposeRequest]) -> list[Proposal]:
        raise ZeroDivisionError("a bug in the source")


async def test_a_bug_in_the_thread_ends_the_streams_and_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, Broken) as service:
        peer = await greeted(service)
        await peer.send(opening(1, [1], 4))
        code, _ = await peer.status()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert service.failures == [1]
        assert "a bug in the source" in caplog.text


async def test_a_loader_that_fails_fails_the_start() -> None:
    servicer = DrafterServicer(SchedulerLimits(), 1, lambda: None)

    def load() -> LoadedDrafter:
        raise FileNotFoundError("no such model")

    with pytest.raises(FileNotFoundError, match="no such model"):
        await servicer.thread.start(load)
