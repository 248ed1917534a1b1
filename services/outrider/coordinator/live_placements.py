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
    """verifier, drafters: what to take off the loads again. decode_us: as of Placement."""

    request_id: str
    tenant: str
    num_samples: int
    verifier: Entry
    drafters: tuple[Entry, ...]
    placed_s: float
    decode_us: float = 0.0


class LivePlacements:
    """By id, oldest first. Ids count from 1. Of several placements of one request the newest is known by the request's id."""

    def __init__(self, max_placements: int, lease_s: float) -> None:
        self._max_placements = max_placements
        self._lease_s = lease_s
        self._ids = itertools.count(1)
        self._live: OrderedDict[int, LivePlacement] = OrderedDict()
        self._of_request: dict[str, int] = {}

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
        self._of_request[placement.request_id] = placement_id
        return placement_id

    def pop(self, placement_id: int) -> LivePlacement | None:
        """None when it is unknown: finished before, forgotten, or another coordinator's."""
        placement = self._live.pop(placement_id, None)
        if placement is not None and self._of_request.get(placement.request_id) == placement_id:
            del self._of_request[placement.request_id]
        return placement

    def id_of(self, request_id: str) -> int:
        """Of a request's newest placement; 0 when it has none."""
        return self._of_request.get(request_id, 0)

    def expired(self, now_s: float) -> Iterator[LivePlacement]:
        """Takes out, one by one, those whose lease is over."""
        while self._live:
            placement_id, oldest = next(iter(self._live.items()))
            if now_s - oldest.placed_s <= self._lease_s:
                return
            self.pop(placement_id)
            yield oldest
