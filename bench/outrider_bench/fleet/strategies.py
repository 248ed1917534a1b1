"""Who decides where a turn goes: the coordinator's real state and placement, and two that are simpler.

The simple ones are told the truth about room and load at any moment, which no real one could be; the coordinator is told by heartbeats.
Must not know time beyond what it is handed.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Protocol

from outrider.coordinator.fleet import Fleet, FleetLimits
from outrider.errors import Overloaded
from outrider.types.fleet import PlacementWish
from outrider_bench.fleet.simulated_drafter import SimulatedDrafter
from outrider_bench.fleet.simulated_verifier import SimulatedVerifier
from outrider_bench.fleet.workload import MAX_ANSWER_LEN, Turn


@dataclass(frozen=True, slots=True)
class Chosen:
    """Places in the world's tuples; drafters best first."""

    verifier: int
    drafters: tuple[int, ...]
    placement_id: int = 0


@dataclass(slots=True)
class Replicas:
    """The simulated processes, in the order of the world."""

    verifiers: list[SimulatedVerifier]
    drafters: list[SimulatedDrafter]


class Strategy(Protocol):
    """choose: None when nobody has room now."""

    name: str

    @property
    def announce_every_s(self) -> float:
        """Between heartbeats of a replica; infinite for one that does not live on heartbeats."""
        ...

    def choose(self, turn: Turn, now_s: float) -> Chosen | None:
        """Where it goes."""
        ...

    def finished(self, chosen_id: int, num_tokens: int, token_us: float, now_s: float) -> None:
        """A turn is over."""
        ...

    def hear(self, verifiers: list[int], drafters: list[int], now_s: float) -> None:
        """Heartbeats of these."""
        ...


class RoundRobin:
    """The next verifier that has room, and the next drafter that has."""

    name = "round-robin"
    announce_every_s = math.inf

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._verifier = self._drafter = 0

    def choose(self, turn: Turn, now_s: float) -> Chosen | None:
        verifiers, drafters = self._replicas.verifiers, self._replicas.drafters
        at = next((at for at in _ring(self._verifier, len(verifiers)) if verifiers[at].has_room(turn)), None)
        if at is None:
            return None
        drafter = next((one for one in _ring(self._drafter, len(drafters)) if drafters[one].has_room), None)
        self._verifier, self._drafter = at + 1, (drafter or 0) + 1
        return Chosen(at, () if drafter is None else (drafter,))

    def finished(self, chosen_id: int, num_tokens: int, token_us: float, now_s: float) -> None:
        """Of no interest."""

    def hear(self, verifiers: list[int], drafters: list[int], now_s: float) -> None:
        """Of no interest."""


class LeastLoaded:
    """The verifier with the fewest sessions, and the drafter with the fewest."""

    name = "least-loaded"
    announce_every_s = math.inf

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def choose(self, turn: Turn, now_s: float) -> Chosen | None:
        verifiers, drafters = self._replicas.verifiers, self._replicas.drafters
        at = min(range(len(verifiers)), key=lambda one: (not verifiers[one].has_room(turn), verifiers[one].num_sessions))
        if not verifiers[at].has_room(turn):
            return None
        drafter = min(range(len(drafters)), key=lambda one: drafters[one].num_sessions, default=None)
        return Chosen(at, (drafter,) if drafter is not None and drafters[drafter].has_room else ())

    def finished(self, chosen_id: int, num_tokens: int, token_us: float, now_s: float) -> None:
        """Of no interest."""

    def hear(self, verifiers: list[int], drafters: list[int], now_s: float) -> None:
        """Of no interest."""


@dataclass
class Coordinator:
    """The real one. wall_s, cpu_s: what each placement took, by the clock and of a core (other processes wanted the core too)."""

    replicas: Replicas
    name: str = "coordinator"
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        verifiers, drafters = self.replicas.verifiers, self.replicas.drafters
        self._fleet = Fleet(1, FleetLimits(max_replicas=len(verifiers) + len(drafters)))
        self._verifiers = {one.spec.endpoint: at for at, one in enumerate(verifiers)}
        self._drafters = {one.spec.endpoint: at for at, one in enumerate(drafters)}

    @property
    def announce_every_s(self) -> float:
        """What it asks for."""
        return self._fleet.announce_every_s

    def choose(self, turn: Turn, now_s: float) -> Chosen | None:
        wish = PlacementWish(
            f"{turn.user} {turn.conversation} {turn.prefix_len}",
            turn.tenant,
            turn.prefix_len,
            max_tokens=MAX_ANSWER_LEN,
            prefix_digests=turn.digests(turn.prefix_len),
            prefix_digest_lens=turn.digest_lens,
        )
        begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
        try:
            placement_id, placement = self._fleet.place(wish, now_s)
        except Overloaded:
            return None
        finally:
            self.wall_s.append(time.perf_counter() - begin_s)
            self.cpu_s.append(time.thread_time() - begin_cpu_s)
        drafters = tuple(self._drafters[endpoint] for endpoint in placement.drafters)
        return Chosen(self._verifiers[placement.verifier], drafters, placement_id)

    def finished(self, chosen_id: int, num_tokens: int, token_us: float, now_s: float) -> None:
        self._fleet.finish(chosen_id, num_tokens, token_us, "", now_s)

    def hear(self, verifiers: list[int], drafters: list[int], now_s: float) -> None:
        for at in drafters:
            self._fleet.announce(self.replicas.drafters[at].replica(), now_s)
        for at in verifiers:
            self._fleet.announce(self.replicas.verifiers[at].replica(now_s), now_s)


STRATEGIES = (RoundRobin, LeastLoaded, Coordinator)


def _ring(begin: int, size: int) -> list[int]:
    return [(begin + at) % size for at in range(size)]
