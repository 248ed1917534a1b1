"""Every drafter of the fleet as columns, one row a drafter. Must not know verifiers, wishes, nor who is in lease."""

from __future__ import annotations

import numpy as np

from outrider.coordinator.replica_rows import ReplicaRows
from outrider.coordinator.step_times import FloatColumns
from outrider.types.fleet import Replica

UNKNOWN_DRAFT_US = 2_000.0  # a token, of a drafter that has drafted none
READ_SHARE = 1 / 8  # of a drafted token: what one of a prompt takes that is read, of a drafter that has measured none
CROWDING = 1 / 8  # what each session it has adds to the time of a token: they share its steps


class DrafterTable(ReplicaRows):
    """token_us: a drafted token while it has no session. read_us: a prompt's token that it has not read before."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, (True,))
        self.token_us = np.full(capacity, UNKNOWN_DRAFT_US)
        self.read_us = np.zeros(capacity)

    def update(self, row: int, replica: Replica, group: int) -> None:
        """A heartbeat."""
        self.group[row] = group
        self.max_sessions[row] = replica.max_sessions
        self.token_us[row] = replica.draft_us or UNKNOWN_DRAFT_US
        self.read_us[row] = replica.read_us or READ_SHARE * self.token_us[row]
        self.load.report(row, (replica.num_sessions,))

    @property
    def num_sessions(self) -> FloatColumns:
        """[num_rows] by the newest estimate."""
        return self.load.load[0, : self.num_rows]

    def crowded_us(self, num_more: int) -> FloatColumns:
        """[num_rows] microseconds a drafted token with so many more sessions."""
        return np.asarray(self.token_us[: self.num_rows] * (1.0 + CROWDING * (self.num_sessions + num_more)), np.float64)
