"""Verifiers and drafters side by side: who has which row, and who may draft for whom.

A group is what `types.identity.incompatibility` compares: both sides of a pair have the same one. Must not know leases or placements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outrider.coordinator.drafter_table import DrafterTable
from outrider.coordinator.interned import NOBODY, Interned
from outrider.coordinator.verifier_table import VerifierTable
from outrider.types.fleet import Replica, Role
from outrider.types.identity import ModelIdentity


@dataclass(frozen=True, slots=True)
class Seat:
    """A row of one of the two tables, and the group that its replica is held in."""

    role: Role
    row: int
    endpoint: str
    group: int


class FleetTable:
    """At most `capacity` replicas of each role."""

    def __init__(self, capacity: int) -> None:
        self.verifiers = VerifierTable(capacity)
        self.drafters = DrafterTable(capacity)
        self.groups = Interned()
        self._rows: dict[Role, dict[str, int]] = {Role.VERIFIER: {}, Role.DRAFTER: {}}

    def row_of(self, role: Role, endpoint: str) -> int:
        """NOBODY when none of this role has the endpoint."""
        return self._rows[role].get(endpoint, NOBODY)

    def rows_of(self, role: Role, endpoints: Iterable[str]) -> list[int]:
        """Rows of those endpoints that a replica of this role has."""
        rows = self._rows[role]
        return [rows[endpoint] for endpoint in endpoints if endpoint in rows]

    def join(self, replica: Replica) -> Seat:
        """Its first heartbeat. Nobody of its role has its endpoint."""
        table = self.verifiers if replica.role is Role.VERIFIER else self.drafters
        row = self._rows[replica.role][replica.endpoint] = table.join(replica.endpoint)
        seat = Seat(replica.role, row, replica.endpoint, self.groups.hold(_group_of(replica.identity)))
        self.update(seat, replica)
        return seat

    def update(self, seat: Seat, replica: Replica) -> None:
        """A further heartbeat of the same process: its identity and endpoint do not change."""
        takes = not replica.draining
        if seat.role is Role.VERIFIER:
            self.verifiers.update(seat.row, replica, seat.group, self._drafter_row)
            self.verifiers.takes[seat.row] = takes
        else:
            self.drafters.update(seat.row, replica, seat.group)
            self.drafters.takes[seat.row] = takes

    def refuse(self, seat: Seat) -> None:
        """It takes nothing until its next heartbeat."""
        table = self.verifiers if seat.role is Role.VERIFIER else self.drafters
        table.takes[seat.row] = False

    def leave(self, seat: Seat) -> None:
        """It is gone."""
        del self._rows[seat.role][seat.endpoint]
        self.groups.release(seat.group)
        if seat.role is Role.VERIFIER:
            self.verifiers.leave(seat.row)
        else:
            self.drafters.leave(seat.row)
            self.verifiers.forget_drafter(seat.row)

    def _drafter_row(self, endpoint: str) -> int:
        return self._rows[Role.DRAFTER].get(endpoint, NOBODY)


def _group_of(identity: ModelIdentity) -> tuple[str, int, int, int]:
    return (identity.vocab_hash, identity.vocab_size, identity.noise_revision, identity.protocol_version)
