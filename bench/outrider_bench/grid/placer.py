"""The coordinator of a simulated grid: the real fleet state and placement, told by heartbeats on virtual time.

Must not know sessions, texts or how long anything takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.coordinator.fleet import Fleet
from outrider.types.fleet import PairMeasurement, PlacementWish, Replica, Role
from outrider_bench.fleet.world import BLOCK_LEN, IDENTITY, NUM_BLOCKS
from outrider_bench.grid.costs import Pair

MAX_SESSIONS = 256  # of a replica: more than a grid ever asks for


@dataclass(frozen=True, slots=True)
class VerifierNews:
    """Of one verifier's heartbeat. acceptance: by drafter, of those it has judged."""

    num_sessions: int
    cost: tuple[tuple[int, float], ...]
    queue_us: float
    acceptance: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DrafterNews:
    """Of one drafter's heartbeat. token_us: of a drafted token, of late. read_us: of a prompt's."""

    num_sessions: int
    token_us: float
    read_us: float


@dataclass(frozen=True, slots=True)
class Placed:
    """verifier: its number. drafters: names, none for plain decoding."""

    placement_id: int
    verifier: int
    drafters: tuple[str, ...]


class Placer:
    """round_trip_us: what every verifier has measured to every drafter."""

    def __init__(self, pair: Pair, round_trip_us: float) -> None:
        self._fleet = Fleet(1)
        self._verifiers = {f"verifier{number}": number for number in range(pair.verifiers)}
        self.drafters = {f"drafter{number}": number for number in range(pair.drafters)}
        self._round_trip_us = round(round_trip_us)
        self._num_placed = 0

    @property
    def announce_every_s(self) -> float:
        """Between heartbeats."""
        return self._fleet.announce_every_s

    def hear(self, verifiers: list[VerifierNews], drafters: list[DrafterNews], now_s: float) -> None:
        """Everybody's heartbeat."""
        for name, drafter in zip(self.drafters, drafters, strict=True):
            told = {"num_sessions": drafter.num_sessions, "draft_us": drafter.token_us, "read_us": drafter.read_us}
            self._announce(name, Role.DRAFTER, now_s, **told)
        for name, verifier in zip(self._verifiers, verifiers, strict=True):
            pairs = {each: PairMeasurement(self._round_trip_us, verifier.acceptance.get(each), connected=True) for each in self.drafters}
            self._announce(
                name, Role.VERIFIER, now_s,
                num_sessions=verifier.num_sessions, kv_blocks_total=NUM_BLOCKS, block_len=BLOCK_LEN,
                cost=verifier.cost, queue_us=verifier.queue_us, pairs=pairs,
            )  # fmt: skip

    def place(self, prompt_len: int, max_tokens: int, now_s: float) -> Placed:
        """A place for a request."""
        self._num_placed += 1
        request_id = f"simulated/{self._num_placed}"
        placement_id, placement = self._fleet.place(PlacementWish(request_id, prefix_len=prompt_len, max_tokens=max_tokens), now_s)
        return Placed(placement_id, self._verifiers[placement.verifier], placement.drafters)

    def finished(self, placement_id: int, now_s: float) -> None:
        """It has ended."""
        self._fleet.finish(placement_id, 0, 0.0, "", now_s)

    def _announce(self, name: str, role: Role, now_s: float, **told: object) -> None:
        self._fleet.announce(Replica(name, 1, role, name, IDENTITY, max_sessions=MAX_SESSIONS, **told), now_s)  # type: ignore[arg-type]
