"""A drafter's scheduler, turned by whoever waits for its guesses instead of by a thread of its own.

Knows the drafter's scheduler and the frames it takes and gives. Must not know verifiers, nor how its frames travel.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from drafter_service.drafting_thread import LoadedDrafter
from drafter_service.inbox import FramesArrived, Inbox, StreamEnded
from drafter_service.outbox import Outbox
from drafter_service.scheduler import Scheduler, SchedulerLimits
from drafter_service.settings import DrafterSettings
from outrider.engine.contract import Engine
from outrider.engine.round_ahead import share_cores
from outrider.rpc.convert.link import Pong, Welcome
from outrider.types.frames import DrafterFrame, VerifierFrame
from outrider.types.identity import ModelIdentity

_LOG = logging.getLogger(__name__)
_STREAM = 1
MAX_MESSAGES = 256  # between two turns; a verifier has one or two
MAX_FRAMES = 4096  # to be said in one turn, at least one of each session that may be live
_MAX_NUMBERS = 1 << 24


class DrafterNextDoor:
    """One verifier's drafter on the verifier's own thread (verifier_service.resident.ResidentDrafter)."""

    def __init__(self, loaded: LoadedDrafter, limits: SchedulerLimits | None = None) -> None:
        self.identity: ModelIdentity = loaded.engine.identity
        self._engine = loaded.engine
        self._inbox = Inbox(MAX_MESSAGES, _nothing)
        self._outbox = Outbox(MAX_FRAMES)
        limits = limits or SchedulerLimits()
        self._scheduler = Scheduler(loaded.source, loaded.bounds, limits, self._inbox, lambda _: None, _nothing)
        self._scheduler.attach(_STREAM, self._outbox)

    @property
    def num_sessions(self) -> int:
        """Sessions held now."""
        return self._scheduler.num_sessions

    def meet(self, target: Engine) -> None:
        """The engine that the same thread verifies with: whose cores a large draft has too when it is its turn; beside a small one, where
        both can, the next round is computed while this one is digested."""
        ahead = share_cores(self._engine, target)
        if ahead is not None:
            _LOG.info("rounds of one session are computed ahead, while this thread is busy with the one before")

    def tell(self, frames: list[VerifierFrame]) -> None:
        """Frames of the verifier, to be taken when it is the drafter's turn. Raises RuntimeError after MAX_MESSAGES without a turn."""
        if not self._inbox.offer(FramesArrived(_STREAM, tuple(frames))):
            raise RuntimeError(f"{MAX_MESSAGES} messages wait for the drafter, which has had no turn")

    def work(self) -> list[DrafterFrame]:
        """Read and draft until something is to be said; nothing when it rests."""
        while not len(self._outbox) and not (self._scheduler.is_idle and self._inbox.is_empty):
            self._scheduler.turn()
        return [frame for frame in self._outbox.take(MAX_FRAMES, _MAX_NUMBERS) if not isinstance(frame, Welcome | Pong)]

    def free(self) -> None:
        """End every session, with all they hold."""
        self._inbox.control(StreamEnded(_STREAM))
        self._scheduler.turn()


def in_turns(drafter: DrafterSettings, num_threads: int) -> DrafterSettings:
    """The same drafter on the thread of a verifier that has so many: those that are not its own are idle when it is its turn."""
    engine = drafter.engine
    lent = max(0, num_threads - engine.num_threads) if engine.device == "cpu" else 0
    return replace(drafter, engine=replace(engine, lent_threads=lent))


def _nothing() -> None:
    """There is nobody to wake: who fills a queue here also empties it."""
