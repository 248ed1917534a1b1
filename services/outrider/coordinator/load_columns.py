"""How much each replica holds, between heartbeats: what it reported, corrected by what was placed and finished since.

A heartbeat tells what a replica held when it was written, which may be before it heard of a placement that is already counted here. So
nothing says exactly which placements it contains, and this is the estimate, row by row and quantity by quantity:

    load = max(reported + fresh - gone, min(live + others, reported + young))

reported: by the newest heartbeat. fresh: placed since it arrived. young: placed since the one before it arrived, and not finished. gone:
placed earlier, and finished since it arrived. live: all that is placed and not finished. others: what nobody placed here (gateways that
place by themselves, another coordinator): reported less what is live and not young, the smaller of the two newest heartbeats'.
The left side is right when the heartbeat contains every earlier placement; the right one when it does not contain the young ones, and
`live + others` keeps them from being counted twice. A placement whose end nobody reports (its gateway died) inflates `live` alone, which
stops to matter two heartbeats later.
Some quantities pass before the placement ends (the wait for a first step): an end takes nothing off what was reported of these.
Must not know what the quantities are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.coordinator.step_times import FloatColumns


@dataclass(frozen=True, slots=True)
class Entry:
    """A placement's part in a row's load. stamp: of the replica that had the row then. beat: its heartbeats by then."""

    row: int
    stamp: int
    beat: int
    amounts: tuple[float, ...]


class LoadColumns:
    """A row count of `capacity`, and as many quantities as `lasts` has entries, each saying whether a placement holds it to its end.

    load: [quantities, capacity], the estimate; to be read only.
    """

    def __init__(self, lasts: Sequence[bool], capacity: int) -> None:
        shape = (len(lasts), capacity)
        self._lasts = np.array(lasts, np.float64)
        self.load: FloatColumns = np.zeros(shape)
        self._reported, self._fresh, self._older, self._gone, self._live = (np.zeros(shape) for _ in range(5))
        self._others, self._others_before = (np.zeros(shape) for _ in range(2))
        self._beats = [0] * capacity
        self._stamps = [0] * capacity

    def clear(self, row: int) -> None:
        """Another replica has the row: what was counted for the last one is void."""
        for column in (self.load, self._reported, self._fresh, self._older, self._gone, self._live, self._others, self._others_before):
            column[:, row] = 0.0
        self._stamps[row] += 1
        self._beats[row] = 0

    def report(self, row: int, amounts: Sequence[float]) -> None:
        """A heartbeat."""
        self._reported[:, row] = amounts
        self._older[:, row] = self._fresh[:, row]
        self._fresh[:, row] = self._gone[:, row] = 0.0
        self._beats[row] += 1
        self._others_before[:, row] = self._others[:, row]
        self._others[:, row] = np.maximum(0.0, self._reported[:, row] - (self._live[:, row] - self._older[:, row]))
        self._estimate(row)

    def add(self, row: int, amounts: tuple[float, ...]) -> Entry:
        """A placement."""
        self._fresh[:, row] += amounts
        self._live[:, row] += amounts
        self._estimate(row)
        return Entry(row, self._stamps[row], self._beats[row], amounts)

    def holds(self, entry: Entry) -> bool:
        """Whether the replica it was counted for still has the row."""
        return self._stamps[entry.row] == entry.stamp

    def remove(self, entry: Entry) -> None:
        """A placement has ended; one of a replica that is gone is no error."""
        if not self.holds(entry):
            return
        row, age = entry.row, self._beats[entry.row] - entry.beat
        self._live[:, row] -= entry.amounts
        if age == 0:
            self._fresh[:, row] -= entry.amounts
        else:
            self._gone[:, row] += self._lasts * entry.amounts
        if age == 1:
            self._older[:, row] -= entry.amounts
        self._estimate(row)

    def _estimate(self, row: int) -> None:
        reported, fresh = self._reported[:, row], self._fresh[:, row]
        seen = reported + fresh - self._gone[:, row]
        others = np.minimum(self._others[:, row], self._others_before[:, row])
        unseen = np.minimum(self._live[:, row] + others, reported + fresh + self._older[:, row])
        self.load[:, row] = np.maximum(0.0, np.maximum(seen, unseen))
