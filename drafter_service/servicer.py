"""DrafterService on the wire: handshake, then frames in and out, many sessions to a message.

Knows protobuf and streams; converts, queues and waits, never drafts. A stream is one verifier: when it ends, however it ends, its
sessions end. Pings are answered here, so that they measure the link and not the model.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from drafter_service.drafting_thread import DraftingThread, LoadedDrafter
from drafter_service.inbox import FramesArrived, LaneOpened, StreamEnded
from drafter_service.outbox import MAX_NUMBERS_PER_MESSAGE, Outbox
from drafter_service.scheduler import Scheduler, SchedulerLimits
from outrider.errors import IncompatiblePair, Overloaded, ProtocolViolation, Unavailable
from outrider.rpc.context import Context
from outrider.rpc.convert.drafter_frames import draft_response
from outrider.rpc.convert.identity import identity_to_proto
from outrider.rpc.convert.link import BadFrame, FromVerifier, Hello, Ping, Pong, Welcome
from outrider.rpc.convert.verifier_frames import MAX_FRAMES_PER_MESSAGE, verifier_frames
from outrider.rpc.lane import TOKEN_BYTES, Lane
from outrider.rpc.membership import Membership
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label
from outrider.types.fleet import Replica, Role
from outrider.types.frames import VerifierFrame
from outrider.types.identity import ModelIdentity, incompatibility
from outrider.v1 import drafter_pb2, drafter_pb2_grpc, identity_pb2

US_PER_S = 1_000_000
HELLO_DEADLINE_S = 10.0
MAX_STREAMS = 64
# Frames beside the one tail and the closing frames of each session.
SPARE_OUTBOX_FRAMES = 256


@dataclass(eq=False, slots=True)
class DraftStream:
    """One open stream. outbox: what the drafting thread has for it, sent by that thread itself where there is a lane. replies: what is
    answered here. has_news: frames wait, or the end has come. lane_token: opens its lane, once; empty when there is none to open.
    finishing: it ends once what waits is written. over: it ends behind the message under way."""

    number: int
    outbox: Outbox
    replies: Outbox
    lane_token: bytes = b""
    has_lane: bool = False
    lane_problem: str = ""
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    finishing: bool = False
    over: bool = False


class DrafterServicer(drafter_pb2_grpc.DrafterServiceServicer):
    """Serves one drafting thread. Create it in the event loop, start the thread, then `serve` what it loaded.

    on_failure: called in the event loop when the thread ended by failure. with_lanes: a LaneDoor stands beside the server.
    """

    def __init__(self, limits: SchedulerLimits, num_threads: int, on_failure: Callable[[], None], *, with_lanes: bool = False) -> None:
        self._limits = limits
        self._on_failure = on_failure
        self._num_threads = num_threads
        self._with_lanes = with_lanes
        self._streams: dict[Outbox, DraftStream] = {}
        self._next_stream = 0
        self._draining = False
        self._room = asyncio.Event()
        self.thread = DraftingThread(limits, self._wake, self._room.set, self._on_thread_ended, self._on_lane_lost)
        self.metrics = LocalMetrics()
        self._loaded: LoadedDrafter | None = None
        self._scheduler: Scheduler | None = None

    def serve(self, loaded: LoadedDrafter, scheduler: Scheduler) -> None:
        """What the thread has loaded; before the server accepts calls."""
        self._loaded, self._scheduler = loaded, scheduler

    @property
    def identity(self) -> ModelIdentity:
        """Who the draft model is."""
        assert self._loaded is not None
        return self._loaded.engine.identity

    async def Draft(self, request_iterator: AsyncIterator[drafter_pb2.DraftRequest], context: Context) -> None:
        """One verifier's stream, from its Hello to its end."""
        rest = await self._handshake(request_iterator)
        stream = self._attach()
        most = self._limits.max_sessions_per_stream
        stream.replies.push(Welcome(self.identity, time.monotonic_ns(), most, stream.lane_token))
        stream.has_news.set()
        reading = asyncio.ensure_future(self._read(stream, rest, request_iterator))
        writing = asyncio.ensure_future(self._write(stream, context))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
            self._detach(stream)
            # Not cancelled: grpc takes no status while a message is under way, and a verifier that is never told waits for ever.
            stream.over = True
            stream.has_news.set()
            ends = await asyncio.gather(reading, writing, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def GetInfo(
        self, request: drafter_pb2.DrafterServiceGetInfoRequest, context: Context
    ) -> drafter_pb2.DrafterServiceGetInfoResponse:
        """Identity, limits and what is held now."""
        assert self._loaded is not None
        assert self._scheduler is not None
        engine = self._loaded.engine
        live = identity_pb2.LiveCounts(
            sessions=self._scheduler.num_sessions,
            streams=len(self._streams),
            kv_blocks_used=engine.limits.num_blocks - engine.num_free_blocks,
            kv_blocks_total=engine.limits.num_blocks,
            queued=self.thread.inbox.num_messages,
        )
        return drafter_pb2.DrafterServiceGetInfoResponse(
            identity=identity_to_proto(self.identity),
            sources=[self._loaded.source.name],
            live=live,
            max_sessions=self._limits.max_sessions,
            num_threads=self._num_threads,
        )

    def replica(self, membership: Membership, incarnation: int, endpoint: str, *, draining: bool) -> Replica:
        """This drafter as an entry of the fleet; only after `serve`."""
        assert self._loaded is not None
        assert self._scheduler is not None
        limits = self._loaded.engine.limits
        return Replica(
            replica_id=membership.replica_id,
            incarnation=incarnation,
            role=Role.DRAFTER,
            endpoint=endpoint,
            identity=self.identity,
            draining=draining,
            num_sessions=self._scheduler.num_sessions,
            max_sessions=self._limits.max_sessions,
            kv_blocks_used=limits.num_blocks - self._loaded.engine.num_free_blocks,
            kv_blocks_total=limits.num_blocks,
            block_len=limits.block_len,
            draft_us=self._scheduler.token_us,
            read_us=self._loaded.read_us,
        )

    def refresh_metrics(self) -> None:
        """Set what `metrics` holds of the present moment; only after `serve`, from any thread."""
        assert self._loaded is not None
        assert self._scheduler is not None
        engine, scheduler, metrics = self._loaded.engine, self._scheduler, self.metrics
        service, model = {Label.SERVICE: "drafter"}, {Label.MODEL: Path(self.identity.model).name}
        num_free = engine.num_free_blocks
        metrics.set(names.LIVE_SESSIONS, service, scheduler.num_sessions)
        metrics.set(names.LIVE_STREAMS, service, len(self._streams))
        metrics.set(names.KV_BLOCKS_FREE, service, num_free)
        metrics.set(names.KV_BLOCKS_IN_USE, service, engine.limits.num_blocks - num_free)
        metrics.set(names.GUESSED_TOKEN_SECONDS, model, scheduler.token_us / US_PER_S)
        metrics.raise_to(names.NUM_GUESSED_TOKENS, model, scheduler.num_guessed)
        metrics.raise_to(names.GUESSING_SECONDS, model, scheduler.guessing_us / US_PER_S)

    def lane_for(self, token: bytes) -> Callable[[Lane], None] | None:
        """What to do with the lane that this token opens; None when no stream waits for it. A token opens one lane."""
        stream = next(
            (stream for stream in self._streams.values() if stream.lane_token and secrets.compare_digest(stream.lane_token, token)), None
        )
        if stream is None:
            return None
        found, stream.lane_token = stream, b""

        def hand_on(lane: Lane) -> None:
            found.has_lane = True
            self.thread.inbox.control(LaneOpened(found.number, lane))

        return hand_on

    async def drain(self, grace_s: float) -> None:
        """Close every session, write what is waiting, end the streams. The server bounds it by its grace. A call that it has taken
        may say its Hello only now: it is refused, for nobody would tell it to end, and all would wait for it."""
        self._draining = True
        await self.thread.drain()
        for stream in self._streams.values():
            stream.finishing = True
        self._wake_all()
        while self._streams:
            self._room.clear()
            await self._room.wait()

    # --- one stream -----------------------------------------------------------------------------------------------------

    async def _handshake(self, requests: AsyncIterator[drafter_pb2.DraftRequest]) -> list[FromVerifier]:
        """Check the Hello; returns the frames that came in the same message."""
        try:
            async with asyncio.timeout(HELLO_DEADLINE_S):
                message = await anext(requests, None)
        except TimeoutError:
            raise ProtocolViolation(f"no Hello within {HELLO_DEADLINE_S:g} s") from None
        frames = verifier_frames(message) if message is not None else []
        first = frames[0] if frames else None
        if isinstance(first, BadFrame):
            raise first.error
        if not isinstance(first, Hello):
            raise ProtocolViolation("the first frame of a stream must be Hello")
        reason = incompatibility(self.identity, first.verifier)
        if reason is not None:
            raise IncompatiblePair(reason)
        return frames[1:]

    def _attach(self) -> DraftStream:
        """A place for a stream that has shaken hands; raises Overloaded, or Unavailable once this drains (here, so that none slips in
        while others say hello)."""
        assert self._scheduler is not None
        if self._draining:
            raise Unavailable("the drafter is draining; ask another one or retry later")
        if len(self._streams) >= MAX_STREAMS:
            raise Overloaded(f"the drafter serves {MAX_STREAMS} streams already")
        self._next_stream += 1
        outbox = Outbox(4 * self._limits.max_sessions_per_stream + SPARE_OUTBOX_FRAMES)
        stream = DraftStream(self._next_stream, outbox, Outbox(SPARE_OUTBOX_FRAMES))
        if self._with_lanes:
            stream.lane_token = secrets.token_bytes(TOKEN_BYTES)
        self._streams[stream.outbox] = stream
        self._scheduler.attach(stream.number, stream.outbox)
        return stream

    def _detach(self, stream: DraftStream) -> None:
        del self._streams[stream.outbox]
        self.thread.inbox.control(StreamEnded(stream.number))
        self._room.set()

    async def _read(self, stream: DraftStream, rest: list[FromVerifier], requests: AsyncIterator[drafter_pb2.DraftRequest]) -> None:
        await self._pass_on(stream, rest)
        async for message in requests:
            await self._pass_on(stream, verifier_frames(message))

    async def _pass_on(self, stream: DraftStream, frames: list[FromVerifier]) -> None:
        """Answer pings, queue the rest; waits while the drafting thread is behind, which holds the verifier back in turn."""
        sessions: list[VerifierFrame | BadFrame] = []
        for frame in frames:
            match frame:
                case Ping(sent_ns=sent_ns):
                    stream.replies.push(Pong(sent_ns, time.monotonic_ns()))
                    stream.has_news.set()
                case Hello():
                    raise ProtocolViolation("a stream has one Hello, its first frame")
                case _:
                    sessions.append(frame)
        if not sessions:
            return
        arrived = FramesArrived(stream.number, tuple(sessions))
        self._room.clear()
        while not self.thread.inbox.offer(arrived):
            await self._room.wait()
            self._room.clear()

    async def _write(self, stream: DraftStream, context: Context) -> None:
        """Send what waits, as one message while it fits; returns when finishing and empty, or over."""
        while True:
            await stream.has_news.wait()
            stream.has_news.clear()
            for outbox in (stream.replies, *(() if stream.has_lane else (stream.outbox,))):
                while not stream.over and (frames := outbox.take(MAX_FRAMES_PER_MESSAGE, MAX_NUMBERS_PER_MESSAGE)):
                    await context.write(draft_response(frames))
            if stream.over:
                return
            if stream.lane_problem:
                raise Unavailable(stream.lane_problem)
            if stream.outbox.overflowed or stream.replies.overflowed:
                raise Overloaded("the verifier has stopped reading its drafts")
            if self.thread.ended.is_set():
                raise Unavailable("the drafter has stopped drafting")
            if stream.finishing:
                return

    def _on_lane_lost(self, number: int, reason: str) -> None:
        for stream in self._streams.values():
            if stream.number == number:
                stream.lane_problem = f"the lane is lost: {reason}"
                stream.has_news.set()

    def _on_thread_ended(self) -> None:
        self._wake_all()
        if self.thread.failure is not None:
            self._on_failure()

    def _wake_all(self) -> None:
        for stream in self._streams.values():
            stream.has_news.set()

    def _wake(self, outboxes: list[Outbox]) -> None:
        for outbox in outboxes:
            stream = self._streams.get(outbox)
            if stream is not None:
                stream.has_news.set()
