"""The engine thread: it loads, warms and steps the target, and turns every arrival into plan -> step -> apply.

One thread owns the engine and all sessions, so nothing here is locked. It is fed by a bounded inbox and answers with one batch per turn to
the event loop; it never awaits a write. What arrives goes to the live sessions, which cancellation frees between two steps; frames
of drafters on this machine go out and come in here, past that loop (lanes.py). Must not know grpc or protobuf.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from outrider.engine.contract import Engine
from outrider.engine.round_ahead import compute_plain_ahead
from outrider.session.pacing.contract import PacingPlan
from outrider.session.pacing.explanation import PlanExplanation
from outrider.store.shared_ngrams import SharedNgrams
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.types.identity import ModelIdentity
from verifier_service.clock import monotonic_us
from verifier_service.core_loan import measure_loan
from verifier_service.inbox import CancelAsked, FramesArrived, Inbox, InboxItem, Nudge, OpenAsked, PairDown, PairUp, StopAsked
from verifier_service.lanes import DrafterLanes
from verifier_service.live_sessions import LiveSessions
from verifier_service.outgoing import Outgoing
from verifier_service.prefill_price import PrefillPrice
from verifier_service.queue_time import QueueTime
from verifier_service.resident import CONNECTION, RESIDENT, ResidentDrafter, ResidentLink
from verifier_service.step_planner import StepPlanner
from verifier_service.target_steps import TargetSteps

_LOG = logging.getLogger(__name__)
PUBLISH_EVERY_US = 20_000
END_REST_S = 0.0005  # about what the event loop takes for the way of an answer's end to the client


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """What the engine thread holds, as of when it last slept, or PUBLISH_EVERY_US ago where it never does.

    num_drafter_sessions: opened at drafters by live sessions. num_lent_steps: of num_steps, those that ran on lent cores too.
    cost: of steps of one sequence; sequence_us: what each further one adds. step_us: what all steps took. queue_us: what a session admitted
    now waits for its first step. acceptance, late_share: how often each drafter was right, and late, by endpoint.
    """

    num_sessions: int = 0
    num_drafter_sessions: int = 0
    num_free_blocks: int = 0
    cost: tuple[tuple[int, float], ...] = ()
    cost_unlent: tuple[tuple[int, float], ...] = ()
    sequence_us: float = 0.0
    num_steps: int = 0
    num_lent_steps: int = 0
    step_us: int = 0
    queue_us: float = 0.0
    acceptance: Mapping[str, float] = field(default_factory=dict)
    late_share: Mapping[str, float] = field(default_factory=dict)


class Scheduler:
    """Start it once; everything else goes through `inbox`. send: called with each turn's batch, from the engine thread.

    engine_ready resolves to the loaded, warmed and measured engine (or to its load error). on_death: called from the engine thread when it
    cannot go on. load_resident: loads a drafter of this process. max_queue_us: sessions that would wait longer for their first step are
    refused; 0 = none. prefill_price: of reading beside sessions that decode. metrics: counted into. shared: other answers, for guesses.
    tell_plan: is given the explanation of every plan, in the engine thread; None, and none is made. sessions, steps, resident: the engine
    thread's, once engine_ready has resolved.
    """

    sessions: LiveSessions
    steps: TargetSteps

    def __init__(
        self,
        load: Callable[[], Engine],
        send: Callable[[Outgoing], None],
        on_room: Callable[[], None],
        on_death: Callable[[], None],
        *,
        max_sessions: int,
        draft_len: int | None,
        max_queue_us: float = 0.0,
        prefill_price: PrefillPrice | None = None,
        load_resident: Callable[[], ResidentDrafter] | None = None,
        metrics: LocalMetrics | None = None,
        shared: SharedNgrams | None = None,
        tell_plan: Callable[[PlanExplanation], None] | None = None,
    ) -> None:
        self.inbox = Inbox(on_room)
        self.snapshot = SchedulerSnapshot()
        self.engine_ready: Future[Engine] = Future()
        self.resident: ResidentLink | None = None
        self._load = load
        self._load_resident = load_resident
        self._send = send
        self._on_death = on_death
        self._max_sessions = max_sessions
        self._max_queue_us = max_queue_us
        self._prefill_price = prefill_price
        self._planner = StepPlanner(draft_len, tell_plan)
        self._metrics = metrics or LocalMetrics()
        self._shared = shared
        self._lanes = DrafterLanes()
        self._stopping = False
        self._publish_at_us = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._engine: Engine

    @property
    def identity(self) -> ModelIdentity:
        """The target's; only once engine_ready has resolved."""
        return self._engine.identity

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread after StopAsked; False when it is still running."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close_lanes(self) -> None:
        """Once thread and pairs have ended: earlier, a drafter would think its verifier lost, and end streams that are ending."""
        self._lanes.drop_all()
        self.inbox.close_lanes()

    # --- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._set_up()
        except BaseException as error:  # noqa: BLE001 -- the thread's edge: whoever waits for the engine gets the error
            self.engine_ready.set_exception(error)
            return
        self._publish()
        self.engine_ready.set_result(self._engine)
        try:
            self._serve()
        except Exception:  # noqa: BLE001 -- the thread's edge: nobody else would ever hear of it
            _LOG.exception("the engine thread cannot go on")
            try:
                self._end_all("the verifier failed")
            finally:
                self._on_death()

    def _set_up(self) -> None:
        begin_us = monotonic_us()
        if self._load_resident is not None:
            # The target last: torch runs with the threads that were asked for last, and it has most of the work.
            self.resident = ResidentLink(self._load_resident())
        self._engine = self._load()
        loaded_us = monotonic_us()
        loan = measure_loan(self._engine)
        # Not before: what is computed ahead would be in the way of what is measured.
        if self.resident is not None:
            self.resident.meet(self._engine)
        else:
            compute_plain_ahead(self._engine)
        spent = (loaded_us - begin_us) / 1e6, (monotonic_us() - loaded_us) / 1e6
        _LOG.info("engine loaded in %.1f s, cost curve measured in %.1f s: %s", *spent, loan.curves()[0].points)
        queue = QueueTime(self._engine.limits.max_rows, self._max_queue_us, self._prefill_price)
        self.sessions = LiveSessions(
            self._engine, self._planner, self._max_sessions, lambda num: loan.curves(num)[0], queue, self._metrics, self._shared
        )
        self.steps = TargetSteps(self._engine, loan, self.sessions, self._planner, self._metrics)

    def _serve(self) -> None:
        timeout_s: float | None = None
        if self.resident is not None:
            self._take(PairUp(RESIDENT, CONNECTION))
        while not self._stopping:
            for item in self._arrivals(timeout_s):
                self._take(item)
            self.sessions.make_room()
            plan = self.steps.plan()
            self._flush()  # not before: the loop then has the interpreter while the step computes, not while it is planned
            if plan.take:
                self.steps.take(plan.take)
            self._send_frames()
            self._free_ended()
            timeout_s = self._pause(plan)
            if timeout_s != 0.0 or monotonic_us() >= self._publish_at_us:
                self._publish()
        self._end_all("the verifier is shutting down")

    def _arrivals(self, timeout_s: float | None) -> list[InboxItem]:
        """What there is to take in, once a drafter of this process has had its turn; lanes first, so that a drafter's last words come
        before its end."""
        begin_us = monotonic_us()
        nearest = [] if self.resident is None else self.resident.arrivals()
        timeout_s = 0.0 if nearest else timeout_s
        items = self.inbox.take(timeout_s, self._lanes.all)
        self.steps.rested_us += monotonic_us() - begin_us
        arrived = self._lanes.receive(monotonic_us(), waited=timeout_s != 0.0)
        self.sessions.outgoing.lost += [item for item in arrived if isinstance(item, PairDown)]
        return [*nearest, *arrived, *items]

    def _take(self, item: InboxItem) -> None:
        match item:
            case FramesArrived():
                self.sessions.take_frames(item)
            case OpenAsked():
                self.sessions.open(item.answer, stopping=self._stopping)
            case CancelAsked():
                self.sessions.cancel(item)
            case PairUp():
                if item.lane is not None:
                    self._lanes.add(item.drafter, item.connection, item.lane)
                self.sessions.connect(item)
                self.steps.loan.observe_drafters(self.sessions.drafters)
            case PairDown():
                self._lanes.drop(item.drafter, item.connection)
                self.sessions.disconnect(item)
                self.steps.loan.observe_drafters(self.sessions.drafters)
            case Nudge():
                pass
            case StopAsked():
                self._stopping = True

    def _pause(self, plan: PacingPlan) -> float | None:
        if plan.take or self._lanes.has_lost or (self.resident is not None and self.resident.has_lost):
            return 0.0
        return None if plan.wake_us is None else max(0.0, (plan.wake_us - monotonic_us()) / 1e6)

    def _send_frames(self) -> None:
        """Drafters hear of a step as soon as it is over, on lanes here and now; clients too, where a drafter's turn comes first."""
        self._send_on_lanes()
        if self.sessions.outgoing.frames or (self.resident is not None and self.resident.is_told):
            self._hand_over()

    def _free_ended(self) -> None:
        """Clients hear of an end before it is worked off. Where that was the last session, the loop has the interpreter for that first: it
        would only wait for it, and the client with it."""
        if not self.sessions.has_ended:
            return
        self._hand_over()
        if not len(self.sessions):
            self.inbox.wait(END_REST_S, self._lanes.all)
        self.sessions.free_ended()

    def _send_on_lanes(self) -> None:
        frames = self.sessions.outgoing.frames
        if frames:
            self.steps.make_way(drafter for drafter, _ in frames)
            if self.resident is not None:
                self.resident.send(frames)
        self._lanes.send(frames)

    def _flush(self) -> None:
        self._send_on_lanes()
        self._hand_over()

    def _hand_over(self) -> None:
        """To the event loop, what there is."""
        if self.sessions.outgoing:
            self._send(self.sessions.take_outgoing())

    def _publish(self) -> None:
        self._publish_at_us = monotonic_us() + PUBLISH_EVERY_US
        self.snapshot = SchedulerSnapshot(
            num_sessions=len(self.sessions),
            num_drafter_sessions=sum(hosted.session.num_open_drafters for hosted in self.sessions),
            num_free_blocks=self._engine.num_free_blocks,
            cost=self.steps.cost.points,
            sequence_us=self.steps.loan.curves(max(2, len(self.sessions)))[0].sequence_us,
            cost_unlent=self.steps.loan.unlent.points if self.steps.loan.is_possible else (),
            num_steps=self.steps.num_steps,
            num_lent_steps=self.steps.loan.num_steps,
            step_us=self.steps.step_us,
            queue_us=self.sessions.queue_us(),
            acceptance=self.sessions.record.rates(),
            late_share=self.sessions.record.late_shares(),
        )

    def _end_all(self, detail: str) -> None:
        self.sessions.end_all(detail)
        self.sessions.free_ended()
        if self.resident is not None:
            self.resident.close()
        self._publish()
        self._flush()
