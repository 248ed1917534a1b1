"""A verifier and a drafter of one machine, over real sockets: frames go past gRPC, and whatever happens to a lane costs no token.

Real parts: both services whole, with gRPC, lanes and their door. Only the models are tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from fakes import TableEngine, TruthTable
from fakes_lanes import WITHIN_S, LaneDrafter, lanes_of, open_lanes, serving_lane_drafter, taken_by_the_hand
from outrider.engine.config import EngineConfig
from outrider.rpc.convert.drafter_frames import draft_response
from outrider.rpc.convert.link import Ping, Pong, ToDrafter
from outrider.rpc.convert.verifier_frames import draft_request
from outrider.rpc.lane import Lane
from outrider.v1 import generation_pb2, sampling_pb2
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.verifier_pb2_grpc import VerifierServiceStub
from verifier_service import lanes as verifier_lanes
from verifier_service.outbox import Outbox
from verifier_service.service import VerifierServer
from verifier_service.settings import DraftDefaults, VerifierSettings

TABLE = TruthTable(vocab_size=40, seed=3)
PROMPT = [5, 6, 7, 8]
LONG = 800
PACINGS = ["serial", "pearl"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="ol-") as name:
        yield Path(name)


@dataclass
class Pair:
    """Both sides, and a client of the verifier."""

    drafter: LaneDrafter
    server: VerifierServer
    stub: VerifierServiceStub

    @property
    def lanes(self) -> list[Lane]:
        """The verifier's open ends."""
        return lanes_of(self.server.scheduler._lanes)

    async def info(self) -> pb.PairInfo:
        response: pb.VerifierServiceGetInfoResponse = await self.stub.GetInfo(pb.VerifierServiceGetInfoRequest())
        (pair,) = response.pairs
        return pair

    async def until_paired(self, num_streams: int) -> None:
        """Return once the drafter's stream number so many is up, with a lane."""
        async with asyncio.timeout(WITHIN_S):
            while self.drafter.servicer.num_streams < num_streams or not (await self.info()).has_lane or len(self.lanes) != 1:
                await asyncio.sleep(0)
        assert (await self.info()).connected

    async def until_idle(self) -> None:
        """Return once neither side holds a session or a block."""
        scheduler, engine = self.server.scheduler, self.server.scheduler._engine
        async with asyncio.timeout(WITHIN_S):
            while scheduler.snapshot.num_sessions or scheduler.snapshot.num_free_blocks != engine.limits.num_blocks:
                await asyncio.sleep(0)
        await self.drafter.until_free()


@contextlib.asynccontextmanager
async def paired(folder: Path, *, with_lanes: bool = True, pacing: str = "serial") -> AsyncIterator[Pair]:
    """The pair, up; afterwards no end of a lane is open."""
    assert open_lanes() == []
    async with serving_lane_drafter(TABLE, folder, with_lanes=with_lanes) as drafter:
        settings = VerifierSettings(
            engine=EngineConfig("table"),
            listen=f"unix:{folder}/v.sock",
            drafters=(drafter.address,),
            draft=DraftDefaults(pacing=pacing, draft_len=4, lookup=False),
            wait_drafters_s=30.0,
        )
        server = VerifierServer(settings, lambda: TableEngine(TABLE), lambda: None)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(server.rpc.address) as channel:
                pair = Pair(drafter, server, VerifierServiceStub(channel))  # type: ignore[no-untyped-call]
                if with_lanes:
                    await pair.until_paired(1)
                yield pair
                await pair.until_idle()
        finally:
            drafter.source.let.set()
            await server.rpc.stop(server.drain, 0.5)
            await server.stop()
    assert not drafter.failures
    assert open_lanes() == []


def start(session_id: str = "s", max_tokens: int = 60, **fields: object) -> pb.DecodeStart:
    base = pb.DecodeStart(session_id=session_id, incarnation=1, prefix=PROMPT, num_prompt_tokens=len(PROMPT), max_tokens=max_tokens)
    base.sampling.CopyFrom(sampling_pb2.SamplingParams(temperature=0.0))
    base.MergeFrom(pb.DecodeStart(**fields))  # type: ignore[arg-type]
    return base


def truth(max_tokens: int = 60) -> list[int]:
    return TABLE.answer(PROMPT, len(PROMPT) + max_tokens, frozenset())


