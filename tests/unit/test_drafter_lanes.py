"""A drafter's side of lanes against verifiers that read nothing, come late or leave at the wrong moment.

pytest tests/unit/test_drafter_lanes.py
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest

from drafter_service import servicer
from drafter_service.inbox import Inbox, LaneOpened, StreamEnded
from drafter_service.outbox import Outbox
from drafter_service.scheduler import Scheduler, SchedulerLimits
from fakes import TruthTable
from fakes_drafter_service import table_identity
from fakes_drafting import BookkeepingSource
from fakes_lanes import MAX_MESSAGE_BYTES, WITHIN_S, LaneDrafter, open_lanes, serving_lane_drafter
from outrider.rpc.channel import open_channel
from outrider.rpc.convert.drafter_frames import drafter_frames
from outrider.rpc.convert.link import FromDrafter, Hello, Ping, Pong, ToDrafter, Welcome
from outrider.rpc.convert.verifier_frames import draft_request
from outrider.rpc.lane import Lane, open_lane
from outrider.session.drafter_admission import DrafterBounds
from outrider.types.frames import DraftLimits, Open, Opened, Refused, Tail, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.v1 import drafter_pb2
from outrider.v1.drafter_pb2_grpc import DrafterServiceStub

TABLE = TruthTable(vocab_size=40, seed=3)
ONE_SESSION = SchedulerLimits(max_sessions=1, max_sessions_per_stream=1)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="ol-") as name:
        yield Path(name)


def opening(session: int, until: int = 9) -> Open:
    prefix = np.array([5, 6, 7], np.int32)
    return Open(session, 1, "r", prefix, 3, 3, SamplingParams(temperature=0.0), NoiseAddress(0), DraftLimits(200, 32), until)


@dataclass
class Verifier:
    """One stream to a drafter, by hand. token: of its lane."""

    drafter: LaneDrafter
    call: grpc.aio.StreamStreamCall[drafter_pb2.DraftRequest, drafter_pb2.DraftResponse]
    token: bytes = b""

    async def send(self, *frames: ToDrafter) -> None:
        await self.call.write(draft_request(frames))

    async def next(self) -> list[FromDrafter]:
        async with asyncio.timeout(WITHIN_S):
            message = await self.call.read()
        assert isinstance(message, drafter_pb2.DraftResponse), "the stream ended"
        return drafter_frames(message)

    async def lane(self) -> Lane:
        lane = await open_lane(self.drafter.address, self.token, MAX_MESSAGE_BYTES)
        assert lane is not None
        return lane

    async def status(self) -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(WITHIN_S):
            with suppress(grpc.aio.AioRpcError):
                while isinstance(await self.call.read(), drafter_pb2.DraftResponse):
                    pass
            return await self.call.code(), await self.call.details() or ""


@asynccontextmanager
async def greeted(
    folder: Path, *first: ToDrafter, with_lanes: bool = True, limits: SchedulerLimits | None = None
) -> AsyncIterator[Verifier]:
    """A verifier that has said Hello (and `first`, in the same message) and was made welcome."""
    async with (
        serving_lane_drafter(TABLE, folder, with_lanes=with_lanes, limits=limits) as drafter,
        open_channel(drafter.address) as channel,
    ):
        verifier = Verifier(drafter, DrafterServiceStub(channel).Draft())  # type: ignore[no-untyped-call]
        await verifier.send(Hello(table_identity(TABLE.vocab_size), "tests"), *first)
        welcome = (await verifier.next())[0]
        assert isinstance(welcome, Welcome)
        verifier.token = welcome.lane_token
        yield verifier
        verifier.call.cancel()
    assert open_lanes() == []


async def whole_tail(lane: Lane) -> list[int]:
    """What one session guesses over a lane, up to its pause."""
    tokens: list[int] = []
    async with asyncio.timeout(WITHIN_S):
        while True:
            for message in lane.receive():
                for frame in drafter_frames(drafter_pb2.DraftResponse.FromString(message)):
                    assert isinstance(frame, Tail | Opened), frame
                    if isinstance(frame, Tail):
                        tokens += frame.tokens.tolist()
                        if frame.end is not TailEnd.MORE:
                            return tokens
            await asyncio.sleep(0)


async def test_a_drafter_without_lanes_gives_out_no_token(folder: Path) -> None:
    async with greeted(folder, with_lanes=False) as verifier:
        assert verifier.token == b""
        assert not (folder / "d.sock.lane").exists()


async def test_pings_are_answered_on_the_stream_though_frames_go_over_the_lane(folder: Path) -> None:
    async with greeted(folder) as verifier:
        lane = await verifier.lane()
        lane.send(draft_request([opening(1)]).SerializeToString())
        await verifier.send(Ping(12))
        assert len(await whole_tail(lane)) == 6
        (pong,) = await verifier.next()
        assert isinstance(pong, Pong)
        assert verifier.drafter.servicer.num_frames == 0
        lane.close()
        assert (await verifier.status())[0] is grpc.StatusCode.UNAVAILABLE
        await verifier.drafter.until_free()


async def test_frames_made_before_the_lane_was_taken_in_go_over_it(folder: Path) -> None:
    async with greeted(folder) as verifier:
        source = verifier.drafter.source
        source.let.clear()
        await verifier.send(opening(1, until=4))
        async with asyncio.timeout(WITHIN_S):
            while not source.trees:  # it is in its step now, or on its way there
                await asyncio.sleep(0)
        lane = await verifier.lane()
        source.let.set()
        assert len(await whole_tail(lane)) == 1, "and no more is made that would take it along"
        lane.close()


async def test_a_verifier_that_reads_its_lane_no_more_is_given_up_within_a_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "SPARE_OUTBOX_FRAMES", 64)
    async with greeted(folder, limits=ONE_SESSION) as verifier:
        lane = await verifier.lane()
        (stream,) = verifier.drafter.servicer._streams.values()
        stuffed = draft_request([opening(session) for session in range(1000)]).SerializeToString()
        lengths = [0]
        async with asyncio.timeout(WITHIN_S):
            with suppress(Exception):
                while not stream.lane_problem:
                    if not lane.backlog:
                        lane.send(stuffed)
                    lane.flush()
                    lengths.append(len(stream.outbox))
                    await asyncio.sleep(0)
        code, detail = await verifier.status()
        assert (code, "stopped reading its drafts" in detail) == (grpc.StatusCode.UNAVAILABLE, True), detail
        assert max(lengths) <= 68
        await verifier.drafter.until_free()
        frames = [frame for message in lane.receive() for frame in drafter_frames(drafter_pb2.DraftResponse.FromString(message))]
        assert any(isinstance(frame, Refused) for frame in frames)
        lane.close()


async def test_a_token_opens_nothing_once_its_stream_has_ended(folder: Path) -> None:
    async with greeted(folder) as verifier:
        verifier.call.cancel()
        async with asyncio.timeout(WITHIN_S):
            while verifier.drafter.servicer._streams:
                await asyncio.sleep(0)
        assert await open_lane(verifier.drafter.address, verifier.token, MAX_MESSAGE_BYTES) is None


# --- the drafting thread, turned by hand ----------------------------------------------------------------------------------


def thread_of(source: BookkeepingSource, inbox: Inbox, lost: list[tuple[int, str]]) -> Scheduler:
    bounds = DrafterBounds("truth", TABLE.vocab_size, frozenset(), 500, 400)
    return Scheduler(source, bounds, SchedulerLimits(), inbox, lambda _: None, lambda: None, lane_lost=lambda *told: lost.append(told))


def lane_and_end() -> tuple[Lane, Lane]:
    own, other = socket.socketpair()
    return Lane(own, MAX_MESSAGE_BYTES), Lane(other, MAX_MESSAGE_BYTES)


def test_a_lane_that_comes_after_its_streams_end_is_closed() -> None:
    inbox, lost = Inbox(8, lambda: None), list[tuple[int, str]]()
    scheduler = thread_of(BookkeepingSource(), inbox, lost)
    scheduler.attach(1, Outbox(8))
    lane, other = lane_and_end()
    inbox.control(StreamEnded(1))
    inbox.control(LaneOpened(1, lane))
    scheduler.turn()
    assert (lane.fileno(), lost) == (-1, [])
    other.close()


def test_a_lost_lane_frees_its_sessions_before_its_stream_has_ended() -> None:
    inbox, lost, source = Inbox(8, lambda: None), list[tuple[int, str]](), BookkeepingSource()
    scheduler = thread_of(source, inbox, lost)
    lanes = {}
    for stream in (1, 2):
        scheduler.attach(stream, Outbox(8))
        lane, lanes[stream] = lane_and_end()
        inbox.control(LaneOpened(stream, lane))
    scheduler.turn()
    for other in lanes.values():
        other.send(draft_request([opening(7)]).SerializeToString())
    scheduler.turn()
    assert len(source.trees) == scheduler.num_sessions == 2
    lanes[1].close()
    scheduler.turn()
    assert len(source.trees) == scheduler.num_sessions == 1
    assert [stream for stream, _ in lost] == [1]
    inbox.control(StreamEnded(1))
    inbox.control(StreamEnded(2))
    scheduler.turn()
    assert (scheduler.num_sessions, len(lost), open_lanes()) == (0, 1, [lanes[2]])
    lanes[2].close()


def test_a_lane_that_nobody_took_is_closed_with_the_inbox() -> None:
    inbox = Inbox(8, lambda: None)
    lane, other = lane_and_end()
    inbox.control(LaneOpened(1, lane))
    inbox.close_lanes()
    assert lane.fileno() == -1
    other.close()
