"""Who asks at what time: all clients for ever, or as many as the world's loads say, the first ones.

Knows the world's loads. Must not know requests or policies. Times as in the event loop, microseconds.
"""

from __future__ import annotations

from outrider_bench.simulation.world import Load, World


class Clients:
    """asking: those who ask, each again as soon as it was answered. due_us: when that changes, or the last load is over; None: never."""

    def __init__(self, world: World, start_us: int) -> None:
        self.asking = range(0)
        self.due_us: int | None = start_us
        self._start_us = start_us
        self._loads = list(world.loads) or [Load(world.num_sessions, 0)]
        self._stay = not world.loads

    def are_due(self, now_us: int) -> bool:
        """Whether it changes now who asks."""
        return bool(self._loads) and self.due_us is not None and self.due_us <= now_us

    def change(self, now_us: int) -> tuple[range, range]:
        """The next load begins: who begins to ask, and who goes away."""
        assert self.are_due(now_us)
        load, before = self._loads.pop(0), len(self.asking)
        self.asking = range(load.num_clients)
        self.due_us = None if self._stay else self._start_us + load.until_us
        return range(before, load.num_clients), range(load.num_clients, before)

    def are_gone(self, now_us: int) -> bool:
        """Whether the last load is over."""
        return not self._loads and self.due_us is not None and self.due_us <= now_us
