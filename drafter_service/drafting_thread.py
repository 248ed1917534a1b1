"""The one thread that owns engine and source: it loads them, warms them, drafts with them, and is where torch lives in this process.

Knows threads and how their news reaches the event loop. Must not know grpc or what is loaded: a loader is handed in.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from drafter_service.inbox import DrainAsked, Inbox, StopAsked
from drafter_service.outbox import Outbox
from drafter_service.scheduler import Scheduler, SchedulerLimits
from outrider.drafting.contract import DraftSource
from outrider.engine.contract import Engine
from outrider.session.drafter_admission import DrafterBounds

_LOG = logging.getLogger(__name__)
INBOX_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """What a loader makes, in the thread that will use it. token_us: microseconds of a drafted token, read_us: of a token
    of a prompt that is read; 0 = not measured."""

    engine: Engine
    source: DraftSource
    bounds: DrafterBounds
    token_us: float = 0.0
    read_us: float = 0.0


class DraftingThread:
    """Create and start it inside the event loop that it reports to. The callbacks run in that loop.

    ended: set once the thread is over, whether asked to or by failure; `failure` says which.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        on_flushed: Callable[[list[Outbox]], None],
        on_room: Callable[[], None],
        on_ended: Callable[[], None],
        on_lane_lost: Callable[[int, str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._on_flushed = on_flushed
        self._on_ended = on_ended
        self._on_lane_lost = on_lane_lost
        self.inbox = Inbox(INBOX_CAPACITY, lambda: self._tell(on_room))
        self.ended = asyncio.Event()
        self.failure: BaseException | None = None
        self._drained = asyncio.Event()
        self._ready: asyncio.Future[tuple[LoadedDrafter, Scheduler]] = self._loop.create_future()
        self._thread: threading.Thread | None = None

    async def start(self, load: Callable[[], LoadedDrafter]) -> tuple[LoadedDrafter, Scheduler]:
        """Load and begin to draft; raises what the loader raised."""
        self._thread = threading.Thread(target=self._main, args=(load,), name="drafting", daemon=True)
        self._thread.start()
        return await self._ready

    async def drain(self) -> None:
        """Close every session; returns when their last frames are in the outboxes or on the lanes."""
        self.inbox.control(DrainAsked())
        waits = [asyncio.ensure_future(event.wait()) for event in (self._drained, self.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def stop(self) -> None:
        """Free everything and end the thread after the step under way."""
        self.inbox.control(StopAsked())
        await self.ended.wait()
        self.inbox.close_lanes()

    def _main(self, load: Callable[[], LoadedDrafter]) -> None:
        try:
            loaded = load()
            scheduler = Scheduler(
                loaded.source,
                loaded.bounds,
                self._limits,
                self.inbox,
                flushed=lambda outboxes: self._tell(lambda: self._on_flushed(outboxes)),
                drained=lambda: self._tell(self._drained.set),
                lane_lost=lambda stream, reason: self._tell(lambda: self._on_lane_lost(stream, reason)),
            )
            scheduler.token_us = loaded.token_us
        except BaseException as error:  # noqa: BLE001 -- whoever waits for the start is to see what it was
            failed = error
            self._tell(lambda: self._ready.set_exception(failed))
            return
        self._tell(lambda: self._ready.set_result((loaded, scheduler)))
        try:
            scheduler.run()
        except Exception as error:  # noqa: BLE001 -- the process's edge: a bug ends the process, not only its thread
            _LOG.exception("the drafting thread failed")
            self.failure = error
        self._tell(self._finish)

    def _finish(self) -> None:
        self.ended.set()
        self._on_ended()

    def _tell(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            _LOG.debug("the event loop is gone; nobody is left to hear from the drafting thread")
