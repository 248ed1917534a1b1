"""Verifier and drafter in one thread: both services' own schedulers, joined by calls where the services have streams.

The verifier's scheduler runs as it does in its process. Whenever it asks what has arrived, the drafter works first: it takes what it was
told, and drafts until it has something to send or rests. So the two take turns, and no message is encoded, sent or waited for. Must not
know how requests come in, nor policies: those that want both to compute at once get turns too.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from drafter_service import inbox as drafter_inbox
from drafter_service.drafting_thread import LoadedDrafter
from drafter_service.outbox import Outbox
from drafter_service.scheduler import Scheduler as DraftScheduler
from drafter_service.scheduler import SchedulerLimits
from outrider.engine.contract import Engine
from outrider.errors import OutriderError
from outrider.rpc.convert.link import Pong, Welcome
from outrider.rpc.lane import Lane
from outrider.types.frames import DrafterFrame, VerifierFrame
from outrider.types.statistics import DraftStatistics
from verifier_service.answer import AnswerMessage, AnswerStream, SessionEnded, SessionRequest, TokensCommitted
from verifier_service.clock import monotonic_us
from verifier_service.inbox import FramesArrived, Inbox, InboxItem, OpenAsked, PairUp, StopAsked
from verifier_service.outgoing import Outgoing
from verifier_service.scheduler import Scheduler

DRAFTER = "next door"
_STREAM = _CONNECTION = 1
_MAX_FRAMES = 256
_MAX_NUMBERS = 1 << 20
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Told:
    """One answer. Times on this process's clock since it was asked for."""

    tokens: tuple[int, ...]
    first_token_ms: float
    total_ms: float
    statistics: DraftStatistics


class DrafterNextDoor:
    """The drafter's scheduler, turned by whoever waits for its guesses."""

    def __init__(self, loaded: LoadedDrafter) -> None:
        self._inbox = drafter_inbox.Inbox(_MAX_FRAMES, _nothing)
        self._outbox = Outbox(_MAX_FRAMES)
        self._scheduler = DraftScheduler(loaded.source, loaded.bounds, SchedulerLimits(), self._inbox, lambda _: None, _nothing)
        self._scheduler.attach(_STREAM, self._outbox)

    def tell(self, frames: list[VerifierFrame]) -> None:
        """Frames of the verifier, to be taken when it is the drafter's turn."""
        if not self._inbox.offer(drafter_inbox.FramesArrived(_STREAM, tuple(frames))):
            raise RuntimeError("the drafter's inbox is full, although it is emptied in every turn")

    def work(self) -> list[DrafterFrame]:
        """Read and draft until something is to be sent; nothing when it rests."""
        while not len(self._outbox) and not (self._scheduler.is_idle and self._inbox.is_empty):
            self._scheduler.turn()
        return [frame for frame in self._outbox.take(_MAX_FRAMES, _MAX_NUMBERS) if not isinstance(frame, Welcome | Pong)]


class InboxOfTurns(Inbox):
    """The verifier's inbox, into which its drafter puts its frames itself whenever the verifier looks."""

    def __init__(self) -> None:
        super().__init__(_nothing)
        self.drafter: DrafterNextDoor | None = None

    def take(self, timeout_s: float | None, lanes: Collection[Lane] = ()) -> list[InboxItem]:
        """See Inbox."""
        if self.drafter is not None and (frames := self.drafter.work()):
            self.offer(FramesArrived(DRAFTER, _CONNECTION, tuple(frames), monotonic_us()))
        items = super().take(0.0)
        return items if items or timeout_s == 0.0 else super().take(timeout_s)


class PairInTurns:
    """A target and a drafter that answer one request at a time. load: runs in the thread that will own both.

    max_rows and the like are the engine's own; draft_len: as the verifier's. Use as a context manager.
    """

    def __init__(self, load: Callable[[], tuple[LoadedDrafter, Engine]], draft_len: int | None = None) -> None:
        """Load and measure; raises what loading raises."""
        self._load_both = load
        self._messages: queue.Queue[AnswerMessage | None] = queue.Queue()
        self._inbox = InboxOfTurns()
        self._scheduler = Scheduler(self._load, self._send, _nothing, self._die, max_sessions=1, draft_len=draft_len)
        self._scheduler.inbox = self._inbox
        self._scheduler.start()
        self.engine = self._scheduler.engine_ready.result()
        self._inbox.put(PairUp(DRAFTER, _CONNECTION))

    def answer(self, request: SessionRequest) -> Told:
        """Decode one request to its end. Raises the error it ended with, RuntimeError when the scheduler could not go on."""
        begun_s = time.perf_counter()
        tokens: list[int] = []
        first_s = 0.0
        self._inbox.put(OpenAsked(AnswerStream(request, _nothing)))
        while not isinstance(message := self._messages.get(), SessionEnded):
            if message is None:
                raise RuntimeError("the scheduler cannot go on; its error is in the log")
            if isinstance(message, TokensCommitted):
                first_s = first_s or time.perf_counter() - begun_s
                tokens += message.tokens
        total_s = time.perf_counter() - begun_s
        if message.error is not None:
            raise message.error
        return Told(tuple(tokens), 1000.0 * first_s, 1000.0 * total_s, message.statistics)

    def close(self) -> None:
        """End the thread."""
        self._inbox.put(StopAsked())
        if not self._scheduler.join(STOP_TIMEOUT_S):
            raise OutriderError(f"the thread of verifier and drafter did not end within {STOP_TIMEOUT_S:g} s")

    def __enter__(self) -> PairInTurns:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- in the scheduler's thread ----------------------------------------------------------------------------------------

    def _load(self) -> Engine:
        drafter, engine = self._load_both()
        self._inbox.drafter = DrafterNextDoor(drafter)
        return engine

    def _send(self, outgoing: Outgoing) -> None:
        assert self._inbox.drafter is not None
        for frames in outgoing.frames.values():
            self._inbox.drafter.tell(frames)
        for stream, message in outgoing.answers:
            if isinstance(message, TokensCommitted):
                stream.delivered(len(message.tokens))
            self._messages.put(message)

    def _die(self) -> None:
        self._messages.put(None)


def _nothing() -> None:
    """There is nobody to wake: who fills a queue here also empties it."""
