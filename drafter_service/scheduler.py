"""The drafting loop: inbox -> sessions -> source -> sessions -> outboxes, on one thread that owns the source.

Knows all sessions of all streams and drafts for every session that wants it in one call a turn, so that what arrives meanwhile counts
in the next turn. Blocks on the inbox when nothing wants drafts. Must not know asyncio, grpc or models. `turn` is one iteration, which
tests drive by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from drafter_service.hosted import HostedSession
from drafter_service.inbox import DrainAsked, FramesArrived, Inbox, LaneOpened, StopAsked, StreamEnded
from drafter_service.lanes import VerifierLanes
from drafter_service.outbox import Outbox
from outrider.drafting.contract import DraftSource, Proposal, ProposeRequest
from outrider.errors import OutriderError
from outrider.rpc.convert.link import BadFrame
from outrider.rpc.lane import Lane
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.events import Drained, Grown, SourceFailed, VerifierFrameArrived
from outrider.types.frames import Close, CloseReason, Open, Refused, VerifierFrame

DRAFT_TIME_RATE = 1 / 16


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """max_sessions: in this process. max_sessions_per_stream: of one verifier."""

    max_sessions: int = 256
    max_sessions_per_stream: int = 256


class Scheduler:
    """All sessions of the process. flushed: called after each turn with the outboxes that got frames, but for those of streams with a
    lane, whose frames are sent here. lane_lost: such a stream is to be ended, for a reason. drained: once after a drain."""

    def __init__(
        self,
        source: DraftSource,
        bounds: DrafterBounds,
        limits: SchedulerLimits,
        inbox: Inbox,
        flushed: Callable[[list[Outbox]], None],
        drained: Callable[[], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        lane_lost: Callable[[int, str], None] = lambda stream, reason: None,
    ) -> None:
        self._source = source
        self._bounds = bounds
        self._limits = limits
        self._inbox = inbox
        self._flushed = flushed
        self._drained = drained
        self._clock_ns = clock_ns
        self._lane_lost = lane_lost
        self._lanes = VerifierLanes()
        self._outboxes: dict[int, Outbox] = {}
        self._streams: dict[int, dict[int, HostedSession]] = {}
        self._hosted: dict[int, HostedSession] = {}
        self._wanting: dict[int, HostedSession] = {}
        self._touched: dict[int, Outbox] = {}
        self._next_key = 0
        self._draining = False
        self._stopped = False
        self.token_us = 0.0  # of a drafted token, of late; 0 = unknown; may be read from any thread, as may these two
        self.num_guessed = 0
        self.guessing_us = 0

    @property
    def num_sessions(self) -> int:
        """Sessions held now; may be read from any thread."""
        return len(self._hosted)

    @property
    def is_idle(self) -> bool:
        """No session wants drafts: the next turn blocks until something arrives."""
        return not self._wanting

    def attach(self, stream: int, outbox: Outbox) -> None:
        """Say where a new stream's frames go; from the event loop, before any message of that stream is offered."""
        self._outboxes[stream] = outbox

    def run(self) -> None:
        """Turn until asked to stop; everything is freed then."""
        try:
            while not self._stopped:
                self.turn()
            self._free(list(self._hosted.values()))
        finally:
            self._lanes.drop_all()

    def turn(self) -> None:
        """Take what has arrived, draft once for whoever wants it, hand over what is to be sent."""
        was_draining = self._draining
        is_idle = not self._wanting
        items = self._inbox.take(wait=is_idle, lanes=self._lanes.all if is_idle else ())
        for item in (*self._lanes.receive(), *items):
            match item:
                case FramesArrived(stream=stream, frames=frames):
                    self._take_frames(stream, frames)
                case LaneOpened(stream=stream, lane=lane):
                    self._open_lane(stream, lane)
                case StreamEnded(stream=stream):
                    self._end_stream(stream)
                case DrainAsked():
                    self._drain()
                case StopAsked():
                    self._stopped = True
        if self._wanting and not self._stopped:
            self._draft()
        self._send()
        if was_draining is not self._draining:
            self._drained()

    def _send(self) -> None:
        """Hand over what this turn has made."""
        without_lane = [self._touched[stream] for stream in self._lanes.send(self._touched)]
        self._touched.clear()
        if without_lane:
            self._flushed(without_lane)
        for stream, error in self._lanes.take_lost():
            self._end_stream(stream)  # now, for the stream itself may be long in ending: whoever reads no lane may read no status
            self._lane_lost(stream, str(error))

    def _open_lane(self, stream: int, lane: Lane) -> None:
        outbox = self._outboxes.get(stream)
        if outbox is None:  # it has ended meanwhile
            lane.close()
        else:
            self._lanes.add(stream, lane, outbox)
            self._touched[stream] = outbox  # what the stream has not taken goes this way too

    # --- arriving -------------------------------------------------------------------------------------------------------

    def _take_frames(self, stream: int, frames: Iterable[VerifierFrame | BadFrame]) -> None:
        outbox = self._outboxes.get(stream)
        if outbox is None:
            return
        sessions = self._streams.setdefault(stream, {})
        self._touched[stream] = outbox
        for frame in frames:
            handle = frame.session
            if handle is None:
                continue
            hosted = sessions.get(handle)
            if hosted is None and isinstance(frame, Open):
                hosted = self._admit(stream, frame, sessions, outbox)
            if hosted is None:
                if isinstance(frame, BadFrame):
                    outbox.push(Close(handle, frame.incarnation, CloseReason.PROTOCOL, str(frame.error)))
                continue  # else it ended here already, and its verifier was told
            if isinstance(frame, BadFrame):
                hosted.reject(frame)
            else:
                hosted.step(VerifierFrameArrived(frame))
            self._settle(hosted)

    def _admit(self, stream: int, frame: Open, sessions: dict[int, HostedSession], outbox: Outbox) -> HostedSession | None:
        """A place for a new session, or a refusal."""
        reason = self._no_room(sessions)
        if reason is not None:
            outbox.push(Refused(frame.session, frame.incarnation, reason))
            return None
        self._next_key += 1
        hosted = HostedSession(self._next_key, stream, frame.session, self._bounds, self._source, outbox)
        sessions[frame.session] = self._hosted[hosted.key] = hosted
        return hosted

    def _no_room(self, sessions: dict[int, HostedSession]) -> str | None:
        if self._draining:
            return "the drafter is shutting down"
        if len(self._hosted) >= self._limits.max_sessions:
            return f"the drafter holds {self._limits.max_sessions} sessions already"
        if len(sessions) >= self._limits.max_sessions_per_stream:
            return f"this stream holds {self._limits.max_sessions_per_stream} sessions already"
        return None

    def _settle(self, hosted: HostedSession) -> None:
        """After any event: forget an ended session, note whether a live one wants drafts."""
        if hosted.session.ended:
            self._wanting.pop(hosted.key, None)
            del self._hosted[hosted.key]
            del self._streams[hosted.stream][hosted.handle]
        elif hosted.session.wants() is not None:
            self._wanting[hosted.key] = hosted
        else:
            self._wanting.pop(hosted.key, None)

    def _end_stream(self, stream: int) -> None:
        self._free(list(self._streams.get(stream, {}).values()))
        self._streams.pop(stream, None)
        self._lanes.drop(stream)
        self._outboxes.pop(stream, None)
        self._touched.pop(stream, None)

    def _free(self, sessions: list[HostedSession]) -> None:
        for hosted in sessions:
            hosted.abandon()
            self._settle(hosted)

    def _drain(self) -> None:
        self._draining = True
        for hosted in list(self._hosted.values()):
            hosted.step(Drained())
            self._touched[hosted.stream] = hosted.outbox
            self._settle(hosted)

    # --- drafting -------------------------------------------------------------------------------------------------------

    def _draft(self) -> None:
        requests: list[ProposeRequest] = []
        for hosted in self._wanting.values():
            reach = hosted.session.wants()
            assert reach is not None
            session = hosted.session
            requests.append(ProposeRequest(hosted.key, session.tree.tree_id, reach, session.hedge_nodes, session.flush_nodes))
        begin_ns = self._clock_ns()
        try:
            proposals = self._source.propose(requests)
        except OutriderError:
            self._draft_singly(requests)
            return
        self._grow(proposals, begin_ns, self._clock_ns())

    def _draft_singly(self, requests: list[ProposeRequest]) -> None:
        """The source refused the batch, so find out for whom: only those sessions end."""
        for request in requests:
            begin_ns = self._clock_ns()
            try:
                proposals = self._source.propose([request])
            except OutriderError as error:
                hosted = self._hosted[request.session]
                hosted.step(SourceFailed(str(error)))
                self._touched[hosted.stream] = hosted.outbox
                self._settle(hosted)
                continue
            self._grow(proposals, begin_ns, self._clock_ns())

    def _grow(self, proposals: list[Proposal], begin_ns: int, end_ns: int) -> None:
        draft_us = (end_ns - begin_ns) // 1000
        most = 0
        for proposal in proposals:
            num_tokens = len(proposal.tokens)
            self.num_guessed += num_tokens
            most = max(most, num_tokens)
            hosted = self._hosted[proposal.session]
            nodes = (proposal.tokens, proposal.parents, proposal.scores)
            how = (proposal.is_hedge, proposal.may_hedge, proposal.follow_us)
            if hosted.step(Grown(proposal.tree_id, *nodes, proposal.end, draft_us, begin_ns, end_ns, proposal.rows, *how)):
                self._touched[hosted.stream] = hosted.outbox
            self._settle(hosted)
        self.guessing_us += draft_us
        self._count_time(draft_us, most)

    def _count_time(self, draft_us: int, num_tokens: int) -> None:
        """Sessions are drafted for side by side: what a call took is divided by the tokens of the one that got most."""
        if num_tokens:
            token_us = draft_us / num_tokens
            self.token_us += (token_us - self.token_us) * (DRAFT_TIME_RATE if self.token_us else 1.0)
