"""A drafter's load, and what it does to the time of a token. Must not know verifiers."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.types.fleet import Replica, Role
from outrider_bench.fleet.world import IDENTITY, MAX_SESSIONS, DrafterSpec

SHARED = 0.06  # what each further session adds to a token; placement believes another number, as it would


@dataclass(slots=True)
class SimulatedDrafter:
    """num_sessions: placed with it and not finished."""

    spec: DrafterSpec
    num_sessions: int = 0

    @property
    def has_room(self) -> bool:
        """For one more."""
        return self.num_sessions < MAX_SESSIONS

    @property
    def draft_us(self) -> float:
        """A token at its present load."""
        return self.spec.draft_us * (1.0 + SHARED * max(0, self.num_sessions - 1))

    def replica(self) -> Replica:
        """Its heartbeat."""
        endpoint = self.spec.endpoint
        return Replica(
            endpoint, 1, Role.DRAFTER, endpoint, IDENTITY, num_sessions=self.num_sessions, max_sessions=MAX_SESSIONS, draft_us=self.draft_us
        )
