"""KV blocks for answers that grow: more as they are wanted, and where there are none, the newest session gives up its own.

That one is parked, with everything but its KV, until there is room again, and its text is read anew then; its tokens are the same, and its
client only waits. Before anybody else those give way that take no steps because their readers are slow: whoever waits for their blocks may
wait for as long as a client pleases. Of the others the oldest never does, so that there is always one that comes to its end. Lives on the
engine thread. Must not know streams, steps or policies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from outrider.engine.contract import Engine
from outrider.errors import Overloaded
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label
from outrider.types.text_room import blocks_of_step, first_len, next_len
from verifier_service.hosted import HostedSession

_LOG = logging.getLogger(__name__)


class AnswerRoom:
    """Of one engine's sessions."""

    def __init__(self, engine: Engine, metrics: LocalMetrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._model = {Label.MODEL: Path(engine.identity.model).name}
        self._cramped: set[int] = set()  # handles
        self._parked: set[int] = set()
        # The first of those to wait for room, and free blocks and growing sessions when it had none.
        self._too_few: tuple[int, int, int] | None = None
        metrics.add(names.NUM_PARKED_SESSIONS, self._model, 0)

    def num_waiting(self, sessions: Mapping[int, HostedSession]) -> int:
        """Parked sessions that could take steps if they had room; nobody new is to come before they have it."""
        return sum(not sessions[handle].answer.is_slow for handle in self._parked)

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything for `make` to do."""
        return bool(self._cramped or self._parked)

    def want(self, hosted: HostedSession) -> None:
        """This one is to have more before its next round."""
        self._cramped.add(hosted.handle)

    def forget(self, handle: int) -> None:
        """The session is over."""
        self._cramped.discard(handle)
        self._parked.discard(handle)

    def is_short_of(self, sessions: Iterable[HostedSession]) -> bool:
        """Whether fewer blocks are free than these will want next: who has just come would have to give way at once."""
        return self._engine.num_free_blocks < _num_growing(sessions) * blocks_of_step(self._engine.limits.block_len)

    def make(self, sessions: Mapping[int, HostedSession], now_us: int) -> None:
        """Room for everybody's next round, and then for those that are parked. sessions: in order of admission; no round is in flight."""
        in_order = tuple(sessions.values())
        if self._cramped:
            cramped, self._cramped = self._cramped, set()
            for hosted in in_order:
                if hosted.handle in cramped and not hosted.is_parked:
                    self._grow(hosted, in_order)
        if self._parked:
            for hosted in in_order:
                if hosted.is_parked and not hosted.answer.is_slow and not self._has_place(hosted, in_order, now_us):
                    break

    def _grow(self, hosted: HostedSession, in_order: tuple[HostedSession, ...]) -> None:
        length = next_len(hosted.session.committed_len, hosted.sequence.max_len)
        while not hosted.is_parked:
            try:
                self._engine.reserve(hosted.handle, length)
            except Overloaded:
                self._park(_idle(in_order) or next(one for one in reversed(in_order) if not one.is_parked))
            else:
                hosted.held_len = length
                return

    def _park(self, hosted: HostedSession) -> None:
        self._engine.close(hosted.handle)
        hosted.park()
        self._parked.add(hosted.handle)
        self._metrics.add(names.NUM_PARKED_SESSIONS, self._model)
        why = "its reader is slow, and others want them" if hosted.answer.is_slow else "older ones have grown into its own"
        _LOG.info("session %s gives its KV blocks up for now: %s", hosted.answer.request.spec.request_id, why)

    def _has_place(self, hosted: HostedSession, in_order: tuple[HostedSession, ...], now_us: int) -> bool:
        """Let a parked one go on, in the place of those whose readers are slow if need be. What failed is not tried again before there is
        something new."""
        while True:
            if self._too_few != (hosted.handle, self._engine.num_free_blocks, _num_growing(in_order)):
                if self._goes_on(hosted, in_order, now_us):
                    return True
                self._too_few = hosted.handle, self._engine.num_free_blocks, _num_growing(in_order)
            idle = _idle(in_order)
            if idle is None:
                return False
            self._park(idle)

    def _goes_on(self, hosted: HostedSession, in_order: tuple[HostedSession, ...], now_us: int) -> bool:
        tokens = hosted.session.prefix.slice(0, hosted.session.committed_len)
        length = first_len(len(tokens), hosted.sequence.max_len)
        try:
            self._engine.open(hosted.handle, replace(hosted.sequence, first_len=length), tokens)
        except Overloaded:
            return False
        if self.is_short_of(in_order):
            self._engine.close(hosted.handle)
            return False
        self._parked.discard(hosted.handle)
        hosted.go_on(length, self._engine.cached_len(hosted.handle), now_us)
        return True


def _num_growing(sessions: Iterable[HostedSession]) -> int:
    return sum(hosted.is_growing for hosted in sessions)


def _idle(in_order: tuple[HostedSession, ...]) -> HostedSession | None:
    """The newest that has blocks and takes no steps, for its reader is slow."""
    return next((hosted for hosted in reversed(in_order) if not hosted.is_parked and hosted.answer.is_slow), None)
