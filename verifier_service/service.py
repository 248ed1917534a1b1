"""The verifier as a whole: engine thread, pairs and servicer, wired together on one event loop.

Knows how the parts are started, connected and stopped. Must not know arguments or models: an engine's loader is handed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from outrider.engine.contract import Engine
from outrider.rpc.server import RpcServer
from outrider.session.pacing.registry import make_pacing
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.types.fleet import Replica
from outrider.v1 import verifier_pb2
from outrider.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from verifier_service.answer import SessionEnded
from verifier_service.fleet_entry import FleetEntry
from verifier_service.inbox import StopAsked
from verifier_service.metrics import VerifierMetrics
from verifier_service.outgoing import Outgoing
from verifier_service.pairs import Pairs
from verifier_service.plan_log import PlanLog
from verifier_service.prefill_price import PrefillPrice
from verifier_service.resident import ResidentDrafter
from verifier_service.scheduler import Scheduler
from verifier_service.servicer import VerifierServicer
from verifier_service.settings import VerifierSettings
from verifier_service.sharing import open_sharing

_LOG = logging.getLogger(__name__)
SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name
STOP_TIMEOUT_S = 30.0
SHARING_STOP_TIMEOUT_S = 1.0  # for answers that wait to be published
PLAN_LOG_STOP_TIMEOUT_S = 5.0  # for explanations that wait to be written


class VerifierServer:
    """Use: `start`, serve until told otherwise, `drain`, `stop`. on_death: the engine thread cannot go on.

    load_resident: loads a drafter of this process, in the engine thread.
    """

    def __init__(
        self,
        settings: VerifierSettings,
        load: Callable[[], Engine],
        on_death: Callable[[], None],
        load_resident: Callable[[], ResidentDrafter] | None = None,
    ) -> None:
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._on_death = on_death
        self.rpc = RpcServer([settings.listen])
        self.metrics = LocalMetrics()
        self.sharing = open_sharing(settings.sharing)
        self.plan_log = None if settings.explain_plans is None else PlanLog(settings.explain_plans)
        self.scheduler = Scheduler(
            load,
            self._send,
            self._on_room,
            self._on_engine_death,
            max_sessions=settings.max_sessions,
            draft_len=settings.draft.draft_len,
            max_queue_us=1000.0 * settings.max_queue_ms,
            prefill_price=PrefillPrice(settings.max_prefill_stretch),
            load_resident=load_resident,
            metrics=self.metrics,
            shared=self.sharing,
            tell_plan=None if self.plan_log is None else self.plan_log.add,
        )
        self.pairs: Pairs | None = None
        self.servicer: VerifierServicer | None = None
        self._engine: Engine | None = None
        self._reported: VerifierMetrics | None = None

    async def start(self) -> None:
        """Load the engine, connect to the drafters, listen, and say that we serve. Raises what loading or binding raises."""
        self._start_sharing()
        if self.plan_log is not None:
            self.plan_log.start()
        self.scheduler.start()
        engine = await asyncio.wrap_future(self.scheduler.engine_ready)
        self._engine = engine
        identity, limits = engine.identity, engine.limits
        self.pairs = Pairs(self.settings.drafters, identity, self.settings.verifier_id, self.scheduler.inbox)
        self.servicer = VerifierServicer(self.settings, identity, limits, self.scheduler, self.pairs)
        self._reported = VerifierMetrics(self.metrics, engine, self.scheduler, self.servicer, self.sharing)
        self.rpc.add(SERVICE, add_VerifierServiceServicer_to_server, self.servicer)
        self.rpc.add_trunks()
        self.pairs.start()
        await self.pairs.wait_decided(self.settings.wait_drafters_s)
        await self.rpc.start()
        await self.rpc.set_serving()

    def _start_sharing(self) -> None:
        if self.sharing is None:
            return
        self.sharing.start()
        pacing = self.settings.draft.pacing
        if not make_pacing(pacing).looks_up:
            _LOG.warning("the pacing %r takes no guesses from texts: answers are shared, for requests that name one that does", pacing)

    async def drain(self, grace_s: float) -> None:
        """Let live requests finish within the grace."""
        if self.servicer is not None:
            await self.servicer.drain(grace_s)

    def replica(self, entry: FleetEntry) -> Replica:
        """What this verifier is and holds now; only after `start`."""
        assert self._engine is not None
        assert self.pairs is not None
        return entry.now(self._engine.identity, self._engine.limits, self.scheduler, self.pairs, draining=self.rpc.draining)

    def refresh_metrics(self) -> None:
        """Set what `metrics` holds of the present moment; only after `start`, from any thread."""
        assert self._reported is not None
        self._reported.refresh()

    async def stop(self) -> None:
        """End the engine thread and the pairs; everything held is freed."""
        self.scheduler.inbox.put(StopAsked())
        ended = await asyncio.to_thread(self.scheduler.join, STOP_TIMEOUT_S)
        if not ended:
            _LOG.error("the engine thread did not end within %g s", STOP_TIMEOUT_S)
        if self.pairs is not None:
            await self.pairs.stop()
        if ended:
            self.scheduler.close_lanes()
        if self.sharing is not None:
            await asyncio.to_thread(self.sharing.stop, SHARING_STOP_TIMEOUT_S)
        if self.plan_log is not None:
            await asyncio.to_thread(self.plan_log.stop, PLAN_LOG_STOP_TIMEOUT_S)

    def _send(self, outgoing: Outgoing) -> None:
        """Engine thread: hand a turn's batch to the loop."""
        self._loop.call_soon_threadsafe(self._deliver, outgoing)

    def _deliver(self, outgoing: Outgoing) -> None:
        """Event loop: drafters first, they are on the critical path."""
        assert self.pairs is not None
        assert self.servicer is not None
        assert self._reported is not None
        self.pairs.push(outgoing.frames)
        self.pairs.lose_lanes(outgoing.lost)
        for answer, message in outgoing.answers:
            answer.push(message)
            if isinstance(message, SessionEnded):
                self.servicer.forget(answer)
                self._loop.call_soon(self._reported.ended, message)  # behind its way to the client, who waits for it

    def _on_engine_death(self) -> None:
        """Engine thread: its last words."""
        self._loop.call_soon_threadsafe(self._lose_engine)
        self._on_death()

    def _lose_engine(self) -> None:
        if self.servicer is not None:
            self.servicer.lose_engine()

    def _on_room(self) -> None:
        """Engine thread: the inbox has room again."""
        self._loop.call_soon_threadsafe(self._tell_pairs)

    def _tell_pairs(self) -> None:
        if self.pairs is not None:
            self.pairs.on_room()
