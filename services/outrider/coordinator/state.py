"""What the coordinator's servicer asks of the fleet's state, and where the real one comes from.

Knows the questions only. Must not know how replicas are kept or places are chosen: the state is pure and is handed the time.
"""

from __future__ import annotations

import time
from typing import Protocol

from outrider.coordinator.fleet import Fleet
from outrider.types.fleet import Placement, PlacementWish, Replica


class FleetState(Protocol):
    """Times are seconds of one monotonic clock."""

    epoch: int

    @property
    def announce_every_s(self) -> float:
        """How often a replica that is told so now is to announce itself."""
        ...

    def announce(self, replica: Replica, now_s: float) -> bool:
        """A heartbeat. True: the replica is to drain. Raises Superseded for an older incarnation."""
        ...

    def place(self, wish: PlacementWish, now_s: float) -> tuple[int, Placement]:
        """The placement's id and the placement. Raises Unavailable (nobody fits) or Overloaded (all that fit are full)."""
        ...

    def finish(self, placement_id: int, num_tokens: int, token_us: float, failure: str, now_s: float) -> None:
        """A placement has ended; an unknown id is no error."""
        ...

    def give_up(self, request_id: str, now_s: float) -> None:
        """Nobody waited for this request's placement; an unknown one is no error."""
        ...

    def drain(self, replica_id: str) -> None:
        """Take a replica out of placement and tell it. Raises UnknownSession."""
        ...

    def replicas(self, now_s: float) -> list[Replica]:
        """Everybody in lease."""
        ...


def new_epoch() -> int:
    """Larger for whoever starts later, on one machine and, as far as clocks agree, on several."""
    return time.time_ns()


def new_fleet(epoch: int) -> FleetState:
    """An empty one; replicas fill it within one heartbeat."""
    return Fleet(epoch)
