"""The fleet as a coordinator last told it: for a gateway to place by itself while none answers.

Knows replicas as values. Must not know how they were learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.types.fleet import Replica, Role


@dataclass(frozen=True, slots=True)
class Topology:
    """epoch: of the coordinator that told it."""

    epoch: int
    replicas: tuple[Replica, ...]

    @property
    def verifiers(self) -> tuple[Replica, ...]:
        """In the order of their names, which is the same for every gateway."""
        found = (replica for replica in self.replicas if replica.role is Role.VERIFIER)
        return tuple(sorted(found, key=lambda replica: replica.replica_id))

    def self_drafting(self) -> frozenset[str]:
        """Endpoints of verifiers with a connected drafter that no coordinator knows of (one in their own process, or one configured at the
        verifier only): that none of the known drafters would pay says nothing about these."""
        known = {replica.endpoint for replica in self.replicas if replica.role is Role.DRAFTER}
        return frozenset(
            replica.endpoint
            for replica in self.verifiers
            if any(pair.connected and drafter not in known for drafter, pair in replica.pairs.items())
        )


def merged(topologies: Sequence[Topology]) -> Topology | None:
    """One fleet of several tellings: of a replica that several know, the later coordinator's word counts. None of none."""
    replicas: dict[str, Replica] = {}
    latest = 0
    for topology in sorted(topologies, key=lambda topology: topology.epoch):
        replicas |= {replica.replica_id: replica for replica in topology.replicas}
        latest = topology.epoch
    return Topology(latest, tuple(replicas.values())) if topologies else None
