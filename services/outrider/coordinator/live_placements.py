"""Placements that nobody has finished: what each was counted as. Bounded in number and in age. Must not know replicas."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.coordinator.load_columns import Entry
from outrider.errors import Overloaded


@dataclass(frozen=True, slots=True)
class LivePlacement:
    """verifier, drafters: what to take off the loads again."""

    tenant: str
    num_samples: int
    verifier: Entry
    drafters: tuple[Entry, ...]
    placed_s: float


class LivePlacements:
    """By id, oldest first. Ids count from 1."""

    def __init__(self, max_placements: int, lease_s: float) -> None:
        self._max_placements = max_placements
        self._lease_s = lease_s
        self._ids = itertools.count(1)
        self._live: OrderedDict[int, LivePlacement] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def check_room(self) -> None:
        """Raises Overloaded when there are as many as there may be."""
        if len(self._live) >= self._max_placements:
            raise Overloaded(f"{len(self._live)} requests are placed and not finished, the most that the coordinator keeps count of")

    def add(self, placement: LivePlacement) -> int:
        """Its id."""
        placement_id = next(self._ids)
        self._live[placement_id] = placement
        return placement_id

    def pop(self, placement_id: int) -> LivePlacement | None:
        """None when it is unknown: finished before, forgotten, or another coordinator's."""
        return self._live.pop(placement_id, None)

    def expired(self, now_s: float) -> Iterator[LivePlacement]:
        """Takes out, one by one, those whose lease is over."""
        while self._live:
            placement_id, oldest = next(iter(self._live.items()))
            if now_s - oldest.placed_s <= self._lease_s:
                return
            del self._live[placement_id]
            yield oldest
