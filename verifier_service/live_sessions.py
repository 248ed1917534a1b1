"""The sessions of the engine thread: admitted, told of events, and ended with everything of theirs freed.

Lives on the engine thread. What sessions want to say waits in `outgoing` for the end of the turn. An error of one session ends that session
only. Must not know threads, steps or policies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence

from outrider.engine.contract import Engine
from outrider.engine.prefill_order import waiting
from outrider.errors import OutriderError, Overloaded, Unavailable
from outrider.rpc.convert.link import BadFrame
from outrider.rpc.status import RemoteFailure
from outrider.rpc.turnover import Turnover
from outrider.session.events import (
    CancelRequested,
    DrafterFrameArrived,
    DrafterFrameMalformed,
    DrafterGivenUp,
    DrafterJoined,
    DrafterLost,
    Finish,
    FinishReason,
    RoundVerified,
    SendToDrafter,
    VerifierEffect,
    VerifierEvent,
    Verify,
)
from outrider.session.opening import VerifierSpec
from outrider.session.pacing.contract import CostCurve
from outrider.store.shared_ngrams import SharedNgrams
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.types.frames import Close, Refused
from outrider.types.statistics import DraftStatistics
from verifier_service.acceptance_floor import MIN_JUDGED, AcceptanceFloor, Verdict
from verifier_service.answer import AnswerStream, SessionEnded, SessionStarted
from verifier_service.answer_room import AnswerRoom
from verifier_service.answer_sharing import AnswerSharing
from verifier_service.clock import monotonic_us
from verifier_service.drafter_counters import DrafterCounters
from verifier_service.drafter_record import DrafterRecord
from verifier_service.hosted import HostedSession, host
from verifier_service.inbox import CancelAsked, FramesArrived, PairDown, PairUp
from verifier_service.kept_places import KeptPlaces, goes_on
from verifier_service.outgoing import Outgoing
from verifier_service.policy_key import PolicyKey
from verifier_service.prompt_kinds import PromptKinds
from verifier_service.queue_time import QueueTime
from verifier_service.refusal_log import RefusalLog
from verifier_service.resident import RESIDENT
from verifier_service.step_planner import StepPlanner

_LOG = logging.getLogger(__name__)
MAX_HANDLE = (1 << 32) - 1


class LiveSessions:
    """By handle. kinds: from the sessions that ended, where the next one's estimates begin. record: how often each drafter was
    right; one that hardly ever is gets no new sessions (floor), and is given up by those that run and have no use for it. outgoing: what
    waits to be said. cost: of steps of so many sessions, as now measured. queue: how long a new session waits.
    metrics: what drafters did is counted into.
    shared: other answers, for guesses."""

    def __init__(
        self,
        engine: Engine,
        planner: StepPlanner,
        max_sessions: int,
        cost: Callable[[int], CostCurve],
        queue: QueueTime | None = None,
        metrics: LocalMetrics | None = None,
        shared: SharedNgrams | None = None,
    ) -> None:
        self.kinds = PromptKinds()
        self.record = DrafterRecord()
        self._floor = AcceptanceFloor()
        self._refusals = RefusalLog()
        self._kept = KeptPlaces()
        metrics = metrics or LocalMetrics()
        self._room = AnswerRoom(engine, metrics)
        self._counters = DrafterCounters(metrics)
        self._sharing = AnswerSharing(shared, engine.identity, metrics)
        self.outgoing = Outgoing()
        self.queue = queue or QueueTime(engine.limits.max_rows)
        self._cost = cost
        self._turnover = Turnover()
        self._engine = engine
        self._planner = planner
        self._max_sessions = max_sessions
        self._sessions: dict[int, HostedSession] = {}
        self._ended: list[tuple[HostedSession, Finish]] = []  # said to be, with everything still held
        self._connections: dict[str, int] = {}  # streams that are up: endpoint -> connection
        self._last_handle = 0
        self.num_frames = 0  # of drafters, taken in so far

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[HostedSession]:
        return iter(self._sessions.values())

    def __contains__(self, handle: int) -> bool:
        return handle in self._sessions

    def __getitem__(self, handle: int) -> HostedSession:
        return self._sessions[handle]

    def take_outgoing(self) -> Outgoing:
        """Everything that waits to be said; nothing waits then."""
        outgoing, self.outgoing = self.outgoing, Outgoing()
        return outgoing

    # --- drafters ---------------------------------------------------------------------------------------------------------

    @property
    def drafters(self) -> Collection[str]:
        """Endpoints of those whose stream is up."""
        return self._connections.keys()

    def connect(self, up: PairUp) -> None:
        """A drafter's stream is up."""
        self._connections[up.drafter] = up.connection
        if self.record.met(up.drafter, up.weights, monotonic_us()):
            _LOG.info("drafter %s is another model than before: what was known of it is forgotten", up.drafter)
            self._floor.forget(up.drafter)
        self._counters.met(up.drafter)
        self._tell_all(_joined(up.drafter), up.drafter)

    def disconnect(self, down: PairDown) -> None:
        """A drafter's stream has ended; that of an earlier connection is no news."""
        if self._connections.get(down.drafter) == down.connection:
            del self._connections[down.drafter]
            self._tell_all(DrafterLost(down.drafter, down.reason, monotonic_us()), down.drafter)

    def take_frames(self, message: FramesArrived) -> None:
        """Frames of a drafter, each to its session; those of an old connection or of nobody are dropped."""
        if self._connections.get(message.drafter) != message.connection:
            return
        now_us = message.arrived_us or monotonic_us()
        self.num_frames += len(message.frames)
        for frame in message.frames:
            hosted = self._sessions.get(-1 if frame.session is None else frame.session)
            if hosted is None:
                continue
            if isinstance(frame, Refused):
                self._refusals.note(message.drafter, frame.reason)
            if isinstance(frame, BadFrame):
                self.apply(hosted, DrafterFrameMalformed(message.drafter, frame.incarnation, str(frame.error), now_us))
            else:
                self.apply(hosted, DrafterFrameArrived(message.drafter, frame, now_us))

    def _tell_all(self, event: DrafterJoined | DrafterLost, drafter: str) -> None:
        for hosted in list(self._sessions.values()):
            if hosted.may_use(drafter) if isinstance(event, DrafterLost) else self._may_join(drafter, hosted):
                self.apply(hosted, event)

    def _may_join(self, drafter: str, hosted: HostedSession) -> bool:
        """Whether a session is told of a drafter: it wants it, and the drafter is not left out."""
        if not hosted.may_use(drafter) or not hosted.session.may_draft or drafter in hosted.portions.given_up:
            return False
        return self._floor.admits(drafter, hosted.handle, monotonic_us())

    # --- the beginning of a session ---------------------------------------------------------------------------------------

    def open(self, answer: AnswerStream, *, stopping: bool) -> None:
        """Admit a session and tell its drafters, or end its stream with the reason. stopping: nobody is admitted any more."""
        self.free_ended()  # whoever ended in this very turn
        try:
            hosted = self._admit(answer, stopping)
        except OutriderError as error:
            self.outgoing.answer(answer, SessionEnded(FinishReason.FAILED, DraftStatistics(), error))
            return
        self.outgoing.answer(answer, SessionStarted(self._engine.identity.fingerprint))
        for drafter in self._connections:
            if self._may_join(drafter, hosted):
                self.apply(hosted, _joined(drafter))

    def _admit(self, answer: AnswerStream, stopping: bool) -> HostedSession:
        """Reserve everything or raise with nothing held."""
        if stopping:
            raise Unavailable("the verifier is shutting down")
        spec = answer.request.spec
        self._check_room(spec)
        self.queue.check(self.queue_us())
        policy = self._planner.policy(PolicyKey.of(answer.request.pacing, spec))
        self._last_handle = self._last_handle % MAX_HANDLE + 1
        try:
            texts, kind = self._sharing.texts(spec), self.kinds.of(spec)
            hosted = host(answer, self._last_handle, policy, self._engine, kind, monotonic_us(), texts)
            self._leave_room_to_grow(hosted)
        except Overloaded as error:  # no KV blocks: sessions that end give theirs back
            if goes_on(spec):
                self._kept.keep(spec.request_id, monotonic_us(), lacks_blocks=True)
            error.retry_after_s = self._turnover.retry_after_s(len(self._sessions))
            raise
        self._kept.found(spec.request_id)
        self._sessions[hosted.handle] = hosted
        answer.handle = hosted.handle
        return hosted

    def _leave_room_to_grow(self, hosted: HostedSession) -> None:
        """Raises Overloaded, with nothing held, where those that are there would want its blocks at once."""
        if self._room.is_short_of(self):
            self._engine.close(hosted.handle)
            raise Overloaded(f"{self._engine.num_free_blocks} KV blocks are free, and answers under way will grow into them; retry later")

    def make_room(self) -> None:
        """Before a step is planned: KV blocks for what it may add to each text."""
        if self._room.is_wanted:
            self.free_ended()
            self._room.make(self._sessions, monotonic_us())

    def _check_room(self, spec: VerifierSpec) -> None:
        """Raises Overloaded where there is none for this one."""
        num_live, now_us = len(self._sessions), monotonic_us()
        if num_waiting := self._room.num_waiting(self._sessions):
            if goes_on(spec):
                self._kept.keep(spec.request_id, now_us, lacks_blocks=True)
            raise Overloaded(f"{num_waiting} answers under way wait for KV blocks", self._turnover.retry_after_s(num_live))
        num_kept = 0 if goes_on(spec) else self._kept.num(now_us)
        if num_live + num_kept < self._max_sessions and not (num_kept and self._kept.needs_blocks):
            return
        if goes_on(spec):
            self._kept.keep(spec.request_id, now_us, lacks_blocks=False)
        held = f"{num_live} sessions are live, of {self._max_sessions} that this verifier takes"
        kept = f", and answers that lost their verifier have room kept for them ({num_kept})" if num_kept else ""
        raise Overloaded(f"{held}{kept}", self._turnover.retry_after_s(num_live))

    def queue_us(self) -> float:
        """What a session admitted now would wait for its first step. Prompts that wait for another one's blocks are read with it."""
        reading = [hosted for hosted in self if hosted.session.is_reading]
        if not reading:
            return 0.0
        limits, late = self._engine.limits, set[int]()
        if limits.prefix_cache and len(reading) > 1:
            late = waiting({hosted.handle: hosted.prefill() for hosted in reading}, limits.block_len)
        num_unread = sum(hosted.num_unread for hosted in reading if hosted.handle not in late)
        return self.queue.wait_us(num_unread, len(self._sessions) - len(reading), self._cost(max(1, len(self._sessions))))

    # --- events and effects -----------------------------------------------------------------------------------------------

    def apply(self, hosted: HostedSession, event: VerifierEvent) -> list[Verify]:
        """Run one event through a session and carry out what it wants, but for Verify, which is returned."""
        effects: list[VerifierEffect] = []
        try:
            effects = hosted.session.step(event)
            return self._carry_out(hosted, effects)
        except Exception as error:  # noqa: BLE001 -- a bug in one session costs that session only
            _LOG.exception("session %s failed", hosted.answer.request.spec.request_id)
            # An answer that had just ended has told its drafters in the effects that were not reached; a second Close does no harm.
            self.fail(hosted, f"the session failed: {error}", [effect for effect in effects if _is_close(effect)])
            return []

    def apply_round(self, hosted: HostedSession, event: RoundVerified) -> None:
        """As `apply`; now and then the session's drafters are judged too, and those that are of no use to it are given up."""
        self.apply(hosted, event)
        if hosted.is_cramped:
            self._room.want(hosted)
        if not hosted.portions.is_due() or hosted.handle not in self._sessions:
            return
        tallies = hosted.session.drafter_tallies()
        for drafter in hosted.portions.useless(tallies):
            tally = tallies[drafter]
            reason = f"{tally.num_right} of its {tally.num_judged} guesses were right, of the last {MIN_JUDGED} less than one in fifty"
            _LOG.info("session %s gives drafter %s up: %s", hosted.answer.request.spec.request_id, drafter, reason)
            now_us = monotonic_us()
            self.apply(hosted, DrafterGivenUp(drafter, reason, now_us))
            if self.record.is_of_now(drafter, hosted.opened_us):
                self._report(self._floor.given_up(hosted.handle, drafter, tally, now_us))

    def _carry_out(self, hosted: HostedSession, effects: list[VerifierEffect]) -> list[Verify]:
        verify: list[Verify] = []
        for effect in effects:
            if isinstance(effect, Verify):
                verify.append(effect)
            elif isinstance(effect, Finish):
                self._end(hosted, effect)
            else:
                hosted.carry_out(effect, self._engine, self.outgoing, self._connections)
        return verify

    # --- the end of a session ---------------------------------------------------------------------------------------------

    def cancel(self, item: CancelAsked) -> None:
        """End a session that somebody gave up, if it is still there."""
        hosted = self._sessions.get(item.answer.handle)
        if hosted is not None and hosted.answer is item.answer:
            hosted.error = item.error
            self.apply(hosted, CancelRequested(item.detail, monotonic_us()))

    def fail(self, hosted: HostedSession, detail: str, closing: Sequence[VerifierEffect] = ()) -> None:
        """End one session after an error that is not its client's. closing: what its drafters are still to be told."""
        for effect in (*closing, *hosted.session.fail(detail)):
            if not isinstance(effect, Finish | Verify):
                hosted.carry_out(effect, self._engine, self.outgoing, self._connections)
        self._end(hosted, Finish(FinishReason.FAILED, detail))

    def end_all(self, detail: str) -> None:
        """End every session: the service cannot go on."""
        for hosted in list(self._sessions.values()):
            hosted.error = Unavailable(detail)
            self.fail(hosted, detail)

    def _end(self, hosted: HostedSession, finish: Finish) -> None:
        """Say so first; `free_ended` does the rest."""
        if self._sessions.pop(hosted.handle, None) is None:
            return
        self._room.forget(hosted.handle)
        error = hosted.error
        if error is None and finish.reason is FinishReason.FAILED:
            error = RemoteFailure(finish.detail)
        self.outgoing.answer(hosted.answer, SessionEnded(finish.reason, hosted.totals(), error))
        self._ended.append((hosted, finish))

    @property
    def has_ended(self) -> bool:
        """Whether anything is held for sessions that are over; may be read from any thread."""
        return bool(self._ended)

    def free_ended(self) -> None:
        """Free what is held for sessions whose end has been said, and keep what they taught. Before anything else is admitted."""
        while self._ended:
            hosted, finish = self._ended[0]
            try:
                self._learn(hosted, finish)
            except Exception:  # noqa: BLE001 -- a bug in one session costs what it would have taught
                _LOG.exception("what session %s taught is lost", hosted.answer.request.spec.request_id)
            try:
                if not hosted.is_parked:
                    self._engine.close(hosted.handle)
            except Exception:  # noqa: BLE001 -- its client has the end, and others go on
                _LOG.exception("session %s could not be freed", hosted.answer.request.spec.request_id)
            del self._ended[0]

    def _learn(self, hosted: HostedSession, finish: Finish) -> None:
        self.kinds.ended(hosted.session)
        self._sharing.ended(hosted.session, finish)
        self._turnover.observe((monotonic_us() - hosted.opened_us) / 1e6)
        usable = [drafter for drafter in self._connections if hosted.may_use(drafter)]
        if all(self.record.is_of_now(drafter, hosted.opened_us) for drafter in usable):
            self.record.count(usable, hosted.session.statistics)
        self._judge_drafters(hosted)

    def _judge_drafters(self, hosted: HostedSession) -> None:
        tallies = hosted.session.drafter_tallies()
        for drafter, tally in tallies.items():
            self._counters.ended(drafter, tally)
        told, opened_us = hosted.portions.given_up, hosted.opened_us
        uncounted = {name: tally for name, tally in tallies.items() if name not in told and self.record.is_of_now(name, opened_us)}
        self._report(self._floor.end(hosted.handle, uncounted, monotonic_us()))

    def _report(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            numbers = verdict.num_right, verdict.num_judged
            if not verdict.pause_us:
                _LOG.info("drafter %s is used again: %d of its last %d judged guesses were right", verdict.drafter, *numbers)
                continue
            self._counters.dropped(verdict.drafter)
            pause_s = verdict.pause_us / 1e6
            reason = "drafter %s is left out of new sessions for %g s: only %d of its last %d judged guesses were right"
            _LOG.warning(reason, verdict.drafter, pause_s, *numbers)


def _is_close(effect: VerifierEffect) -> bool:
    return isinstance(effect, SendToDrafter) and isinstance(effect.frame, Close)


def _joined(drafter: str) -> DrafterJoined:
    return DrafterJoined(drafter, monotonic_us(), takes_turns=drafter == RESIDENT)
