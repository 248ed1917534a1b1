"""The discrete-event clock: a verifier, a drafter and the way between them, from one instant at which something happens to the next.

At each instant work that is done ends first (drafting before verifying), then messages are taken by whoever does not compute, then new work
begins. The policy under test and all session machines are the services' own. Deterministic: the same world and policy give the same
outcome. Must not know the time of day.
"""

from __future__ import annotations

from enum import Enum

from outrider.session.pacing.contract import Pacing
from outrider.types.frames import DrafterFrame, VerifierFrame
from outrider_bench.simulation.chain_drafter import ChainDrafter
from outrider_bench.simulation.clients import Clients
from outrider_bench.simulation.cores import Cores, Role
from outrider_bench.simulation.drafter_process import DrafterProcess
from outrider_bench.simulation.drafter_side import DrafterSide, SessionDrafter
from outrider_bench.simulation.hedging_drafter import HedgingDrafter
from outrider_bench.simulation.outcome import Outcome, Recorder
from outrider_bench.simulation.text import Text, text_of
from outrider_bench.simulation.verifier_process import VerifierProcess
from outrider_bench.simulation.wire import Wire
from outrider_bench.simulation.world import World

MAX_INSTANTS = 5_000_000
MAX_LATE = 8192  # requests that may end before a far drafter hears of the first of them
START_US = 1_000_000  # no time of a session may be 0, which its statistics read as unknown


class StuckError(RuntimeError):
    """A policy holds ready sessions for ever, or past the time at which it wanted to be asked again."""


class DrafterKind(Enum):
    """SESSION: the service's DrafterSession. CHAIN: its reduced form, which sends the same frames."""

    SESSION = "session"
    CHAIN = "chain"