async def decode(pair: Pair, message: pb.DecodeStart, hurt: Callable[[], None] | None = None) -> generation_pb2.DraftStatistics:
    """One whole stream, whose tokens must be plain decoding's. hurt: called once, after a drafted token has come in its first half."""
    call = pair.stub.Decode(timeout=WITHIN_S)
    await call.write(pb.DecodeRequest(start=message))
    tokens: list[int] = []
    finished = pb.DecodeFinished()
    async for response in call:
        tokens += response.committed.token_ids
        is_early = len(tokens) < message.max_tokens // 2
        if hurt is not None and is_early and sampling_pb2.TOKEN_ORIGIN_ACCEPTED in response.committed.origins:
            hurt()
            hurt = None
        if response.HasField("finished"):
            finished = response.finished
    assert tokens == truth(message.max_tokens)
    return finished.statistics


async def hurt_in_mid_answer(pair: Pair, hurt: Callable[[], None]) -> generation_pb2.DraftStatistics:
    """As `decode`. A busy machine may finish an answer before the drafter has opened: ask until one was drafted for and hurt."""
    was_hurt: list[bool] = []

    def hurt_once() -> None:
        was_hurt.append(True)
        hurt()

    async with asyncio.timeout(WITHIN_S):
        while True:
            statistics = await decode(pair, start("hurt", LONG), hurt_once)
            if was_hurt:
                return statistics


async def drafts_again(pair: Pair, max_tokens: int = 60) -> None:
    """Ask until some guesses were right and some wrong."""
    num_accepted = num_rejected = 0
    async with asyncio.timeout(WITHIN_S):
        while not num_accepted or not num_rejected:
            statistics = await decode(pair, start("again", max_tokens))
            num_accepted += statistics.num_accepted
            num_rejected += statistics.num_drafted - statistics.num_accepted


@pytest.mark.parametrize("pacing", PACINGS)
@pytest.mark.parametrize("with_lanes", [True, False])
async def test_answers_are_plain_decodings_with_lanes_and_without(folder: Path, with_lanes: bool, pacing: str) -> None:
    async with paired(folder, with_lanes=with_lanes, pacing=pacing) as pair:
        info = await pair.info()
        assert (info.connected, info.has_lane, len(pair.lanes)) == (True, with_lanes, with_lanes)
        await asyncio.gather(*(decode(pair, start(f"s{at}", 100 + at)) for at in range(6)))
        await drafts_again(pair, LONG)  # without lanes, a short answer is often over before a drafter has opened
        plain = await decode(pair, start("plain", draft=generation_pb2.DraftOptions(off=True)))
        assert plain.num_drafted == 0
        await pair.until_idle()
        assert (pair.drafter.servicer.num_frames == 0) is with_lanes, "what the gRPC stream carried"
        assert pair.drafter.servicer.num_streams == 1


def written(data: bytes) -> Callable[[socket.socket], None]:
    return lambda end: end.sendall(data)


def framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


HURTS: dict[str, Callable[[socket.socket], None]] = {
    "closed": lambda end: end.shutdown(socket.SHUT_RDWR),
    "half closed": lambda end: end.shutdown(socket.SHUT_WR),
    "endless message": written(b"\xff" * 8),
    "not protobuf": written(framed(b"\xff" * 64)),
}


async def broken_in_mid_answer(pair: Pair, ends: Callable[[], list[Lane]], how: Callable[[socket.socket], None]) -> None:
    """Hurt the lane on one side while an answer is drafted: not a token changes, the pair comes back, its sessions are gone meanwhile."""

    def hurt() -> None:
        (lane,) = ends()
        with taken_by_the_hand(lane) as end:
            end.setblocking(True)
            how(end)

    stats = await hurt_in_mid_answer(pair, hurt)
    assert stats.num_drafter_losses == 1
    await pair.until_paired(2)
    await drafts_again(pair)
    await pair.until_idle()
    await pair.drafter.until_lanes(1)
    assert pair.drafter.servicer.num_streams == 2
    assert pair.drafter.servicer.num_frames == 0
    assert len(open_lanes()) == 2


@pytest.mark.parametrize("how", [*HURTS, "pong"])
@pytest.mark.parametrize("pacing", PACINGS)
async def test_a_drafter_that_breaks_its_lane_costs_no_token(folder: Path, pacing: str, how: str) -> None:
    hurts = HURTS | {"pong": written(framed(draft_response([Pong(1, 2)]).SerializeToString()))}
    async with paired(folder, pacing=pacing) as pair:
        await broken_in_mid_answer(pair, lambda: pair.drafter.lanes, hurts[how])


