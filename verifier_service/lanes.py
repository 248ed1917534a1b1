"""The engine thread's lanes to drafters of its own machine: frames out as they are made, messages in as they are looked for.

Knows which connection of which drafter a lane belongs to, and protobuf. Must not know sessions. Lives on the engine thread, while there
is one.
"""

from __future__ import annotations

from collections.abc import Collection

from google.protobuf.message import DecodeError

from outrider.errors import OutriderError, ProtocolViolation, Unavailable
from outrider.rpc.convert.drafter_frames import drafter_frames
from outrider.rpc.convert.link import BadFrame, Pong, Welcome
from outrider.rpc.convert.verifier_frames import MAX_FRAMES_PER_MESSAGE, draft_request
from outrider.rpc.lane import Lane
from outrider.rpc.lane_set import LaneSet
from outrider.types.frames import DrafterFrame, Tail, VerifierFrame
from outrider.v1 import drafter_pb2 as pb
from verifier_service.inbox import FramesArrived, PairDown
from verifier_service.outbox import Outbox

Frames = tuple[DrafterFrame | BadFrame, ...]


class DrafterLanes:
    """By connection, which is an endpoint and the number of its stream."""

    def __init__(self) -> None:
        self._set: LaneSet[tuple[str, int]] = LaneSet()
        self._outboxes: dict[tuple[str, int], Outbox] = {}
        self._looked_us = 0

    @property
    def all(self) -> Collection[Lane]:
        """For the inbox, to wait at."""
        return self._set.lanes

    @property
    def has_lost(self) -> bool:
        """Whether `receive` has a loss to tell of that no byte and no ring will bring."""
        return self._set.has_lost

    def add(self, drafter: str, connection: int, lane: Lane) -> None:
        """From now on the connection's frames go this way."""
        outbox = self._outboxes[drafter, connection] = Outbox()

        def next_message() -> bytes | None:
            frames = outbox.take_now(MAX_FRAMES_PER_MESSAGE)
            return draft_request(frames).SerializeToString() if frames else None

        self._set.add((drafter, connection), lane, next_message)

    def drop(self, drafter: str, connection: int) -> None:
        """The connection is over."""
        self._set.drop((drafter, connection))
        self._outboxes.pop((drafter, connection), None)

    def drop_all(self) -> None:
        """The thread has ended."""
        self._set.drop_all()
        self._outboxes.clear()

    def send(self, frames: dict[tuple[str, int], list[VerifierFrame]]) -> None:
        """Take out the frames of connections that have a lane and send them, and what waited."""
        if frames:
            self._push(frames)
        self._set.send_backlogs()

    def _push(self, frames: dict[tuple[str, int], list[VerifierFrame]]) -> None:
        for connection in [connection for connection in frames if connection in self._set]:
            outbox = self._outboxes[connection]
            if all(outbox.push(frame) for frame in frames.pop(connection)):
                self._set.send(connection)
            else:
                self._set.lose(connection, Unavailable("it does not read what it is sent"))

    def receive(self, now_us: int, *, waited: bool) -> list[FramesArrived | PairDown]:
        """What has come, and which connections broke.

        waited: the thread slept until now, so that what came has come just now. Else it came at some time since the last look: a tail
        says when it was drafted, on the clock that both processes share.
        """
        if self._set.is_silent:
            return []
        arrived: list[FramesArrived | PairDown] = []
        for (drafter, connection), message in self._set.receive():
            if (drafter, connection) not in self._set:  # lost for what came before
                continue
            try:
                frames = _frames(message)
            except OutriderError as error:
                self._set.lose((drafter, connection), error)
                continue
            came_us = now_us if waited else min(now_us, max(self._looked_us, _newest_us(frames)))
            arrived.append(FramesArrived(drafter, connection, frames, came_us))
        for (drafter, connection), reason in self._set.take_lost():
            self._outboxes.pop((drafter, connection), None)
            arrived.append(PairDown(drafter, connection, str(reason)))
        self._looked_us = now_us
        return arrived


def _frames(message: bytes) -> Frames:
    try:
        request = pb.DraftResponse.FromString(message)
    except DecodeError as error:
        raise ProtocolViolation(f"a message on a lane cannot be decoded: {error}") from error
    frames: list[DrafterFrame | BadFrame] = []
    for frame in drafter_frames(request):
        if isinstance(frame, Welcome | Pong):
            raise ProtocolViolation(f"{type(frame).__name__} came over a lane; it belongs to the stream")
        frames.append(frame)
    return tuple(frames)


def _newest_us(frames: Frames) -> int:
    return max((frame.end_ns // 1000 for frame in frames if isinstance(frame, Tail)), default=0)
