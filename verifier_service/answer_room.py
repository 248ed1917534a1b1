"""KV blocks for answers that grow: more as they are wanted, and where there are none, the newest session gives up its own.

That one is parked, with everything but its KV, until there is room again, and its text is read anew then; its tokens are the same, and its
client only waits. The oldest never gives way, so that there is always one that comes to its end. Lives on the engine thread. Must not know
streams, steps or policies.
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
        self._num_too_few = -1  # free blocks with which the first of those could not go on
        metrics.add(names.NUM_PARKED_SESSIONS, self._model, 0)

    @property
    def num_parked(self) -> int:
        """Sessions that wait for room; nobody new is to come before they have it."""
        return len(self._parked)

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
        num_growing = sum(hosted.is_growing for hosted in sessions)
        return self._engine.num_free_blocks < num_growing * blocks_of_step(self._engine.limits.block_len)

    def make(self, sessions: Mapping[int, HostedSession], now_us: int) -> None:
        """Room for everybody's next round, and then for those that are parked. sessions: in order of admission; no round is in flight."""
        in_order = tuple(sessions.values())
        if self._cramped:
            cramped, self._cramped = self._cramped, set()
            for hosted in in_order:
                if hosted.handle in cramped and not hosted.is_parked:
                    self._grow(hosted, in_order)
        if self._parked and self._engine.num_free_blocks != self._num_too_few:
            for hosted in in_order:
                if hosted.is_parked and not self._goes_on(hosted, in_order, now_us):
                    self._num_too_few = self._engine.num_free_blocks
                    break

    def _grow(self, hosted: HostedSession, in_order: tuple[HostedSession, ...]) -> None:
        length = next_len(hosted.session.committed_len, hosted.sequence.max_len)
        while not hosted.is_parked:
            try:
                self._engine.reserve(hosted.handle, length)
            except Overloaded:
                self._park(next(one for one in reversed(in_order) if not one.is_parked))
            else:
                hosted.held_len = length
                return

    def _park(self, hosted: HostedSession) -> None:
        self._engine.close(hosted.handle)
        hosted.park()
        self._parked.add(hosted.handle)
        self._num_too_few = -1
        self._metrics.add(names.NUM_PARKED_SESSIONS, self._model)
        _LOG.info("session %s waits for KV blocks: older ones have grown into its own", hosted.answer.request.spec.request_id)

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
