"""The verifier's process: one thread that takes what has arrived, plans a step with the policy, runs it, applies it, then sends.

Keeps the order of work of verifier_service.scheduler: frames that arrive during a step are looked at after its verdicts; answers to them,
and the opening of a request, leave when the next step is planned; the cost curve is measured at start and refined by every step, and so is
what reading adds to one; a request's acceptance begins where earlier ones ended. Must not know drafters but by name, or how time passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outrider.session.answer_ends import NO_ENDS
from outrider.session.pacing.contract import CostCurve, Pacing, PacingPlan, StepView
from outrider.session.statistics import FIRST_PRIORS, SessionStatistics
from outrider.types.frames import DrafterFrame, VerifierFrame
from outrider_bench.simulation.drafter_side import SOURCE
from outrider_bench.simulation.outcome import Recorder
from outrider_bench.simulation.request import Request
from outrider_bench.simulation.text import Text
from outrider_bench.simulation.world import World
from verifier_service.cost_model import MEASURED_ROWS, CostModel, StepCosts
from verifier_service.prefill_price import PrefillPrice


class VerifierProcess:
    """All live requests, one policy. statistics: of every request there was."""

    def __init__(self, world: World, pacing: Pacing, recorder: Recorder) -> None:
        self.statistics: list[SessionStatistics] = []
        self.finished: list[Request] = []
        self._world = world
        self._pacing = pacing
        self._recorder = recorder
        self._cost = _measured(world.verify, world.max_rows)
        self._unlent = self._cost if world.unlent is None else _measured(world.unlent, world.max_rows)
        self._price = PrefillPrice(world.prefill_stretch)
        self._drafting = False
        self._requests: dict[int, Request] = {}
        self._taking_part: list[Request] = []
        self._num_rows = self._num_read = 0
        self._priors = FIRST_PRIORS
        self._ends = NO_ENDS
        self._unsent: list[tuple[str, VerifierFrame]] = []

    def open(self, handle: int, client: int, text: Text, now_us: int, drafters: Sequence[str] = (SOURCE,)) -> None:
        """A request arrives, and its drafters are told."""
        request = Request(handle, client, text, self._world, self._pacing, self._priors, now_us, drafters, self._ends)
        self._requests[handle] = request
        self.statistics.append(request.statistics)
        request.join(now_us)
        self._collect(request)

    def cancel(self, handle: int, now_us: int) -> None:
        """The request's client goes away, between two steps; nothing if it was answered just now."""
        request = self._requests.get(handle)
        if request is not None:
            request.cancel(now_us)
            self._collect(request)
            self._forget(request)

    def receive(self, frames: Sequence[tuple[int, DrafterFrame]], drafter: str = SOURCE) -> None:
        """Frames of a drafter with the time each arrived, handled between two steps."""
        for arrived_us, frame in frames:
            request = self._requests.get(frame.session)
            if request is not None:
                request.receive(frame, arrived_us, drafter)
                self._collect(request)

    def plan(self, now_us: int) -> PacingPlan:
        """Ask the policy."""
        views = tuple(request.view(now_us) for request in self._requests.values() if request.is_ready)
        if not views:
            return PacingPlan((), None, "idle")
        costs = _shared(self._cost.alone, self._cost, len(views)), _shared(self._unlent.drafting, self._unlent, len(views))
        num_decoding = sum(view.num_uncached == 1 for view in views)
        prefill = self._price.bound(num_decoding, costs[0]) if num_decoding < len(views) else None
        guess_us = float(self._world.guess_us)  # which it finds out in its first rounds
        view = StepView(views, costs[0], self._world.max_rows, now_us, costs[1], prefill, guess_us=guess_us)
        self._drafting = view.is_drafting
        return self._pacing.plan(view)

    def start(self, plan: PacingPlan, now_us: int) -> int:
        """Begin the step; returns its rows."""
        self._taking_part = [self._requests[entry.session] for entry in plan.take]
        rows = [self._requests[entry.session].plan(entry, now_us) for entry in plan.take]
        self._num_rows = sum(rows)
        self._num_read = sum(num for num, request in zip(rows, self._taking_part, strict=True) if not request.is_decoding)
        return self._num_rows

    def cost_of(self, num_rows: int) -> float:
        """Microseconds that the target takes for the step under way: on lent cores unless the drafter may be at work meanwhile."""
        world = self._world
        rows_us = (world.unlent if self._drafting and world.unlent is not None else world.verify).verify_us(num_rows)
        return rows_us + world.session_us * max(0, len(self._taking_part) - 1)

    @property
    def cost(self) -> CostCurve:
        """Of a step while drafters rest, as it knows it by now."""
        return self._cost.alone.curve()

    @property
    def num_sessions(self) -> int:
        """Live ones."""
        return len(self._requests)

    @property
    def num_unread(self) -> int:
        """Tokens of prompts yet to be read, those of sessions that wait for it included."""
        return sum(request.num_unread for request in self._requests.values())

    @property
    def overhead_us(self) -> int:
        """Of the step under way, beside the target."""
        return self._world.step_overhead_us + self._world.guess_us * sum(request.is_drafted for request in self._taking_part)

    def finish(self, busy_us: int, now_us: int) -> list[int]:
        """The step is over: busy_us after it began, of which the policy's overhead is none of the target's. Returns the handles of
        requests that got tokens."""
        step_us = max(1, busy_us - self.overhead_us)
        if self._num_read:
            self._price.observe(self._num_read, self._num_rows - self._num_read, step_us, self.cost)
        else:
            costs, num_sequences = self._unlent if self._drafting else self._cost, len(self._taking_part)
            costs.observe(self._num_rows, step_us, drafting=self._drafting, num_sequences=num_sequences)
        self._recorder.count_step(self._num_rows, busy_us)
        served: list[int] = []
        for request in self._taking_part:
            request.verified(step_us, now_us)
            if request.num_emitted:
                served.append(request.handle)
            self._count_tokens(request, now_us)
            self._collect(request)
            if request.finished:
                self._end(request)
        self._taking_part = []
        return served

    def take_unsent(self) -> list[tuple[str, VerifierFrame]]:
        """What is to be sent now, at the end of a turn, each with the drafter it is for."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def _collect(self, request: Request) -> None:
        self._unsent += request.unsent
        request.unsent.clear()

    def _count_tokens(self, request: Request, now_us: int) -> None:
        if request.num_emitted:
            since_us = None if request.last_emit_us is None else now_us - request.last_emit_us
            self._recorder.count_tokens(request.num_emitted, since_us)
            request.last_emit_us = now_us

    def _end(self, request: Request) -> None:
        self._forget(request)
        self.finished.append(request)

    def _forget(self, request: Request) -> None:
        del self._requests[request.handle]
        self._priors = request.statistics.remembered(self._priors)
        self._ends = self._ends.after(request.statistics.num_emitted, by_itself=request.ended_by_itself)


def _measured(curve: CostCurve, max_rows: int) -> StepCosts:
    """As a verifier measures it at start."""
    return StepCosts(CostModel({rows: curve.verify_us(rows) for rows in MEASURED_ROWS if rows <= max_rows}))


def _shared(of: CostModel, costs: StepCosts, num_sequences: int) -> CostCurve:
    return replace(of.curve(), sequence_us=costs.sequences.us(num_sequences), num_sequences=num_sequences)
