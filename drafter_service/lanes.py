"""The drafting thread's lanes to verifiers of its own machine: messages in as they are looked for, frames out as they are made.

Knows which stream a lane belongs to, and protobuf. Must not know sessions. Lives on the drafting thread only.
"""

from __future__ import annotations

from collections.abc import Collection

from google.protobuf.message import DecodeError

from drafter_service.inbox import FramesArrived
from drafter_service.outbox import MAX_NUMBERS_PER_MESSAGE, Outbox
from outrider.errors import OutriderError, Overloaded, ProtocolViolation
from outrider.rpc.convert.drafter_frames import draft_response
from outrider.rpc.convert.link import BadFrame, Hello, Ping
from outrider.rpc.convert.verifier_frames import MAX_FRAMES_PER_MESSAGE, verifier_frames
from outrider.rpc.lane import Lane
from outrider.rpc.lane_set import LaneSet
from outrider.types.frames import VerifierFrame
from outrider.v1 import drafter_pb2 as pb


class VerifierLanes:
    """By stream."""

    def __init__(self) -> None:
        self._set: LaneSet[int] = LaneSet()
        self._outboxes: dict[int, Outbox] = {}

    @property
    def all(self) -> Collection[Lane]:
        """For the inbox, to wait at."""
        return self._set.lanes

    def add(self, stream: int, lane: Lane, outbox: Outbox) -> None:
        """From now on what the outbox gets goes this way."""
        self._outboxes[stream] = outbox

        def next_message() -> bytes | None:
            frames = outbox.take(MAX_FRAMES_PER_MESSAGE, MAX_NUMBERS_PER_MESSAGE)
            return draft_response(frames).SerializeToString() if frames else None

        self._set.add(stream, lane, next_message)

    def drop(self, stream: int) -> None:
        """The stream is over."""
        self._set.drop(stream)
        self._outboxes.pop(stream, None)

    def drop_all(self) -> None:
        """The thread ends."""
        self._set.drop_all()
        self._outboxes.clear()

    def send(self, streams: Collection[int]) -> list[int]:
        """Send what these streams' outboxes hold, and what waited; returns those that never had a lane."""
        for stream in streams:
            if stream in self._set:
                self._set.send(stream)
                if self._outboxes[stream].overflowed:
                    self._set.lose(stream, Overloaded("the verifier has stopped reading its drafts"))
        self._set.send_backlogs()
        return [stream for stream in streams if stream not in self._outboxes]

    def receive(self) -> list[FramesArrived]:
        """What has come, in order for each stream."""
        arrived: list[FramesArrived] = []
        for stream, message in self._set.receive():
            if stream not in self._set:  # lost for what came before
                continue
            try:
                arrived.append(FramesArrived(stream, _frames(message)))
            except OutriderError as error:
                self._set.lose(stream, error)
        return arrived

    def take_lost(self) -> list[tuple[int, OutriderError]]:
        """Streams whose lane broke since the last call: they are to be ended."""
        return self._set.take_lost()


def _frames(message: bytes) -> tuple[VerifierFrame | BadFrame, ...]:
    try:
        request = pb.DraftRequest.FromString(message)
    except DecodeError as error:
        raise ProtocolViolation(f"a message on a lane cannot be decoded: {error}") from error
    frames: list[VerifierFrame | BadFrame] = []
    for frame in verifier_frames(request):
        if isinstance(frame, Hello | Ping):
            raise ProtocolViolation(f"{type(frame).__name__} came over a lane; it belongs to the stream")
        frames.append(frame)
    return tuple(frames)
