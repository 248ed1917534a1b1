"""The fleet as a coordinator last told it: for a gateway to place by itself while none answers.

Knows replicas as values. Must not know how they were learnt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from outrider.types.fleet import PairMeasurement, Replica, Role

# As many as a coordinator names at most.
MAX_DRAFTERS = 2


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

    def paired_drafters(self) -> dict[str, tuple[str, ...]]:
        """Drafters of the fleet that verifiers are connected to and that do not drain, by the verifier's endpoint, best first, MAX_DRAFTERS
        at most: for requests that no coordinator places. Verifiers with a drafter of their own are left to it."""
        able = {replica.endpoint for replica in self.replicas if replica.role is Role.DRAFTER and not replica.draining}
        left_alone = self.self_drafting()
        found = {one.endpoint: _best(one.pairs, able) for one in self.verifiers if one.endpoint not in left_alone}
        return {endpoint: drafters for endpoint, drafters in found.items() if drafters}


def _best(pairs: Mapping[str, PairMeasurement], able: Collection[str]) -> tuple[str, ...]:
    """Whose guesses come in time, then whose are right, then who is near; of those equal in all, the first by name."""

    def order(drafter: str) -> tuple[float, float, int, str]:
        pair = pairs[drafter]
        return pair.late_share, -(pair.acceptance_rate or 0.0), pair.round_trip_us, drafter

    connected = [drafter for drafter, pair in pairs.items() if pair.connected and drafter in able]
    return tuple(sorted(connected, key=order)[:MAX_DRAFTERS])


def merged(topologies: Sequence[Topology]) -> Topology | None:
    """One fleet of several tellings: of a replica that several know, the later coordinator's word counts. None of none."""
    replicas: dict[str, Replica] = {}
    latest = 0
    for topology in sorted(topologies, key=lambda topology: topology.epoch):
        replicas |= {replica.replica_id: replica for replica in topology.replicas}
        latest = topology.epoch
    return Topology(latest, tuple(replicas.values())) if topologies else None
