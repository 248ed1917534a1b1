"""One verifier-drafter pair: the `Draft` stream to an endpoint, kept up in the background, and what is known of the other side.

Connects with bounded backoff and jitter, shakes hands (an incompatible drafter is never used), pings to measure the link, moves batches
of frames both ways, and turns every loss into one PairDown at once. Runs on the event loop. Must not know sessions beyond their handles.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc

from outrider.errors import IncompatiblePair, OutriderError, ProtocolViolation, Unavailable
from outrider.rpc.channel import MAX_MESSAGE_BYTES, open_channel
from outrider.rpc.convert.drafter_frames import drafter_frames
from outrider.rpc.convert.link import BadFrame, FromDrafter, Hello, Ping, Pong, Welcome
from outrider.rpc.convert.verifier_frames import MAX_FRAMES_PER_MESSAGE, draft_request
from outrider.rpc.lane import Lane, open_lane
from outrider.rpc.status import error_from_rpc
from outrider.types.frames import DrafterFrame, Tail, VerifierFrame
from outrider.types.identity import ModelIdentity, incompatibility
from outrider.v1 import drafter_pb2 as pb
from outrider.v1.drafter_pb2_grpc import DrafterServiceStub
from verifier_service.inbox import FramesArrived, Inbox, PairDown, PairUp
from verifier_service.outbox import Outbox
from verifier_service.pair_clock import PairClock

_LOG = logging.getLogger(__name__)
MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
# A stream that ended sooner than this is no reason to begin again with the shortest pause: every loss re-opens every session.
STEADY_S = 5.0
INCOMPATIBLE_BACKOFF_S = 10.0
HANDSHAKE_TIMEOUT_S = 10.0
NUM_FIRST_PINGS = 4
PING_INTERVAL_S = 1.0
SILENCE_TIMEOUT_S = 8.0


class Pair:
    """`run` until cancelled. problem: why it is not connected, as a sentence; empty when it is. has_lane: frames go past the stream."""

    def __init__(self, endpoint: str, identity: ModelIdentity, verifier_id: str, inbox: Inbox, *, first_connection: int = 0) -> None:
        self.endpoint = endpoint
        self.problem = "not connected yet"
        self.drafter: ModelIdentity | None = None
        self.clock = PairClock()
        self._identity = identity
        self._verifier_id = verifier_id
        self._inbox = inbox
        self._connection = first_connection
        self._up = False
        self._is_last = False
        self._outbox = Outbox()
        self._last_heard_s = 0.0
        self._up_since_s = 0.0
        self._room = asyncio.Event()
        self._overflow = asyncio.Event()
        self._decided = asyncio.Event()
        self._lane_lost = asyncio.Event()
        self._lane_problem = ""
        self.has_lane = False

    @property
    def is_connected(self) -> bool:
        """Whether its stream is up and the pair compatible."""
        return self._up

    @property
    def num_waiting(self) -> int:
        """Frames that wait to be written."""
        return len(self._outbox)

    async def wait_decided(self) -> None:
        """Return once the drafter has come up for the first time, or was found incompatible."""
        await self._decided.wait()

    def push(self, connection: int, frames: list[VerifierFrame]) -> None:
        """Queue frames for the stream they were meant for; those of an earlier one are dropped."""
        if not self._up or connection != self._connection:
            return
        for frame in frames:
            if not self._outbox.push(frame):
                self._overflow.set()
                return

    def lose_lane(self, connection: int, problem: str) -> None:
        """The engine thread has found the lane broken: the stream ends with it."""
        if self._up and connection == self._connection:
            self._lane_problem = problem
            self._lane_lost.set()

    def on_room(self) -> None:
        """The engine thread's inbox has room again."""
        self._room.set()

    def connect_no_more(self) -> None:
        """Before `run` is cancelled: a task group that fails in the same moment raises its failure and swallows the cancellation."""
        self._is_last = True

    def retire(self) -> None:
        """Before `run` is cancelled for good: sessions hear now that its stream is gone."""
        self.connect_no_more()
        self.problem = "it gave way to drafters that requests name"
        self._down()

    async def run(self) -> None:
        """Connect, serve, and connect again, until cancelled."""
        backoff_s = MIN_BACKOFF_S
        while True:
            pause_s = 0.0
            try:
                async with open_channel(self.endpoint) as channel:
                    await self._serve(channel)
            except IncompatiblePair as error:
                pause_s = INCOMPATIBLE_BACKOFF_S
                if str(error) != self.problem:  # else it was said the last time that it was asked
                    _LOG.error("drafter %s is not used: %s", self.endpoint, error)
                self.problem = str(error)
                self._decided.set()
            except OutriderError as error:
                self._log_loss(str(error))
            except Exception:  # noqa: BLE001 -- the task's edge: a bug costs this stream, and a new one is tried
                _LOG.exception("the stream to drafter %s failed", self.endpoint)
                self.problem = "the stream failed; the log has the details"
            backoff_s = next_backoff_s(backoff_s, self._down())
            if self._is_last:
                return
            await asyncio.sleep(max(pause_s, backoff_s * random.uniform(0.5, 1.0)))

    def _log_loss(self, problem: str) -> None:
        if problem != self.problem:
            _LOG.warning("drafter %s: %s", self.endpoint, problem)
        self.problem = problem

    async def _serve(self, channel: grpc.aio.Channel) -> None:
        """One stream from Hello to its end; raises an OutriderError that says why it ended."""
        call: Any = DrafterServiceStub(channel).Draft()  # type: ignore[no-untyped-call]
        try:
            responses: AsyncIterator[pb.DraftResponse] = aiter(call)
            await self._shake_hands(call, responses)
            async with asyncio.TaskGroup() as group:
                for task in (self._read(responses), self._write(call), self._ping(), self._watch_overflow(), self._watch_lane()):
                    group.create_task(task)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, ExceptionGroup) as failure:
            raise await _cause(call, failure) from failure
        finally:
            call.cancel()

    async def _shake_hands(self, call: Any, responses: AsyncIterator[pb.DraftResponse]) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await call.write(draft_request([Hello(self._identity, self._verifier_id)]))
                frames = await self._next_frames(responses)
        except TimeoutError:
            raise Unavailable(f"{self.endpoint} did not answer within {HANDSHAKE_TIMEOUT_S:g} s") from None
        welcome = frames[0] if frames else None
        if not isinstance(welcome, Welcome):
            raise ProtocolViolation("the drafter's first frame was not Welcome")
        self.drafter = welcome.drafter
        problem = incompatibility(welcome.drafter, self._identity)
        if problem is not None:
            raise IncompatiblePair(problem)
        lane = await open_lane(self.endpoint, welcome.lane_token, MAX_MESSAGE_BYTES)
        self._come_up(lane, welcome.drafter.weights_hash)
        await self._take_in(frames[1:])

    def _come_up(self, lane: Lane | None, weights: str) -> None:
        self._connection += 1
        self._outbox = Outbox()
        self._overflow.clear()
        self._lane_lost.clear()
        self.has_lane = lane is not None
        self.clock = PairClock()
        self.problem = ""
        self._up = True
        self._last_heard_s = self._up_since_s = time.monotonic()
        self._inbox.put(PairUp(self.endpoint, self._connection, lane, weights))
        self._decided.set()
        _LOG.info("drafter %s is up", self.endpoint)

    def _down(self) -> float:
        """Say that the stream is gone, if it was up; returns for how many seconds it was."""
        if not self._up:
            return 0.0
        self._up = self.has_lane = False
        self._inbox.put(PairDown(self.endpoint, self._connection, self.problem or "the stream ended"))
        return time.monotonic() - self._up_since_s

    async def _read(self, responses: AsyncIterator[pb.DraftResponse]) -> None:
        while True:
            await self._take_in(await self._next_frames(responses))

    async def _next_frames(self, responses: AsyncIterator[pb.DraftResponse]) -> list[FromDrafter]:
        message = await anext(responses, None)
        if message is None:
            raise Unavailable("the drafter ended the stream")
        self._last_heard_s = time.monotonic()
        return drafter_frames(message)

    async def _take_in(self, frames: list[FromDrafter]) -> None:
        """Hand a message's frames to the engine thread; wait when it is behind (grpc then holds the sender back)."""
        received_ns = time.monotonic_ns()
        kept: list[DrafterFrame | BadFrame] = []
        for frame in frames:
            match frame:
                case Pong():
                    self.clock.sample(frame.sent_ns, frame.clock_ns, received_ns)
                case Welcome():
                    raise ProtocolViolation("the drafter said Welcome twice")
                case Tail():
                    begin_ns, end_ns = self.clock.ours_ns(frame.begin_ns), self.clock.ours_ns(frame.end_ns)
                    kept.append(dataclasses.replace(frame, begin_ns=begin_ns, end_ns=end_ns))
                case _:
                    kept.append(frame)
        if not kept:
            return
        message = FramesArrived(self.endpoint, self._connection, tuple(kept), received_ns // 1000)
        while not self._inbox.offer(message):
            self._room.clear()
            await self._room.wait()

    async def _write(self, call: Any) -> None:
        while True:
            await call.write(draft_request(await self._outbox.take(MAX_FRAMES_PER_MESSAGE)))

    async def _ping(self) -> None:
        """Measure the link, and give it up when nothing at all comes back."""
        num_sent = 0
        while True:
            if not self._outbox.push(Ping(time.monotonic_ns())):
                self._overflow.set()
            num_sent += 1
            await asyncio.sleep(PING_INTERVAL_S if num_sent > NUM_FIRST_PINGS else MIN_BACKOFF_S)
            if time.monotonic() - self._last_heard_s > SILENCE_TIMEOUT_S:
                raise Unavailable(f"silent for {SILENCE_TIMEOUT_S:g} s")

    async def _watch_overflow(self) -> None:
        await self._overflow.wait()
        raise Unavailable("it does not read what it is sent")

    async def _watch_lane(self) -> None:
        await self._lane_lost.wait()
        raise Unavailable(self._lane_problem)


def next_backoff_s(backoff_s: float, up_s: float) -> float:
    """The pause after a stream that was up for up_s seconds, when the one before it was backoff_s."""
    return MIN_BACKOFF_S if up_s >= STEADY_S else min(MAX_BACKOFF_S, backoff_s * 2)


async def _cause(call: Any, failure: BaseException) -> Exception:
    """The first of our own errors in a failure, or what the call's status says; anything else is a bug and stays as it is."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if isinstance(failure, grpc.aio.AioRpcError):
        return error_from_rpc(failure)
    if isinstance(failure, asyncio.InvalidStateError):  # written to after it ended
        code, details = await call.code(), await call.details()
        return IncompatiblePair(details) if code is grpc.StatusCode.FAILED_PRECONDITION else Unavailable(f"{code.name}: {details}")
    assert isinstance(failure, Exception)
    return failure


async def stop_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
