"""Steps of the target: who takes part, what goes through the engine, and what the sessions make of it.

Lives on the engine thread. Knows live sessions, the planner and what steps cost. Must not know threads, streams or how sessions begin.
"""

from __future__ import annotations

import logging

from outrider.engine.contract import Engine
from outrider.engine.prefill_order import waiting
from outrider.session.events import RoundPlanned, RoundVerified
from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionPlan
from outrider.types.step import SequenceResult, SequenceRows, StepPlan, StepResult
from verifier_service.clock import monotonic_us
from verifier_service.cost_model import StepCosts
from verifier_service.hosted import HostedSession
from verifier_service.live_sessions import LiveSessions
from verifier_service.step_planner import StepPlanner

_LOG = logging.getLogger(__name__)


class TargetSteps:
    """`plan`, then `take` what it says. num_steps: that the engine made."""

    def __init__(self, engine: Engine, cost: StepCosts, sessions: LiveSessions, planner: StepPlanner) -> None:
        self.num_steps = 0
        self._engine = engine
        self._cost = cost
        self._sessions = sessions
        self._planner = planner
        self._drafting = False  # whether drafters may be at work during the step that was planned

    @property
    def cost(self) -> CostCurve:
        """What steps cost while drafters rest."""
        return self._cost.alone.curve()

    def plan(self) -> PacingPlan:
        """Who takes part in a step now, or until when to wait."""
        now_us = monotonic_us()
        ready = [hosted for hosted in self._sessions if hosted.session.is_ready and not hosted.is_left_out(now_us)]
        ready = self._without_waiting(ready, now_us)
        if not ready:
            return PacingPlan((), None, "idle")
        views = [(hosted.answer.request.pacing, hosted.session.view(now_us)) for hosted in ready]
        self._drafting = any(view.is_drafting for _, view in views)
        return self._planner.plan(views, self.cost, self._engine.limits.max_rows, now_us, cost_drafting=self._cost.drafting.curve())

    def _without_waiting(self, ready: list[HostedSession], now_us: int) -> list[HostedSession]:
        """Without those whose prompt another session is reading for them."""
        reading = {hosted.handle: hosted.prefill() for hosted in ready if hosted.session.is_reading}
        limits = self._engine.limits
        if not reading or not limits.prefix_cache:
            return ready
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
            for effect in self._sessions.apply(one, RoundPlanned(entry.max_feed, entry.max_nodes, now_us, entry.from_lookup)):
                rows.append(one.rows(effect))
        if rows:
            self._verify(rows)

    def _verify(self, rows: list[SequenceRows]) -> None:
        """One step of the engine and what follows from it.

        A step that raises has changed nothing (engine/contract.py), so its sessions are stepped once more, one by one: a fault that
        belongs to one of them ends that one. A fault of the whole step (memory for so many rows) ends none; one of the engine ends each.
        """
        try:
            result = self._engine.step(StepPlan(tuple(rows)))
        except Exception as error:  # noqa: BLE001 -- whatever the model raised costs the sessions it was raised for only
            _LOG.exception("a step of %d sessions failed", len(rows))
            if len(rows) == 1:
                self._sessions.fail(self._sessions[rows[0].sequence], f"the target's step failed: {error}")
                return
            for row in rows:
                self._verify([row])
            return
        self.num_steps += 1
        self._observe_cost(rows, result)
        for row, one_result in zip(rows, result.results, strict=True):
            self._verified(self._sessions[row.sequence], one_result, result.step_us)

    def _observe_cost(self, rows: list[SequenceRows], result: StepResult) -> None:
        if all(len(one.committed) == 1 for one in rows):
            self._cost.observe(result.num_rows, result.step_us, drafting=self._drafting)

    def _verified(self, hosted: HostedSession, result: SequenceResult, step_us: int) -> None:
        hosted.logprobs = result.logprobs
        self._sessions.apply(hosted, RoundVerified(result.verdict, step_us, monotonic_us()))
