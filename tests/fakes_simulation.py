"""Discrete-event simulation of verifier sessions, drafters and the network between them on one manual clock.

Real parts: VerifierSession, DrafterSession, the pacing policies. Fake parts: TableEngine, the drafters' guesses (the truth with a given
probability per position), the network. At each instant everything due happens first, frames are delivered, then new work starts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from fakes import FakeNetwork, ManualClock, TableEngine, TruthTable, Weather
from outrider.session.drafter import DrafterSession
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.events import (
    CancelRequested,
    DrafterFrameArrived,
    DrafterJoined,
    DrafterLost,
    Emit,
    Finish,
    Grown,
    Keep,
    RoundPlanned,
    RoundVerified,
    SendToDrafter,
    SendToVerifier,
    VerifierEffect,
    VerifierEvent,
    VerifierFrameArrived,
    Verify,
)
from outrider.session.opening import VerifierSpec
from outrider.session.pacing.contract import CostCurve, Pacing, PacingPlan, SessionPlan, StepView
from outrider.session.verifier import VerifierSession
from outrider.types.frames import DrafterFrame, DraftLimits, Open, TailEnd, VerifierFrame
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import ROOT, TokenOrigin

MAX_EVENTS = 2_000_000
DECK_LEN = 500


class ScriptedDrafter:
    """Draft sessions whose guess at each position is the truth with probability alpha, one token for every wanting session per burst."""

    def __init__(self, name: str, table: TruthTable, alpha: float, token_us: int, seed: int = 0, width: int = 1) -> None:
        self.name = name
        self.token_us = token_us
        self.busy_until: int | None = None
        self._table = table
        self._alpha = alpha
        self._seed = seed
        self._width = width
        self._bounds = DrafterBounds("scripted", table.vocab_size, frozenset({table.eos}), 1 << 20, 1 << 20)
        self._begun: list[tuple[int, int]] = []
        self._decks: dict[tuple[int, int], list[bool]] = {}
        self._begin_us = 0
        self.sessions: dict[int, DrafterSession] = {}

    def receive(self, frame: VerifierFrame) -> Iterator[DrafterFrame]:
        """Frames in answer to one from the verifier."""
        session = self.sessions.get(frame.session)
        if session is None:
            if not isinstance(frame, Open):
                return
            session = self.sessions[frame.session] = DrafterSession(frame.session, self._bounds)
        yield from self._frames(session, VerifierFrameArrived(frame))

    def start(self, now_us: int) -> None:
        """Begin one token for every session that wants one."""
        self._begun = [(handle, session.tree.tree_id) for handle, session in self.sessions.items() if session.wants() is not None]
        if self._begun:
            self._begin_us = now_us
            self.busy_until = now_us + self.token_us

    def finish(self, now_us: int) -> Iterator[DrafterFrame]:
        """The tokens begun are there; those of trees given up meanwhile are lost."""
        self.busy_until = None
        for handle, tree_id in self._begun:
            session = self.sessions.get(handle)
            if session is not None and session.wants() is not None and session.tree.tree_id == tree_id:
                yield from self._frames(session, self._grow(session, now_us))

    def _frames(self, session: DrafterSession, event: VerifierFrameArrived | Grown) -> Iterator[DrafterFrame]:
        for effect in session.step(event):
            if isinstance(effect, SendToVerifier):
                yield effect.frame
        if session.ended:
            self.sessions.pop(session.session, None)

    def _grow(self, session: DrafterSession, now_us: int) -> Grown:
        tree, wants, opening = session.tree, session.wants(), session.opening
        assert wants is not None
        assert opening is not None
        leaf = self._leaf(session)
        position = tree.base if leaf == ROOT else tree.base + tree.depth(leaf) + 1
        if position >= wants:
            return self._grown(session, (), (), TailEnd.CREDIT, now_us)
        last = tree.tokens[leaf] if leaf != ROOT else session.committed[tree.base - 1]
        good = self._table.next(position, last)
        lucky = self._is_lucky(opening.session, position)
        tokens = [good if lucky else (good + 1) % self._table.vocab_size]
        tokens += [(tokens[0] + 1 + sibling) % self._table.vocab_size for sibling in range(self._width - 1)]
        tokens.reverse()  # the main guess last, so that it is the leaf to go on from
        end = TailEnd.EOS if tokens[-1] == self._table.eos else TailEnd.CREDIT if position + 1 >= wants else TailEnd.MORE
        return self._grown(session, tuple(tokens), (leaf,) * len(tokens), end, now_us)

    def _is_lucky(self, handle: int, position: int) -> bool:
        """From a shuffled deck per DECK_LEN positions, so that exactly a share alpha of them is guessed right."""
        key = (handle, position // DECK_LEN)
        if key not in self._decks:
            deck = [at < self._alpha * DECK_LEN for at in range(DECK_LEN)]
            random.Random(self._seed * 1_000_003 + handle * 7919 + key[1]).shuffle(deck)
            self._decks[key] = deck
        return self._decks[key][position % DECK_LEN]

    def _leaf(self, session: DrafterSession) -> int:
        tree = session.tree
        return tree.num_nodes - 1 if tree.num_nodes and tree.root_len < tree.base + tree.depth(tree.num_nodes - 1) + 1 else tree.root

    def _grown(self, session: DrafterSession, tokens: tuple[int, ...], parents: tuple[int, ...], end: TailEnd, now_us: int) -> Grown:
        times = (now_us - self._begin_us, self._begin_us * 1000, now_us * 1000)
        return Grown(session.tree.tree_id, tokens, parents, None, end, *times)


@dataclass
class Request:
    """One simulated request and what came of it."""

    session: VerifierSession
    sequence_open: bool = True
    tokens: list[int] = field(default_factory=list)
    origins: list[TokenOrigin] = field(default_factory=list)
    finish: Finish | None = None
    longest_wait_us: int = 0


def spec_of(session: int, prompt: list[int], max_tokens: int, table: TruthTable, **changes: object) -> VerifierSpec:
    """A plain specification; changes override its fields."""
    fields: dict[str, object] = {
        "session": session,
        "incarnation": 1,
        "request_id": f"r{session}",
        "prefix": np.asarray(prompt, np.int32),
        "num_prompt": len(prompt),
        "max_len": len(prompt) + max_tokens,
        "stop_token_ids": frozenset({table.eos}),
        "vocab_size": table.vocab_size,
        "sampling": SamplingParams(temperature=0.0),
        "noise": NoiseAddress(1),
        "limits": DraftLimits(max_len=len(prompt) + max_tokens, max_nodes=64),
        "max_draft_len": 32,
        "max_nodes": 64,
    }
    return VerifierSpec(**{**fields, **changes})  # type: ignore[arg-type]


class Simulation:
    """Verifier, drafters and network until every request has ended."""

    def __init__(
        self,
        engine: TableEngine,
        pacing: Pacing,
        drafters: list[ScriptedDrafter],
        *,
        weather: Weather | None = None,
        seed: int = 0,
        step_cost: Callable[[int], int] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.engine = engine
        self.pacing = pacing
        self.drafters = {drafter.name: drafter for drafter in drafters}
        self.network: FakeNetwork[VerifierFrame | DrafterFrame] = FakeNetwork(seed, weather or Weather())
        self.requests: dict[int, Request] = {}
        self.agenda: list[tuple[int, Callable[[], None]]] = []
        self._cost = step_cost or (lambda rows: engine.step_us)
        self._step: tuple[int, int, list[tuple[Request, VerifierEvent]]] | None = None
        self._wake_us: int | None = None

    def add(self, spec: VerifierSpec) -> Request:
        """A request arrives."""
        noise, sampling = spec.noise, spec.sampling
        self.engine.open(spec.session, SequenceSpec(sampling, noise, spec.num_prompt, spec.max_len, spec.max_nodes))
        request = self.requests[spec.session] = Request(VerifierSession(spec, self.pacing, self.clock.now_us))
        for name in self.drafters:
            if name not in self.network.dead:
                self.apply(request, DrafterJoined(name, self.clock.now_us))
        return request

    def apply(self, request: Request, event: VerifierEvent) -> list[VerifierEffect]:
        """One event and its effects, but for Verify, which is returned."""
        verify: list[VerifierEffect] = []
        sequence = request.session.spec.session
        for effect in request.session.step(event):
            match effect:
                case SendToDrafter():
                    self.network.send(self.clock.now_us, "verifier", effect.drafter, effect.frame)
                case Keep():
                    self.engine.keep(sequence, effect.path)
                case Emit():
                    request.tokens += effect.tokens
                    request.origins += effect.origins
                case Finish():
                    request.finish = effect
                    self.engine.close(sequence)
                    request.sequence_open = False
                case Verify():
                    verify.append(effect)
        return verify

    def kill(self, name: str) -> None:
        """A drafter's process dies and its stream breaks."""
        self.network.kill(name)
        self.drafters.pop(name, None)
        for request in self.requests.values():
            self.apply(request, DrafterLost(name, "killed", self.clock.now_us))

    def cancel(self, handle: int) -> None:
        """The client of a request goes away."""
        self.apply(self.requests[handle], CancelRequested("the client left", self.clock.now_us))

    def run(self) -> None:
        """Until every request has ended and every frame has landed."""
        for _ in range(MAX_EVENTS):
            self._happen()
            self._deliver()
            self._start()
            due = self._next_due()
            if due is None:
                break
            self.clock.advance(max(0, due - self.clock.now_us))
        else:
            raise AssertionError("the simulation does not end")
        assert all(request.finish for request in self.requests.values()), "somebody waits for ever"

    def _next_due(self) -> int | None:
        dues = [drafter.busy_until for drafter in self.drafters.values()]
        dues += [self._step[0] if self._step else None, self.network.next_due()]
        dues += [at for at, _ in self.agenda]
        if self._step is None:
            dues.append(self._wake_us)
        return min((due for due in dues if due is not None), default=None)

    def _happen(self) -> None:
        now = self.clock.now_us
        for at, act in [entry for entry in self.agenda if entry[0] <= now]:
            self.agenda.remove((at, act))
            act()
        for drafter in list(self.drafters.values()):
            if drafter.busy_until is not None and drafter.busy_until <= now:
                for frame in drafter.finish(now):
                    self.network.send(now, drafter.name, "verifier", frame)
        self._deliver()
        if self._step is not None and self._step[0] <= now:
            _, _, outcomes = self._step
            self._step = None
            for request, event in outcomes:
                if request.sequence_open:
                    self.apply(request, event)

    def _deliver(self) -> None:
        now = self.clock.now_us
        while arrivals := self.network.arrivals(now):
            for source, target, frame in arrivals:
                if target == "verifier":
                    request = self.requests.get(frame.session)
                    if request is not None:
                        self.apply(request, DrafterFrameArrived(source, frame, now))  # type: ignore[arg-type]
                elif target in self.drafters:
                    for answer in self.drafters[target].receive(frame):  # type: ignore[arg-type]
                        self.network.send(now, target, "verifier", answer)

    def _start(self) -> None:
        now = self.clock.now_us
        if self._step is None:
            plan = self._plan(now)
            self._wake_us = plan.wake_us
            if plan.take:
                self._verify(plan.take, now)
        for drafter in self.drafters.values():
            if drafter.busy_until is None:
                drafter.start(now)

    def _plan(self, now_us: int) -> PacingPlan:
        views = tuple(request.session.view(now_us) for request in self.requests.values() if request.session.is_ready)
        cost = CostCurve(((1, float(self._cost(1))), (64, float(self._cost(64)))))
        plan = self.pacing.plan(StepView(views, cost, self.engine.limits.max_rows, now_us))
        taken = {entry.session for entry in plan.take}
        for view in views:
            assert view.session in taken or plan.take or now_us < view.draft_deadline_us, "a ready session is held past its deadline"
            if view.session in taken:
                request = self.requests[view.session]
                request.longest_wait_us = max(request.longest_wait_us, now_us - view.waiting_since_us)
        return plan

    def _verify(self, take: tuple[SessionPlan, ...], now_us: int) -> None:
        rows: list[SequenceRows] = []
        for entry in take:
            request = self.requests[entry.session]
            how = entry.from_lookup, entry.side_nodes
            (verify,) = self.apply(request, RoundPlanned(entry.max_feed, entry.max_nodes, now_us, *how))
            assert isinstance(verify, Verify)
            tree = verify.tree
            judged = "coupled" if verify.wanted else ""
            rows.append(SequenceRows(entry.session, verify.committed, tree.tokens, tree.parents, verify.wanted, acceptance=judged))
        result = self.engine.step(StepPlan(tuple(rows)))
        cost = self._cost(result.num_rows)
        outcomes: list[tuple[Request, VerifierEvent]] = []
        for one in result.results:
            outcomes.append((self.requests[one.sequence], RoundVerified(one.verdict, cost, now_us + cost)))
        self._step = (now_us + cost, now_us, outcomes)
