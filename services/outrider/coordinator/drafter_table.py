"""Every drafter of the fleet as columns, one row a drafter. Must not know verifiers, wishes, nor who is in lease."""

from __future__ import annotations

import numpy as np

from outrider.coordinator.endpoint_order import order_of
from outrider.coordinator.interned import NOBODY
from outrider.coordinator.load_columns import LoadColumns
from outrider.coordinator.step_times import FloatColumns
from outrider.types.fleet import Replica

UNKNOWN_DRAFT_US = 2_000.0  # a token, of a drafter that has drafted none
CROWDING = 1 / 8  # what each session it has adds to the time of a token: they share its steps
MIN_IN_TIME = 0.05  # of its tails; one that is later still is of no use anyway


class DrafterTable:
    """Columns are read by placement, up to `num_rows`; rows without a drafter have `takes` False. group: of verifiers it may draft for.

    token_us: a drafted token while it has no session, longer by the share of its tails that come too late. order: breaks ties.
    """

    def __init__(self, capacity: int) -> None:
        self.num_rows = 0
        self.takes = np.zeros(capacity, np.bool_)
        self.group = np.full(capacity, NOBODY, np.int64)
        self.max_sessions, self.token_us = np.zeros(capacity), np.full(capacity, UNKNOWN_DRAFT_US)
        self.order = np.zeros(capacity, np.uint64)
        self.endpoints = [""] * capacity
        self.load = LoadColumns((True,), capacity)
        self._free: list[int] = []

    def join(self, endpoint: str) -> int:
        """A row for a drafter that was not here."""
        row = self._free.pop() if self._free else self.num_rows
        self.num_rows = max(self.num_rows, row + 1)
        self.endpoints[row], self.order[row] = endpoint, order_of(endpoint)
        self.load.clear(row)
        return row

    def leave(self, row: int) -> None:
        """It is gone."""
        self.takes[row] = False
        self.group[row] = NOBODY
        self.load.clear(row)
        self._free.append(row)

    def update(self, row: int, replica: Replica, group: int) -> None:
        """A heartbeat."""
        self.group[row] = group
        self.max_sessions[row] = replica.max_sessions
        self.token_us[row] = (replica.draft_us or UNKNOWN_DRAFT_US) / max(MIN_IN_TIME, 1.0 - replica.late_share)
        self.load.report(row, (replica.num_sessions,))

    @property
    def num_sessions(self) -> FloatColumns:
        """[num_rows] by the newest estimate."""
        return self.load.load[0, : self.num_rows]

    def crowded_us(self, num_more: int) -> FloatColumns:
        """[num_rows] microseconds a drafted token with so many more sessions."""
        return np.asarray(self.token_us[: self.num_rows] * (1.0 + CROWDING * (self.num_sessions + num_more)), np.float64)