class Simulation:
    """One world under one policy, until num_tokens are emitted or its last load is over; `run` once."""

    def __init__(self, world: World, pacing: Pacing, num_tokens: int, drafter: DrafterKind = DrafterKind.CHAIN) -> None:
        world.check()
        self._world = world
        self._num_tokens = num_tokens
        self._kind = drafter
        self._now_us = START_US
        self._recorder = Recorder()
        self._verifier = VerifierProcess(world, pacing, self._recorder)
        self._drafter = DrafterProcess(self._open_drafter, world.max_followed)
        self._cores = Cores(world.verify_slowdown, world.draft_slowdown)
        self._to_drafter: Wire[VerifierFrame] = Wire(world.delay_us + world.message_us)
        self._to_verifier: Wire[DrafterFrame] = Wire(world.delay_us + world.message_us)
        self._texts: dict[int, Text] = {}
        self._num_requests = [0] * world.num_sessions
        self._newest = [0] * world.num_sessions  # request of each client
        self._leaving: list[int] = []
        self._clients = Clients(world, START_US)
        self._next_handle = 1
        self._wake_us: int | None = None
        self._must_plan = False
        self._step_began_us = self._draft_began_us = 0

    def run(self) -> Outcome:
        """Raises StuckError when the policy makes no progress."""
        for _ in range(MAX_INSTANTS):
            self._follow_load()
            self._begin()
            if self._recorder.num_tokens >= self._num_tokens or self._clients.are_gone(self._now_us):
                return self._recorder.outcome(self._now_us - START_US, self._verifier.statistics)
            due_us = self._next_due()
            if due_us is None:
                raise StuckError("nothing will ever happen again: the policy waits without a time to be asked")
            self._now_us = max(self._now_us, due_us)
            self._end()
        raise StuckError(f"{MAX_INSTANTS} instants were not enough")

    def _follow_load(self) -> None:
        """Who begins to ask now, and who goes away."""
        if self._clients.are_due(self._now_us):
            if self._world.loads:
                self._recorder.begin_load()
            coming, leaving = self._clients.change(self._now_us)
            for client in coming:
                self._open(client)
            self._leaving += [self._newest[client] for client in leaving]

    def _open(self, client: int) -> None:
        """The client's next request."""
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._texts[handle] = text_of(self._world, client, self._num_requests[client])
        self._num_requests[client] += 1
        self._newest[client] = handle
        self._verifier.open(handle, client, self._texts[handle], self._now_us)
        self._must_plan = True

    def _open_drafter(self, handle: int) -> DrafterSide | None:
        text = self._texts.get(handle)
        if text is None:  # the request is over before its drafter has heard of it, and says so next
            return None
        if self._world.hedge_acceptance:
            return HedgingDrafter(handle, text, self._world.hedge_acceptance)
        return ChainDrafter(handle, text) if self._kind is DrafterKind.CHAIN else SessionDrafter(handle, text)

    def _next_due(self) -> int | None:
        dues = [*self._cores.dues_us, self._clients.due_us]
        if not self._cores.is_busy(Role.VERIFIER):
            dues += [self._wake_us, self._to_verifier.due_us()]
        if not self._cores.is_busy(Role.DRAFTER):
            dues.append(self._to_drafter.due_us())
        return min((due for due in dues if due is not None), default=None)

    # --- work ends --------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._cores.is_done(Role.DRAFTER, self._now_us):
            self._cores.finish(Role.DRAFTER, self._now_us)
            self._recorder.count_drafting(self._now_us - self._draft_began_us)
            self._drafter.finish(self._now_us)
            self._to_verifier.send(self._drafter.take_unsent(), self._now_us)
        if self._cores.is_done(Role.VERIFIER, self._now_us):
            self._cores.finish(Role.VERIFIER, self._now_us)
            self._verifier.finish(self._now_us - self._step_began_us, self._now_us)
            self._to_drafter.send([frame for _, frame in self._verifier.take_unsent()], self._now_us)
            self._reopen()
            self._must_plan = True

    def _reopen(self) -> None:
        finished = list(self._verifier.finished)
        self._verifier.finished.clear()
        for request in finished:
            if request.handle not in self._leaving and request.client in self._clients.asking:
                self._open(request.client)
            self._texts.pop(request.handle - MAX_LATE, None)

    # --- work begins ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        while self._take():
            pass
        if self._cores.is_busy(Role.VERIFIER):
            return
        self._cancel()
        if self._must_plan or (self._wake_us is not None and self._wake_us <= self._now_us):
            self._plan()
            while self._take():  # what the verifier sent without a step
                pass

    def _cancel(self) -> None:
        for handle in self._leaving:
            self._verifier.cancel(handle, self._now_us)
            self._must_plan = True
        self._leaving.clear()

    def _take(self) -> bool:
        """Let whoever does not compute take what has arrived; False when nothing had."""
        moved = False
        if not self._cores.is_busy(Role.DRAFTER) and (to_drafter := self._to_drafter.arrived(self._now_us)):
            self._drafter.receive([frame for _, frame in to_drafter])
            moved = True
        if not self._cores.is_busy(Role.DRAFTER):
            self._draft()
        if not self._cores.is_busy(Role.VERIFIER) and (to_verifier := self._to_verifier.arrived(self._now_us)):
            self._verifier.receive(to_verifier)
            self._must_plan = moved = True
        return moved

    def _draft(self) -> None:
        num_growing = self._drafter.start(self._now_us)
        if num_growing:
            self._draft_began_us = self._now_us
            toll = self._world.hedge_toll if self._drafter.pays_toll else 1.0
            work_us = toll * self._drafter.num_guesses * self._world.draft.verify_us(num_growing)
            self._cores.start(Role.DRAFTER, work_us, self._now_us)
            return
        if num_growing == 0:  # they only learn that they must pause, which takes no time
            self._drafter.finish(self._now_us)
        self._to_verifier.send(self._drafter.take_unsent(), self._now_us)

    def _plan(self) -> None:
        self._must_plan = False
        plan = self._verifier.plan(self._now_us)
        self._wake_us = plan.wake_us
        self._to_drafter.send([frame for _, frame in self._verifier.take_unsent()], self._now_us)
        if plan.take:
            num_rows = self._verifier.start(plan, self._now_us)
            self._step_began_us = self._now_us
            work_us = self._verifier.cost_of(num_rows) + self._verifier.overhead_us
            self._cores.start(Role.VERIFIER, work_us, self._now_us)
            return
        if plan.wake_us is not None and plan.wake_us <= self._now_us:
            raise StuckError(f"the policy wants to be asked again at {plan.wake_us}, which is over, and takes nobody")


def simulate(world: World, pacing: Pacing, num_tokens: int, drafter: DrafterKind = DrafterKind.CHAIN) -> Outcome:
    """Run one world under one fresh policy."""
    return Simulation(world, pacing, num_tokens, drafter).run()
