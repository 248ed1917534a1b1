"""The engine thread: it loads, warms and steps the target, and runs every session's plan -> step -> apply.

One thread owns the engine and all sessions, so nothing here is locked. It is fed by a bounded inbox and answers with one batch per turn to
the event loop; it never awaits a write. An error of one session ends that session only; cancellation frees between two steps. Frames
of drafters on this machine go out and come in here, past that loop (lanes.py). Must not know grpc or protobuf.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from outrider.engine.contract import Engine
from outrider.engine.prefill_order import waiting
from outrider.errors import OutriderError, Overloaded, Unavailable
from outrider.rpc.convert.link import BadFrame
from outrider.rpc.status import RemoteFailure
from outrider.session.events import (
    CancelRequested,
    DrafterFrameArrived,
    DrafterFrameMalformed,
    DrafterJoined,
    DrafterLost,
    Finish,
    FinishReason,
    RoundPlanned,
    RoundVerified,
    SendToDrafter,
    VerifierEffect,
    VerifierEvent,
    Verify,
)
from outrider.session.lookup_odds import FIRST_RIGHTS
from outrider.session.pacing.contract import PacingPlan, SessionPlan
from outrider.session.statistics import ACCEPTANCE_PRIOR
from outrider.types.frames import Close
from outrider.types.identity import ModelIdentity
from outrider.types.statistics import DraftStatistics
from outrider.types.step import SequenceResult, SequenceRows, StepPlan, StepResult
from verifier_service.answer import AnswerStream, SessionEnded, SessionStarted
from verifier_service.clock import monotonic_us
from verifier_service.core_loan import CoreLoan, measure_loan
from verifier_service.hosted import HostedSession, host
from verifier_service.inbox import CancelAsked, FramesArrived, Inbox, InboxItem, Nudge, OpenAsked, PairDown, PairUp, StopAsked
from verifier_service.lanes import DrafterLanes
from verifier_service.outgoing import Outgoing
from verifier_service.step_planner import StepPlanner

_LOG = logging.getLogger(__name__)
MAX_HANDLE = (1 << 32) - 1
MIN_DRAFTED_TO_LEARN = 16  # tokens: below it a session says nothing about the next
ACCEPTANCE_MEMORY = 1 / 4


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """What the engine thread holds, as of its last turn. num_drafter_sessions: opened at drafters by live sessions.

    num_lent_steps: of num_steps, those that ran on lent cores too.
    """

    num_sessions: int = 0
    num_drafter_sessions: int = 0
    num_free_blocks: int = 0
    cost: tuple[tuple[int, float], ...] = ()
    num_steps: int = 0
    num_lent_steps: int = 0


class Scheduler:
    """Start it once; everything else goes through `inbox`. send: called with each turn's batch, from the engine thread.

    engine_ready resolves to the loaded, warmed and measured engine (or to its load error). on_death: called from the engine thread when it
    cannot go on.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        send: Callable[[Outgoing], None],
        on_room: Callable[[], None],
        on_death: Callable[[], None],
        *,
        max_sessions: int,
        draft_len: int | None,
    ) -> None:
        self.inbox = Inbox(on_room)
        self.snapshot = SchedulerSnapshot()
        self.engine_ready: Future[Engine] = Future()
        self._load = load
        self._send = send
        self._on_death = on_death
        self._max_sessions = max_sessions
        self._planner = StepPlanner(draft_len)
        self._sessions: dict[int, HostedSession] = {}
        self._connections: dict[str, int] = {}  # streams that are up: endpoint -> connection
        self._lanes = DrafterLanes()
        self._outgoing = Outgoing()
        self._last_handle = 0
        self._acceptance = ACCEPTANCE_PRIOR  # of the sessions that ended lately: where the next one's estimate begins
        self._lookup_priors: tuple[float, ...] = FIRST_RIGHTS  # the same of guesses from the text itself
        self._num_steps = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._engine: Engine
        self._loan: CoreLoan
        self._drafting = False  # whether drafters may be at work during the step that was planned

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
            begin_us = monotonic_us()
            self._engine = self._load()
            loaded_us = monotonic_us()
            self._loan = measure_loan(self._engine)
            spent = (loaded_us - begin_us) / 1e6, (monotonic_us() - loaded_us) / 1e6
            _LOG.info("engine loaded in %.1f s, cost curve measured in %.1f s: %s", *spent, self._loan.curves(())[0].points)
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

    def _serve(self) -> None:
        timeout_s: float | None = None
        while not self._stopping:
            for item in self._arrivals(timeout_s):
                self._take(item)
            plan = self._plan()
            self._flush()  # not before: the loop then has the interpreter while the step computes, not while it is planned
            if plan.take:
                self._step(plan.take)
            self._publish()
            self._send_frames()
            timeout_s = self._pause(plan)
        self._end_all("the verifier is shutting down")

    def _arrivals(self, timeout_s: float | None) -> list[InboxItem]:
        """What there is to take in; lanes first, so that a drafter's last words come before its end."""
        items = self.inbox.take(timeout_s, self._lanes.all)
        arrived = self._lanes.receive(monotonic_us(), waited=timeout_s != 0.0)
        self._outgoing.lost += [item for item in arrived if isinstance(item, PairDown)]
        return [*arrived, *items]

    def _pause(self, plan: PacingPlan) -> float | None:
        if plan.take or self._lanes.has_lost:
            return 0.0
        return None if plan.wake_us is None else max(0.0, (plan.wake_us - monotonic_us()) / 1e6)

    def _send_frames(self) -> None:
        """Drafters hear of a step as soon as it is over, on lanes here and now."""
        self._lanes.send(self._outgoing.frames)
        if self._outgoing.frames:
            self._flush()

    def _flush(self) -> None:
        self._lanes.send(self._outgoing.frames)
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, Outgoing()
            self._send(outgoing)

    def _publish(self) -> None:
        self.snapshot = SchedulerSnapshot(
            num_sessions=len(self._sessions),
            num_drafter_sessions=sum(hosted.session.num_open_drafters for hosted in self._sessions.values()),
            num_free_blocks=self._engine.num_free_blocks,
            cost=self._loan.curves(self._connections)[0].points,
            num_steps=self._num_steps,
            num_lent_steps=self._loan.num_steps,
        )

    # --- what arrives -----------------------------------------------------------------------------------------------------

    def _take(self, item: InboxItem) -> None:
        match item:
            case FramesArrived():
                self._take_frames(item)
            case OpenAsked():
                self._open(item.answer)
            case CancelAsked():
                self._cancel(item)
            case PairUp():
                self._connections[item.drafter] = item.connection
                if item.lane is not None:
                    self._lanes.add(item.drafter, item.connection, item.lane)
                self._tell_all(DrafterJoined(item.drafter, monotonic_us()), item.drafter)
            case PairDown():
                self._lanes.drop(item.drafter, item.connection)
                if self._connections.get(item.drafter) == item.connection:
                    del self._connections[item.drafter]
                    self._tell_all(DrafterLost(item.drafter, item.reason, monotonic_us()), item.drafter)
            case Nudge():
                pass
            case StopAsked():
                self._stopping = True

    def _take_frames(self, message: FramesArrived) -> None:
        if self._connections.get(message.drafter) != message.connection:
            return
        now_us = message.arrived_us or monotonic_us()
        for frame in message.frames:
            hosted = self._sessions.get(-1 if frame.session is None else frame.session)
            if hosted is None:
                continue
            if isinstance(frame, BadFrame):
                self._apply(hosted, DrafterFrameMalformed(message.drafter, frame.incarnation, str(frame.error), now_us))
            else:
                self._apply(hosted, DrafterFrameArrived(message.drafter, frame, now_us))

    def _tell_all(self, event: DrafterJoined | DrafterLost, drafter: str) -> None:
        for hosted in list(self._sessions.values()):
            if hosted.may_use(drafter):
                self._apply(hosted, event)

    def _open(self, answer: AnswerStream) -> None:
        try:
            hosted = self._admit(answer)
        except OutriderError as error:
            self._outgoing.answer(answer, SessionEnded(FinishReason.FAILED, DraftStatistics(), error))
            return
        self._outgoing.answer(answer, SessionStarted(self._engine.identity.fingerprint))
        for drafter in self._connections:
            if hosted.may_use(drafter):
                self._apply(hosted, DrafterJoined(drafter, monotonic_us()))

    def _admit(self, answer: AnswerStream) -> HostedSession:
        """Reserve everything or raise with nothing held."""
        if self._stopping:
            raise Unavailable("the verifier is shutting down")
        if len(self._sessions) >= self._max_sessions:
            raise Overloaded(f"{self._max_sessions} sessions are live, as many as this verifier takes")
        policy = self._planner.policy(answer.request.pacing)
        self._last_handle = self._last_handle % MAX_HANDLE + 1
        hosted = host(answer, self._last_handle, policy, self._engine, self._acceptance, monotonic_us(), self._lookup_priors)
        self._sessions[hosted.handle] = hosted
        answer.handle = hosted.handle
        return hosted

    def _cancel(self, item: CancelAsked) -> None:
        hosted = self._sessions.get(item.answer.handle)
        if hosted is not None and hosted.answer is item.answer:
            hosted.error = item.error
            self._apply(hosted, CancelRequested(item.detail, monotonic_us()))

    # --- plan, step, apply ------------------------------------------------------------------------------------------------

    def _plan(self) -> PacingPlan:
        now_us = monotonic_us()
        ready = [hosted for hosted in self._sessions.values() if hosted.session.is_ready and not hosted.is_left_out(now_us)]
        ready = self._without_waiting(ready, now_us)
        views = [(hosted.answer.request.pacing, hosted.session.view(now_us)) for hosted in ready]
        if not views:
            return PacingPlan((), None, "idle")
        self._drafting = any(view.is_drafting for _, view in views)
        cost, cost_drafting = self._loan.curves(self._connections)
        return self._planner.plan(views, cost, self._engine.limits.max_rows, now_us, cost_drafting=cost_drafting)

    def _without_waiting(self, ready: list[HostedSession], now_us: int) -> list[HostedSession]:
        """Without those whose prompt another session is reading for them."""
        limits = self._engine.limits
        if not limits.prefix_cache:
            return ready
        late = waiting({hosted.handle: hosted.prefill() for hosted in ready if hosted.session.is_reading}, limits.block_len)
        taken: list[HostedSession] = []
        for hosted in ready:
            if hosted.handle in late:
                hosted.await_prefix()
            else:
                hosted.take_prefix(self._engine, now_us)
                taken.append(hosted)
        return taken

    def _step(self, take: tuple[SessionPlan, ...]) -> None:
        now_us = monotonic_us()
        hosted = [self._sessions[entry.session] for entry in take]
        rows: list[SequenceRows] = []
        for one, entry in zip(hosted, take, strict=True):
            for effect in self._apply(one, RoundPlanned(entry.max_feed, entry.max_nodes, now_us, entry.from_lookup)):
                rows.append(one.rows(effect))
        if not rows:
            return
        self._verify(rows)

    def _verify(self, rows: list[SequenceRows]) -> None:
        """One step of the engine and what follows from it.

        A step that raises has changed nothing (engine/contract.py), so its sessions are stepped once more, one by one: a fault that
        belongs to one of them ends that one. A fault of the whole step (memory for so many rows) ends none; one of the engine ends each.
        """
        try:
            plan = self._step_plan(rows)
            result = self._engine.step(plan)
        except Exception as error:  # noqa: BLE001 -- whatever the model raised costs the sessions it was raised for only
            _LOG.exception("a step of %d sessions failed", len(rows))
            if len(rows) == 1:
                self._fail(self._sessions[rows[0].sequence], f"the target's step failed: {error}")
                return
            for row in rows:
                self._verify([row])
            return
        self._num_steps += 1
        self._observe_cost(plan, result)
        for row, one_result in zip(rows, result.results, strict=True):
            self._verified(self._sessions[row.sequence], one_result, result.step_us)

    def _step_plan(self, rows: list[SequenceRows]) -> StepPlan:
        num_rows = sum(len(one.committed) + len(one.tokens) for one in rows)
        sessions = (hosted.session for hosted in self._sessions.values())
        return StepPlan(tuple(rows), self._loan.threads(num_rows, sessions, self._connections, reads=_reads(rows)))

    def _observe_cost(self, plan: StepPlan, result: StepResult) -> None:
        self._loan.count(plan.lent_threads)
        if not _reads(plan.sequences):
            self._loan.observe(result.num_rows, result.step_us, plan.lent_threads, drafting=self._drafting)

    def _verified(self, hosted: HostedSession, result: SequenceResult, step_us: int) -> None:
        hosted.logprobs = result.logprobs
        self._apply(hosted, RoundVerified(result.verdict, step_us, monotonic_us()))

    def _apply(self, hosted: HostedSession, event: VerifierEvent) -> list[Verify]:
        """Run one event through a session and carry out what it wants, but for Verify, which is returned."""
        effects: list[VerifierEffect] = []
        try:
            effects = hosted.step(event)
            return self._carry_out(hosted, effects)
        except Exception as error:  # noqa: BLE001 -- a bug in one session costs that session only
            _LOG.exception("session %s failed", hosted.answer.request.spec.request_id)
            # An answer that had just ended has told its drafters in the effects that were not reached; a second Close does no harm.
            self._fail(hosted, f"the session failed: {error}", [effect for effect in effects if _is_close(effect)])
            return []

    def _carry_out(self, hosted: HostedSession, effects: list[VerifierEffect]) -> list[Verify]:
        verify: list[Verify] = []
        for effect in effects:
            if isinstance(effect, Verify):
                verify.append(effect)
            elif isinstance(effect, Finish):
                self._end(hosted, effect)
            else:
                hosted.carry_out(effect, self._engine, self._outgoing, self._connections)
        return verify

    # --- the end of a session ---------------------------------------------------------------------------------------------

    def _end(self, hosted: HostedSession, finish: Finish) -> None:
        """Free everything of the session, and say so at the end of this turn."""
        if self._sessions.pop(hosted.handle, None) is None:
            return
        statistics = hosted.session.statistics
        if statistics.num_drafted - statistics.num_looked_up >= MIN_DRAFTED_TO_LEARN:
            self._acceptance += ACCEPTANCE_MEMORY * (statistics.acceptance - self._acceptance)
        self._lookup_priors = hosted.session.lookup_priors(self._lookup_priors)
        error = hosted.error
        if error is None and finish.reason is FinishReason.FAILED:
            error = RemoteFailure(finish.detail)
        self._outgoing.answer(hosted.answer, SessionEnded(finish.reason, hosted.totals(), error))
        self._engine.close(hosted.handle)  # last: whatever it raises, the client has its end

    def _fail(self, hosted: HostedSession, detail: str, closing: Sequence[VerifierEffect] = ()) -> None:
        """End one session after an error that is not its client's. closing: what its drafters are still to be told."""
        for effect in (*closing, *hosted.session.fail(detail)):
            if not isinstance(effect, Finish | Verify):
                hosted.carry_out(effect, self._engine, self._outgoing, self._connections)
        self._end(hosted, Finish(FinishReason.FAILED, detail))

    def _end_all(self, detail: str) -> None:
        for hosted in list(self._sessions.values()):
            hosted.error = Unavailable(detail)
            self._fail(hosted, detail)
        self._publish()
        self._flush()


def _reads(rows: Sequence[SequenceRows]) -> bool:
    """Whether any of them is more than the newest committed token and guesses."""
    return any(len(one.committed) != 1 for one in rows)


def _is_close(effect: VerifierEffect) -> bool:
    return isinstance(effect, SendToDrafter) and isinstance(effect.frame, Close)
