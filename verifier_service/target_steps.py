"""Steps of the target: who takes part, what goes through the engine, and what the sessions make of it.

Lives on the engine thread. Knows live sessions, the planner, what steps cost and what they are lent. Must not know threads, streams or how
sessions begin.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from outrider.engine.contract import Engine
from outrider.engine.prefill_order import waiting
from outrider.session.events import RoundPlanned, RoundVerified
from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionPlan
from outrider.session.verifier import VerifierSession
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label
from outrider.types.step import SequenceResult, SequenceRows, StepPlan
from verifier_service.answer import AnswerStream
from verifier_service.clock import monotonic_us
from verifier_service.core_loan import CoreLoan
from verifier_service.guess_handling import GuessHandling
from verifier_service.hosted import HostedSession
from verifier_service.live_sessions import LiveSessions
from verifier_service.step_planner import StepPlanner

_LOG = logging.getLogger(__name__)
LEAST_STAYING = 0.75  # of the sessions that a plan took, for it to be repeated without those that ended


class _Turn(NamedTuple):
    """From a step on: sessions that were in it, sessions there were, frames of drafters taken in by then, and when it was over."""

    num_sessions: int
    num_live: int
    num_frames: int
    since_us: int


class TargetSteps:
    """`plan`, then `take` what it says. num_steps: that the engine made; step_us: what they took in all. loan: what steps cost, and on
    whose cores. metrics: how long samples waited for their first step. rested_us: added to by who waits, or lets a drafter of this thread
    work, between two steps."""

    def __init__(self, engine: Engine, loan: CoreLoan, sessions: LiveSessions, planner: StepPlanner, metrics: LocalMetrics) -> None:
        self.num_steps = 0
        self.step_us = 0
        self._metrics = metrics
        self._model = {Label.MODEL: Path(engine.identity.model).name}
        self.loan = loan
        self._engine = engine
        self._sessions = sessions
        self._planner = planner
        self._drafting = False  # whether drafters may be at work during the step that was planned, for a session that it could take
        self._left_out = False  # whether there are other sessions
        self._num_guessing = 0  # of the sessions that were planned, those with guesses or drafters at work
        self._handling = GuessHandling()
        self._turn: _Turn | None = None  # since the newest step; None = it read, or was of one session
        self.rested_us = 0  # since then: waiting, or a drafter of this thread at work
        self._newest = PacingPlan((), None, "idle")
        self._num_repeated = 0  # steps that the newest plan was repeated for
        self._num_taken = 0  # sessions that it took, of which some may have ended since

    @property
    def cost(self) -> CostCurve:
        """What steps of one session cost while drafters rest."""
        return self.loan.curves()[0]

    def plan(self) -> PacingPlan:
        """Who takes part in a step now, or until when to wait."""
        now_us = monotonic_us()
        if self._num_repeated < self._newest.repeats and self._still_holds(now_us):
            self._num_repeated += 1
            self._num_guessing = 0
            return self._newest
        self._newest, self._num_repeated = self._asked(now_us), 0
        self._num_taken = len(self._newest.take)
        return self._newest

    def _still_holds(self, now_us: int) -> bool:
        """Whether the newest plan, which took everybody, finds everything as it was but for some more tokens of each session, or the end of
        a few. Of who leaves, nothing follows for those who stay as long as they are about as many."""
        num_left = len(self._sessions)
        if num_left != len(self._newest.take):
            staying = tuple(part for part in self._newest.take if part.session in self._sessions)
            if not self._num_taken * LEAST_STAYING <= num_left == len(staying):
                return False
            self._newest = replace(self._newest, take=staying)
        return all(self._grows_quietly(hosted) and not hosted.is_left_out(now_us) for hosted in self._sessions)

    def _grows_quietly(self, hosted: HostedSession) -> bool:
        session = hosted.session
        return session.grows_quietly and not self._newest.is_upset_by(session.lookup_promise, session.lookup_rights)

    def _asked(self, now_us: int) -> PacingPlan:
        ready, reads = list[HostedSession](), False
        for hosted in self._sessions:
            if hosted.session.is_ready and not hosted.is_left_out(now_us):
                ready.append(hosted)
                reads = reads or hosted.session.is_reading
        if reads:
            ready = self._without_waiting(ready, now_us)
        if not ready:
            return PacingPlan((), None, "idle")
        views = [(hosted.policy, hosted.session.view(now_us)) for hosted in ready]
        num_decoding, self._drafting, self._num_guessing = 0, False, 0
        for _, view in views:
            num_decoding += view.num_uncached == 1
            self._drafting = self._drafting or view.is_drafting
            self._num_guessing += view.is_drafting or view.depth > 0
        self._left_out = len(views) < len(self._sessions)
        cost, cost_drafting = self.loan.curves(len(views))
        prefill = self._sessions.queue.price.bound(num_decoding, cost) if num_decoding < len(views) else None
        most = self._engine.limits.max_rows
        begin_ns = time.perf_counter_ns()
        plan = self._planner.plan(
            views, cost, most, now_us,
            cost_drafting=cost_drafting, prefill=prefill, cost_ahead=self.loan.ahead, guess_us=self._handling.us,
            plain_ahead=self.loan.plain_ahead,
        )  # fmt: skip
        own_ns = (time.perf_counter_ns() - begin_ns) // len(ready)
        for hosted in ready:
            hosted.session.statistics.plan_ns += own_ns
        return plan

    def _without_waiting(self, ready: list[HostedSession], now_us: int) -> list[HostedSession]:
        """Without those whose prompt another session is reading for them."""
        limits = self._engine.limits
        if not limits.prefix_cache:
            return ready
        reading = {hosted.handle: hosted.prefill() for hosted in ready if hosted.session.is_reading}
        late = waiting(reading, limits.block_len)
        taken: list[HostedSession] = []
        for hosted in ready:
            if hosted.handle in late:
                hosted.await_prefix()
            else:
                hosted.take_prefix(self._engine, now_us)
                taken.append(hosted)
        return taken

    def take(self, plans: tuple[SessionPlan, ...]) -> None:
        """One step of these sessions."""
        now_us = monotonic_us()
        hosted = [self._sessions[entry.session] for entry in plans]
        rows: list[SequenceRows] = []
        for one, entry in zip(hosted, plans, strict=True):
            if not one.answer.has_begun:
                self._begin(one.answer, now_us)
            planned = RoundPlanned(entry.max_feed, entry.max_nodes, now_us, entry.from_lookup, entry.side_nodes)
            for effect in self._sessions.apply(one, planned):
                rows.append(one.rows(effect))
        if rows:
            self._verify(rows)

    def _begin(self, answer: AnswerStream, now_us: int) -> None:
        """A sample's first step: its time in the queue is over."""
        answer.has_begun = True
        self._metrics.observe(names.QUEUE_SECONDS, self._model, max(0, now_us - answer.asked_us) / 1e6)

    def _verify(self, rows: list[SequenceRows]) -> None:
        """One step of the engine and what follows from it.

        A step that raises has changed nothing (engine/contract.py), so its sessions are stepped once more, one by one: a fault that
        belongs to one of them ends that one. A fault of the whole step (memory for so many rows) ends none; one of the engine ends each.
        """
        num_read = 0
        for one in rows:
            num_read += len(one.committed) + len(one.tokens) if len(one.committed) != 1 else 0
        reads = num_read > 0
        self._end_turn(reads=reads)
        lent = self._lent_threads(rows, reads=reads) if self.loan.is_possible else 0
        try:
            result = self._engine.step(StepPlan(tuple(rows), lent))
        except Exception as error:  # noqa: BLE001 -- whatever the model raised costs the sessions it was raised for only
            _LOG.exception("a step of %d sessions failed", len(rows))
            if len(rows) == 1:
                self._sessions.fail(self._sessions[rows[0].sequence], f"the target's step failed: {error}")
                return
            for row in rows:
                self._verify([row])
            return
        self.num_steps += 1
        self.step_us += result.step_us
        self._turn = None if reads or len(rows) == 1 else _Turn(len(rows), len(self._sessions), self._sessions.num_frames, monotonic_us())
        self.loan.count(lent)
        if reads:
            cost = self.loan.curves(len(rows))[0]
            self._sessions.queue.observe(result.num_rows, result.step_us, cost)
            self._sessions.queue.price.observe(num_read, result.num_rows - num_read, result.step_us, cost)
        else:
            how = {"drafting": self._drafting, "was_ahead": result.was_ahead}
            self.loan.observe(result.num_rows, result.step_us, lent, **how, num_sequences=len(rows))
        for row, one_result in zip(rows, result.results, strict=True):
            self._verified(self._sessions[row.sequence], one_result, result.step_us)

    def _end_turn(self, *, reads: bool) -> None:
        """A step begins: what was done since the one before is told, if neither reads and no session came or went."""
        turn, self._turn, rested_us, self.rested_us = self._turn, None, self.rested_us, 0
        if turn is None or reads or turn.num_live != len(self._sessions):
            return
        num_frames = self._sessions.num_frames - turn.num_frames
        if num_frames or not (self._num_repeated or self._num_guessing):  # turns with guesses are planned: a plan's time is no guess's
            self._handling.observe(turn.num_sessions, num_frames, max(0, monotonic_us() - turn.since_us - rested_us))

    def _lent_threads(self, rows: list[SequenceRows], *, reads: bool) -> int:
        sessions: Iterable[VerifierSession] = ()
        if self.loan.concerns_drafters and (self._drafting or self._left_out):
            sessions = (hosted.session for hosted in self._sessions)
        return self.loan.threads(sum(len(one.committed) + len(one.tokens) for one in rows), sessions, reads=reads)

    def make_way(self, drafters: Iterable[str]) -> None:
        """Frames are about to go to these drafters, who may want cores that were lent."""
        self.loan.give_back(self._engine, drafters)

    def _verified(self, hosted: HostedSession, result: SequenceResult, step_us: int) -> None:
        hosted.logprobs = result.logprobs
        self._sessions.apply_round(hosted, RoundVerified(result.verdict, step_us, monotonic_us()))