@pytest.mark.parametrize("how", [*HURTS, "ping"])
async def test_a_verifier_that_breaks_its_lane_frees_its_sessions_at_the_drafter(folder: Path, how: str) -> None:
    hurts = HURTS | {"ping": written(framed(draft_request([Ping(1)]).SerializeToString()))}
    async with paired(folder) as pair:
        await broken_in_mid_answer(pair, lambda: pair.lanes, hurts[how])


async def test_a_lane_that_breaks_while_nothing_is_said_is_found_again(folder: Path) -> None:
    async with paired(folder) as pair:
        for num_streams in (2, 3):
            (lane,) = pair.lanes
            with taken_by_the_hand(lane) as end:
                end.shutdown(socket.SHUT_RDWR)
            await pair.until_paired(num_streams)
            await drafts_again(pair)


async def test_a_stream_that_ends_takes_its_lane_along(folder: Path) -> None:
    async with paired(folder) as pair:

        def end_stream() -> None:
            (stream,) = pair.drafter.servicer._streams.values()
            stream.finishing = True
            stream.has_news.set()

        stats = await hurt_in_mid_answer(pair, end_stream)
        assert stats.num_drafter_losses == 1
        await pair.until_paired(2)
        await pair.drafter.until_lanes(1)
        assert len(open_lanes()) == 2


async def test_a_client_that_leaves_frees_its_session_at_the_drafter_over_the_lane(folder: Path) -> None:
    async with paired(folder) as pair:
        call = pair.stub.Decode()
        await call.write(pb.DecodeRequest(start=start("left", 4000)))
        async with asyncio.timeout(WITHIN_S):
            while not pair.drafter.source.trees:
                await call.read()
        call.cancel()
        await pair.until_idle()
        assert pair.drafter.servicer.num_streams == 1
        assert pair.drafter.servicer.num_frames == 0


async def test_a_drafter_that_reads_its_lane_no_more_is_given_up_within_a_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [0]

    class Small(Outbox):
        def __init__(self) -> None:
            super().__init__(capacity=8)

        def push(self, frame: ToDrafter) -> bool:
            has_room = super().push(frame)
            lengths.append(len(self))
            return has_room

    monkeypatch.setattr(verifier_lanes, "Outbox", Small)
    async with paired(folder, pacing="pearl") as pair:
        (lane,) = pair.lanes
        with taken_by_the_hand(lane) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is
        stats = await hurt_in_mid_answer(pair, pair.drafter.source.let.clear)
        assert stats.num_accepted > 0
        async with asyncio.timeout(WITHIN_S):
            while pair.drafter.servicer.num_streams == 1:
                await asyncio.gather(*(decode(pair, start(f"more{at}", 8)) for at in range(4)))
        assert max(lengths) == 8
        assert lane.fileno() == -1
        pair.drafter.source.let.set()
        await pair.until_paired(2)
        await drafts_again(pair)


async def test_a_drafter_that_takes_leave_closes_its_lane_and_costs_no_token(folder: Path) -> None:
    async with paired(folder) as pair:
        drains: list[asyncio.Task[None]] = []
        stats = await hurt_in_mid_answer(pair, lambda: drains.append(asyncio.create_task(pair.drafter.servicer.drain(5.0))))
        assert stats.num_drafter_losses >= 1
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*drains)
            await pair.drafter.until_free()


async def test_without_a_door_where_the_token_says_the_stream_is_used_alone(folder: Path) -> None:
    """As through a relay: the path that was dialled has no lanes beside it."""
    with_alias = functools.partial(start, drafters=[f"unix:{folder}/alias.sock"])
    async with paired(folder) as pair:
        (folder / "alias.sock").symlink_to(folder / "d.sock")
        async with asyncio.timeout(WITHIN_S):
            while not (await decode(pair, with_alias("alias"))).num_accepted:
                pass
        response: pb.VerifierServiceGetInfoResponse = await pair.stub.GetInfo(pb.VerifierServiceGetInfoRequest())
        assert {(Path(info.endpoint).name, info.connected, info.has_lane) for info in response.pairs} == {
            ("alias.sock", True, False),
            ("d.sock", True, True),
        }
        assert pair.drafter.servicer.num_frames > 0
