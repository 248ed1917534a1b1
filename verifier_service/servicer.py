"""VerifierService over grpc.aio: one Decode stream per sample, and GetInfo.

Converts, enqueues and awaits; decides nothing about tokens. Must not touch the engine or sessions, which live in the engine thread.
A stream that ends, for whatever reason, cancels its session; its id stays taken until the engine thread has freed everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from outrider.engine.contract import EngineLimits
from outrider.errors import AlreadyExists, InvalidRequest, Unavailable
from outrider.rpc.context import Context
from outrider.rpc.convert.identity import identity_to_proto
from outrider.rpc.requests import Requests
from outrider.session.events import FinishReason
from outrider.session.pacing.registry import PACINGS
from outrider.types.identity import ModelIdentity
from outrider.types.statistics import DraftStatistics
from outrider.v1 import identity_pb2
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.verifier_pb2_grpc import VerifierServiceServicer
from verifier_service.admission import Admission
from verifier_service.answer import AnswerStream, SessionEnded, TokensCommitted
from verifier_service.answer_messages import answer_to_proto
from verifier_service.inbox import CancelAsked, Nudge, OpenAsked
from verifier_service.pairs import Pairs
from verifier_service.resident import RESIDENT
from verifier_service.scheduler import Scheduler
from verifier_service.settings import VerifierSettings

FREE_TIMEOUT_S = 30.0
START_TIMEOUT_S = 10.0
ENGINE_LOST = "the verifier failed"


class VerifierServicer(VerifierServiceServicer):
    """Serves one engine. Live streams are known by session id."""

    def __init__(
        self, settings: VerifierSettings, identity: ModelIdentity, limits: EngineLimits, scheduler: Scheduler, pairs: Pairs
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._limits = limits
        self._scheduler = scheduler
        self._pairs = pairs
        self._admission = Admission(identity, settings.draft, settings.max_prompt_len)
        self._live: dict[str, AnswerStream] = {}
        self._num_streams = 0
        self._draining = False
        self._engine_is_lost = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_streams(self) -> int:
        """Decode streams open now; may be read from any thread."""
        return self._num_streams

    @property
    def num_waiting(self) -> int:
        """Samples that wait for their first step; may be read from any thread."""
        return sum(not answer.has_begun for answer in tuple(self._live.values()))

    async def Decode(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> None:
        """See the proto: Start first, then commits until DecodeFinished."""
        self._num_streams += 1
        self._idle.clear()
        try:
            await self._decode(requests, context)
        finally:
            self._num_streams -= 1
            if not self._num_streams:
                self._idle.set()

    async def GetInfo(self, request: pb.VerifierServiceGetInfoRequest, context: Context) -> pb.VerifierServiceGetInfoResponse:
        """Identity, pairs, live counts and the measured cost curve."""
        snapshot = self._scheduler.snapshot
        queued = len(self._scheduler.inbox) + sum(pair.num_waiting for pair in self._pairs.all())
        live = identity_pb2.LiveCounts(
            sessions=snapshot.num_sessions,
            streams=self._num_streams,
            kv_blocks_used=self._limits.num_blocks - snapshot.num_free_blocks,
            kv_blocks_total=self._limits.num_blocks,
            queued=queued,
        )
        return pb.VerifierServiceGetInfoResponse(
            identity=identity_to_proto(self._identity),
            pairs=self._pair_infos(),
            live=live,
            max_sessions=self._settings.max_sessions,
            max_rows=self._limits.max_rows,
            cost_rows=[rows for rows, _ in snapshot.cost],
            cost_us=[us for _, us in snapshot.cost],
            cost_unlent_us=[us for _, us in snapshot.cost_unlent],
            pacings=sorted(PACINGS),
            num_threads=self._settings.engine.num_threads,
            lent_threads=self._limits.lent_threads,
            num_steps=snapshot.num_steps,
            num_lent_steps=snapshot.num_lent_steps,
            carries_calls=True,
        )

    async def drain(self, grace_s: float) -> None:
        """Tell live streams that they had better go on elsewhere, with their next commits, and let those finish that stay. What is left
        shortly before the grace ends is ended with UNAVAILABLE, so that gateways fail over."""
        self._draining = True
        for answer in self._live.values():
            answer.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s * 0.8):
                await self._idle.wait()
        for answer in list(self._live.values()):
            self._scheduler.inbox.put(CancelAsked(answer, "draining", Unavailable("the verifier is shutting down")))
        await self._idle.wait()

    async def _decode(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> None:
        said = Requests(requests)
        try:
            first = await said.first(START_TIMEOUT_S)
        except TimeoutError:
            raise InvalidRequest("message", f"no start came within {START_TIMEOUT_S:g} s") from None
        if first is None or not first.HasField("start"):
            raise InvalidRequest("message", "the first message of a Decode stream must be start")
        answer = await self._begin(first.start)
        said.tell(lambda request: self._hear(request, answer), lambda error: self._refuse(answer, error))
        try:
            await self._write_answer(answer, context)
        finally:
            if not answer.ended.is_set():  # said before anything is awaited, where a client that leaves may cut this short
                self._scheduler.inbox.put(CancelAsked(answer, "the client left"))
            await said.close()

    async def _begin(self, start: pb.DecodeStart) -> AnswerStream:
        """Check and enqueue a start; an older incarnation of the same session is ended first."""
        resident = frozenset(() if self._scheduler.resident is None else (RESIDENT,))
        own = frozenset() if start.no_drafters else self._pairs.configured | resident
        request = self._admission.check(start, frozenset(start.drafters) or own)
        self._pairs.connect(frozenset(start.drafters) - resident)
        session_id = start.session_id
        while (older := self._live.get(session_id)) is not None:
            if older.request.spec.incarnation >= start.incarnation:
                raise AlreadyExists(f"session {session_id!r} is live in incarnation {older.request.spec.incarnation}")
            self._scheduler.inbox.put(CancelAsked(older, "superseded by a newer incarnation"))
            try:
                async with asyncio.timeout(FREE_TIMEOUT_S):
                    await older.ended.wait()
            except TimeoutError:
                raise Unavailable(f"session {session_id!r} is still being freed") from None
        if self._engine_is_lost:
            raise Unavailable(ENGINE_LOST)
        interval_s = self._settings.stream_interval_ms / 1000.0
        answer = self._live[session_id] = AnswerStream(request, lambda: self._scheduler.inbox.put(Nudge()), interval_s)
        self._scheduler.inbox.put(OpenAsked(answer))
        return answer

    def lose_engine(self) -> None:
        """Event loop: the engine thread has ended by a fault. Those that it had admitted have been told; others, which it had not taken in
        or was about to, would hear nothing until the drain's grace is over."""
        self._engine_is_lost = True
        for answer in list(self._live.values()):
            answer.push(SessionEnded(FinishReason.FAILED, DraftStatistics(), Unavailable(ENGINE_LOST)))
            self.forget(answer)

    def forget(self, answer: AnswerStream) -> None:
        """The engine thread has freed everything of a session: its id may be used again."""
        session_id = answer.request.spec.request_id
        if self._live.get(session_id) is answer:
            del self._live[session_id]

    def _hear(self, request: pb.DecodeRequest, answer: AnswerStream) -> bool:
        """A message after the start: only a stop makes sense in a lossless request. Either way it is the last that counts (False)."""
        kind = request.WhichOneof("message")
        if kind == "stop":
            self._scheduler.inbox.put(CancelAsked(answer, request.stop.detail or "stopped by the caller"))
            return False
        self._refuse(answer, InvalidRequest(kind or "message", "is out of order in a stream that was not started paused"))
        return False

    def _refuse(self, answer: AnswerStream, error: InvalidRequest) -> None:
        self._scheduler.inbox.put(CancelAsked(answer, str(error), error))

    async def _write_answer(self, answer: AnswerStream, context: Context) -> None:
        while True:
            message = await answer.next()
            if isinstance(message, SessionEnded) and message.error is not None:
                raise message.error
            end = answer.end_behind() if isinstance(message, TokensCommitted) else None
            await context.write(answer_to_proto(message, answer.request.pacing, draining=self._draining, end=end))
            if isinstance(message, TokensCommitted):
                answer.delivered(len(message.tokens))
            if end is not None or isinstance(message, SessionEnded):
                return

    def _pair_infos(self) -> list[pb.PairInfo]:
        infos: list[pb.PairInfo] = []
        if (resident := self._scheduler.resident) is not None:
            identity = identity_to_proto(resident.identity)
            infos.append(pb.PairInfo(endpoint=RESIDENT, connected=not resident.problem, problem=resident.problem, identity=identity))
        for pair in self._pairs.all():
            info = pb.PairInfo(endpoint=pair.endpoint, connected=pair.is_connected, problem=pair.problem)
            info.round_trip_us = pair.clock.round_trip_ns // 1000
            info.has_lane = pair.has_lane
            if pair.drafter is not None:
                info.identity.CopyFrom(identity_to_proto(pair.drafter))
            infos.append(info)
        return infos
