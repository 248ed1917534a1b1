"""Rows of a table of replicas: who has which, and what every placement asks of either role. Must not know what a role's columns say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.coordinator.endpoint_order import order_of
from outrider.coordinator.interned import NOBODY
from outrider.coordinator.load_columns import LoadColumns


class ReplicaRows:
    """Columns up to `num_rows`; rows without a replica have `takes` False and are overwritten by the next one.

    takes: alive, not draining, not failed since its newest heartbeat. group: of those that it may be paired with. order: breaks ties.
    load: what it holds; lasts: as of LoadColumns.
    """

    def __init__(self, capacity: int, lasts: Sequence[bool]) -> None:
        self.num_rows = 0
        self.takes = np.zeros(capacity, np.bool_)
        self.group = np.full(capacity, NOBODY, np.int64)
        self.order = np.zeros(capacity, np.uint64)
        self.max_sessions = np.zeros(capacity)
        self.endpoints = [""] * capacity
        self.load = LoadColumns(lasts, capacity)
        self._free: list[int] = []

    def join(self, endpoint: str) -> int:
        """A row for a replica that was not here."""
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
