"""For tests of side branches (hedges): a policy that always allows some, and a drafter of the fake network that drives a real draft source.

The drafter is the drafter service's own hosted session and outbox over any DraftSource, on the simulation's clock: frames that come while
it drafts wait for the end of the step, as in the service.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from drafter_service.hosted import HostedSession
from drafter_service.outbox import Outbox
from outrider.drafting.contract import DraftSource, Proposal, ProposeRequest
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.events import Grown, VerifierFrameArrived
from outrider.session.pacing.contract import Pacing, PacingPlan, SessionView, StepView
from outrider.session.pacing.explanation import PlanExplanation
from outrider.types.frames import Close, DrafterFrame, Open, Opened, Refused, Tail, VerifierFrame

BUDGETS = (16, 16, 5, 0)  # by committed length, so that it changes all the time


class HedgingPacing:
    """Any policy, with side branches. side_nodes: of them that every round verifies beside its chain, at least; num_side_nodes: that were
    there to be verified so."""

    hedges = True

    def __init__(self, pacing: Pacing, budgets: tuple[int, ...] = BUDGETS, side_nodes: int = 0) -> None:
        self.name = pacing.name
        self.drafts = pacing.drafts
        self.looks_up = pacing.looks_up
        self._pacing = pacing
        self.num_side_nodes = 0
        self._budgets = budgets
        self._side_nodes = side_nodes

    def plan(self, view: StepView) -> PacingPlan:
        plan = self._pacing.plan(view)
        num_rows = sum(part.num_rows for part in plan.take)
        take = []
        for part in plan.take:
            most = min(self._side_nodes - part.side_nodes, view.max_rows - num_rows) if part.max_nodes else 0
            num_rows += max(0, most)
            take.append(replace(part, side_nodes=part.side_nodes + max(0, most)))
        there = {session.session: len(session.side_depths) for session in view.sessions}
        self.num_side_nodes += sum(min(part.side_nodes, there[part.session]) for part in take)
        return replace(plan, take=tuple(take))

    def explain(self, view: StepView, plan: PacingPlan) -> PlanExplanation:
        return self._pacing.explain(view, plan)

    def draft_ahead(self, session: SessionView) -> int:
        return self._pacing.draft_ahead(session)

    def lets_rest(self, session: int, committed_len: int) -> bool:
        return self._pacing.lets_rest(session, committed_len)

    def takes_up_text(self, kind: int, shorter_kind: int) -> bool:
        return self._pacing.takes_up_text(kind, shorter_kind)

    def hedge_nodes(self, session: SessionView) -> int:
        return self._budgets[session.committed_len % len(self._budgets)]

    def flush_len(self, session: SessionView) -> int:
        return self._pacing.flush_len(session)


class SourceDrafter:
    """A drafter for fakes_simulation.Simulation. One draft step takes token_us, whatever is in it."""

    def __init__(self, name: str, source: DraftSource, vocab_size: int, token_us: int, eos: frozenset[int] = frozenset({0})) -> None:
        self.name = name
        self.token_us = token_us
        self.busy_until: int | None = None
        self.sessions: dict[int, HostedSession] = {}
        self.num_hedge_tails = 0
        self._source = source
        self._bounds = DrafterBounds(source.name, vocab_size, eos, 1 << 20, 1 << 20)
        self._outbox = Outbox(1 << 16)
        self._waiting: list[VerifierFrame] = []
        self._proposals: list[Proposal] = []
        self._begin_us = 0
        self._next_key = 0

    def receive(self, frame: VerifierFrame) -> Iterator[DrafterFrame]:
        """Frames in answer to one from the verifier; none while drafting."""
        if self.busy_until is not None:
            self._waiting.append(frame)
            return
        self._take(frame)
        yield from self._sent()

    def start(self, now_us: int) -> None:
        """Begin a step for whoever wants drafts."""
        requests = []
        for hosted in self.sessions.values():
            reach = hosted.session.wants()
            if reach is not None:
                requests.append(
                    ProposeRequest(hosted.key, hosted.session.tree.tree_id, reach, hosted.session.hedge_nodes, hosted.session.flush_nodes)
                )
        if requests:
            self._proposals = self._source.propose(requests)
            self._begin_us, self.busy_until = now_us, now_us + self.token_us

    def finish(self, now_us: int) -> Iterator[DrafterFrame]:
        """The step is over; then what came meanwhile is taken."""
        self.busy_until = None
        by_key = {hosted.key: hosted for hosted in self.sessions.values()}
        for proposal in self._proposals:
            hosted = by_key[proposal.session]
            nodes = proposal.tokens, proposal.parents, proposal.scores
            times = now_us - self._begin_us, self._begin_us * 1000, now_us * 1000
            how = proposal.rows, proposal.is_hedge, proposal.may_hedge
            hosted.step(Grown(proposal.tree_id, *nodes, proposal.end, *times, *how))
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            self._take(frame)
        yield from self._sent()

    def _take(self, frame: VerifierFrame) -> None:
        hosted = self.sessions.get(frame.session)
        if hosted is None:
            if not isinstance(frame, Open):
                return
            self._next_key += 1
            hosted = self.sessions[frame.session] = HostedSession(
                self._next_key, 0, frame.session, self._bounds, self._source, self._outbox
            )
        hosted.step(VerifierFrameArrived(frame))
        if hosted.session.ended:
            del self.sessions[frame.session]

    def _sent(self) -> Iterator[DrafterFrame]:
        for frame in self._outbox.take(1 << 16, 1 << 30):
            assert isinstance(frame, Tail | Opened | Refused | Close)
            self.num_hedge_tails += isinstance(frame, Tail) and frame.hedge_us > 0
            yield frame
