"""Virtual time: users ask, prompts are read, answers end, heartbeats tell. Deterministic but for the wall time of placements.

Closed loop: each user asks its next turn when it has thought about the last answer, until `num_turns` have been asked in all; so a
quicker fleet is asked more. Must not know how a strategy chooses.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from outrider_bench.fleet.outcome import Answer, Outcome
from outrider_bench.fleet.simulated_drafter import SimulatedDrafter
from outrider_bench.fleet.simulated_verifier import Session, SimulatedVerifier
from outrider_bench.fleet.strategies import Replicas, Strategy
from outrider_bench.fleet.workload import Turn, Users
from outrider_bench.fleet.world import World

USERS_PER_VERIFIER = 12
BEAT_S = 0.05  # heartbeats that are due within so long come together
RETRY_S = 0.1
MIN_ACCEPTANCE, MAX_ACCEPTANCE = 0.05, 0.97


@dataclass(frozen=True, slots=True)
class Run:
    """One strategy in one world."""

    world: World
    num_turns: int
    seed: int


class EventLoop:
    """`strategy_of` makes the strategy over the simulated processes."""

    def __init__(self, run: Run, strategy_of: Callable[[Replicas], Strategy]) -> None:
        self._run = run
        self._verifiers = [SimulatedVerifier(spec) for spec in run.world.verifiers]
        self._drafters = [SimulatedDrafter(spec) for spec in run.world.drafters]
        self.strategy = strategy_of(Replicas(self._verifiers, self._drafters))
        self._users = Users(min(run.num_turns, USERS_PER_VERIFIER * len(self._verifiers)), run.seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._asked = 0
        self._outcome = Outcome()

    def outcome(self) -> Outcome:
        """Run it to the last answer."""
        if math.isfinite(self.strategy.announce_every_s):
            self.strategy.hear(list(range(len(self._verifiers))), list(range(len(self._drafters))), 0.0)
            self._at(BEAT_S, lambda now_s: self._beat(0, now_s))
        for user in range(len(self._users)):
            self._at(self._users.think_s(user), lambda now_s, user=user: self._turn(user, now_s))  # type: ignore[misc]
        while len(self._outcome.answers) < self._run.num_turns:
            now_s, _, event = heapq.heappop(self._events)
            event(now_s)
        return self._outcome

    def _at(self, time_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), event))

    def _beat(self, slot: int, now_s: float) -> None:
        num_slots = max(1, round(self.strategy.announce_every_s / BEAT_S))
        slot %= num_slots
        verifiers = range(slot, len(self._verifiers), num_slots)
        for at in verifiers:
            self._look_again(at, now_s)
        self.strategy.hear(list(verifiers), list(range(slot, len(self._drafters), num_slots)), now_s)
        self._at(now_s + BEAT_S, lambda later_s: self._beat(slot + 1, later_s))

    def _look_again(self, at: int, now_s: float) -> None:
        """Drafters' loads have changed meanwhile, or what they have read."""
        verifier = self._verifiers[at]
        verifier.advance(now_s)
        verifier.reprice()
        self._await_end(at)

    def _turn(self, user: int, now_s: float) -> None:
        if self._asked < self._run.num_turns:
            self._asked += 1
            turn = self._users.next_turn(user)
            self._ask(turn, now_s, now_s)

    def _ask(self, turn: Turn, asked_s: float, now_s: float) -> None:
        chosen = self.strategy.choose(turn, now_s)
        if chosen is None:
            self._outcome.num_refused += 1
            self._at(now_s + RETRY_S, lambda later_s: self._ask(turn, asked_s, later_s))
            return
        drafters = tuple(self._drafters[at] for at in chosen.drafters)
        acceptance, trip_us = 0.0, 0.0
        if drafters:
            acceptance = min(MAX_ACCEPTANCE, max(MIN_ACCEPTANCE, drafters[0].spec.suits + turn.text_luck))
            trip_us = float(self._run.world.round_trip_us(chosen.verifier, chosen.drafters[0]))
        session = Session(turn, asked_s, drafters[0] if drafters else None, drafters, trip_us, acceptance, chosen.placement_id)
        if drafters:
            session.drafts_from_s = now_s + drafters[0].reading_s(turn)
            session.had_warm_drafter = drafters[0].num_warm(turn) > 0
        for drafter in drafters:
            drafter.num_sessions += 1
        read_s = self._verifiers[chosen.verifier].admit(session, now_s)
        self._at(read_s, lambda later_s: self._begin(chosen.verifier, session, later_s))

    def _begin(self, at: int, session: Session, now_s: float) -> None:
        self._verifiers[at].begin(session, now_s)
        self._await_end(at)
        if session.drafts_from_s > now_s:
            self._at(session.drafts_from_s, lambda later_s: self._look_again(at, later_s))

    def _await_end(self, at: int) -> None:
        end_s, version = self._verifiers[at].next_end_s(), self._verifiers[at].version
        if end_s is not None:
            self._at(end_s, lambda now_s: self._end(at, version, now_s))

    def _end(self, at: int, version: int, now_s: float) -> None:
        verifier = self._verifiers[at]
        if verifier.version != version:
            return  # somebody came or went since, and another event tells when the next one ends
        for session in verifier.finished(now_s):
            for drafter in session.drafters:
                drafter.finish(session.turn)
            times_s = session.asked_s, session.first_s, now_s
            answer = Answer(session.turn.answer_len, *times_s, session.turn.is_further, session.was_warm, session.had_warm_drafter)
            self._outcome.answers.append(answer)
            self.strategy.finished(session.placement_id, answer.num_tokens, answer.token_us, now_s)
            user = session.turn.user
            self._at(now_s + self._users.think_s(user), lambda later_s, user=user: self._turn(user, later_s))  # type: ignore[misc]
        self._await_end(at)
