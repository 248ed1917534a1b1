"""What a simulated deployment is like: costs of both models, the way between them, who shares cores, and how well drafts are accepted.

Every number comes from a micro-benchmark (a step by rows, a draft step by sessions, a message) or is an axis of a grid; nothing here is
fitted on the throughput it predicts. Must not know policies. Times in microseconds of virtual time, positions in tokens of an answer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from outrider.errors import InvalidRequest
from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.prefill_bound import DEFAULT_PREFILL_STRETCH

MAX_SESSIONS = 1024


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of an answer: until this token (exclusive, None = its end) a guess is right with this probability, if it is the first that
    its drafter makes beyond the truth it knows. deeper: the same of its second, third, ... guess, the last for all beyond; () = of all
    alike, as where a guess is made of the tokens before it, whoever wrote them."""

    acceptance: float
    until: int | None = None
    deeper: tuple[float, ...] = ()

    @property
    def rights(self) -> tuple[float, ...]:
        """Of the first guess, the second, and so on."""
        return (self.acceptance, *self.deeper)


Phases = tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A request: tokens of its prompt and of its answer."""

    prompt_len: int
    output_len: int


@dataclass(frozen=True, slots=True)
class Load:
    """A stretch of time in which so many clients ask, each again as soon as it was answered; until_us after the begin, exclusive. Who is
    not among them any more goes away in the midst of an answer."""

    num_clients: int
    until_us: int


@dataclass(frozen=True, slots=True)
class World:
    """A deployment of one verifier and one drafter with num_sessions clients, each asking again as soon as it was answered; or, with loads,
    as many of them as these say, until the last is over.

    verify: a step of so many rows; unlent: of one during which the drafter may be at work, where it lends its cores while it rests (None:
    it lends none). draft: one token for so many sessions at once; max_followed: guesses that may follow the first of a session that asks
    alone before its drafter hears of anything else (of chains alone). delay_us: one way; message_us: what a message costs
    beside that, each way. step_overhead_us: what the verifier spends on a step beside the target; guess_us: on each session with guesses in
    it or a drafter at work meanwhile, beside that; session_us: of the step, for each session but the first. phases: of session i,
    phases[i % len].
    verify_slowdown, draft_slowdown: how much longer each takes while the other runs too (1 = they share nothing).
    hedge_acceptance: how often the drafter's second choice is right where its first is wrong; 0 = it has no side branches.
    hedge_toll: how much longer a guess of the chain takes while they are asked for; about 1 for a drafter that follows its chains.
    unsure_when_wrong, unsure_when_right: how often the drafter stops for want of confidence before a guess that would be so.
    luck_by_position: which guesses are right depends on seed and position alone, the same in every request, as of outrider.drafting's
    replayed drafts. prompt_len, output_len: of every request; or, with shapes, each client's requests have these one after another, again
    and again. spare_len: tokens that it allows beyond those; 0 = its answer ends at its
    bound, else by itself. max_rows, max_draft_len, max_nodes, prefill_stretch: the service's bounds.
    """

    verify: CostCurve
    draft: CostCurve
    phases: tuple[Phases, ...] = ((Phase(0.8),),)
    delay_us: int = 0
    message_us: int = 0
    step_overhead_us: int = 0
    num_sessions: int = 1
    verify_slowdown: float = 1.0
    draft_slowdown: float = 1.0
    unsure_when_wrong: float = 0.0
    unsure_when_right: float = 0.0
    luck_by_position: bool = False
    prompt_len: int = 16
    output_len: int = 512
    max_rows: int = 256
    max_draft_len: int = 32
    max_nodes: int = 64
    seed: int = 1
    hedge_acceptance: float = 0.0
    guess_us: int = 0
    session_us: int = 0
    hedge_toll: float = 1.0
    spare_len: int = 0
    prefill_stretch: float = DEFAULT_PREFILL_STRETCH
    loads: tuple[Load, ...] = ()
    unlent: CostCurve | None = None
    shapes: tuple[Shape, ...] = ()
    max_followed: int = 0

    def check(self) -> None:
        """Raise InvalidRequest naming the first field that is out of range."""
        if not 1 <= self.num_sessions <= MAX_SESSIONS:
            raise InvalidRequest("world.num_sessions", f"must be in [1, {MAX_SESSIONS}], got {self.num_sessions}")
        if min(self.delay_us, self.message_us, self.step_overhead_us, self.guess_us, self.session_us) < 0:
            raise InvalidRequest("world.delay_us", "times must be 0 or positive")
        if min(self.verify_slowdown, self.draft_slowdown) < 1.0:
            raise InvalidRequest("world.verify_slowdown", "sharing cores never makes anything faster: factors must be at least 1")
        if not (0.0 <= self.unsure_when_wrong <= 1.0 and 0.0 <= self.unsure_when_right <= 1.0):
            raise InvalidRequest("world.unsure_when_wrong", "is a share in [0, 1]")
        if not 0.0 <= self.hedge_acceptance <= 1.0:
            raise InvalidRequest("world.hedge_acceptance", "is a share in [0, 1]")
        if self.max_followed < 0 or (self.max_followed and (self.hedge_acceptance or self.unsure_when_wrong or self.unsure_when_right)):
            raise InvalidRequest("world.max_followed", "must be 0 or positive, and 0 with side branches or an unsure drafter")
        if self.hedge_toll < 1.0:
            raise InvalidRequest("world.hedge_toll", "side branches never make a chain faster: must be at least 1")
        if self.hedge_acceptance and (self.unsure_when_wrong or self.unsure_when_right):
            raise InvalidRequest("world.hedge_acceptance", "a drafter with side branches is never unsure here")
        shapes = (Shape(self.prompt_len, self.output_len), *self.shapes)
        if min(self.max_rows, *(min(shape.prompt_len, shape.output_len) for shape in shapes)) < 1:
            raise InvalidRequest("world.output_len", "prompt, answer and rows must be at least 1")
        if self.spare_len < 0:
            raise InvalidRequest("world.spare_len", f"must be 0 or positive, got {self.spare_len}")
        if self.prefill_stretch and self.prefill_stretch <= 1.0:
            raise InvalidRequest("world.prefill_stretch", f"must be 0 or above 1, got {self.prefill_stretch}")
        self._check_loads()
        for phases in self.phases:
            if not phases or any(not 0.0 <= right <= 1.0 for phase in phases for right in phase.rights):
                raise InvalidRequest("world.phases", "every session needs an acceptance in [0, 1]")
            if any(phase.deeper for phase in phases) and (self.hedge_acceptance or self.unsure_when_wrong or self.unsure_when_right):
                raise InvalidRequest("world.phases", "a drafter that errs by depth has no side branches and is never unsure here")

    def _check_loads(self) -> None:
        if any(not 0 <= load.num_clients <= self.num_sessions for load in self.loads):
            raise InvalidRequest("world.loads", f"clients must be in [0, {self.num_sessions}], of the world's sessions")
        ends_us = [0, *(load.until_us for load in self.loads)]
        if any(before >= after for before, after in itertools.pairwise(ends_us)):
            raise InvalidRequest("world.loads", "every load must end later than the one before it")

    @property
    def max_len(self) -> int:
        """Tokens that a request may have, prompt included."""
        return self.prompt_len + self.output_len + self.spare_len

    def of_request(self, request: int) -> World:
        """As a client's request with this number, from 0 on, meets it."""
        if not self.shapes:
            return self
        shape = self.shapes[request % len(self.shapes)]
        return replace(self, prompt_len=shape.prompt_len, output_len=shape.output_len, shapes=())
