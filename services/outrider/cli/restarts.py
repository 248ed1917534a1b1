"""How often a service of `outrider up` is started again, and after which pause.

Knows names and times. Must not know processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """max_restarts: of one service, without one of its lives having lasted steady_s seconds. first_pause_s: before the second of them (the
    first is at once, for answers wait for it), doubling up to max_pause_s."""

    max_restarts: int = 3
    steady_s: float = 60.0
    first_pause_s: float = 1.0
    max_pause_s: float = 30.0


class Restarts:
    """Of all services of one deployment, by name. clock_s: monotonic."""

    def __init__(self, limits: RestartLimits | None = None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or RestartLimits()
        self._clock_s = clock_s
        self._begun_s = clock_s()
        self._since_s: dict[str, float] = {}
        self._num: dict[str, int] = {}

    def count(self, name: str) -> int:
        """Restarts of this service since it last lasted."""
        return self._num.get(name, 0)

    def next_pause_s(self, name: str) -> float | None:
        """It has ended: the pause before it is started again, which is counted; None when it has been often enough."""
        now_s = self._clock_s()
        if now_s - self._since_s.get(name, self._begun_s) >= self.limits.steady_s:
            self._num[name] = 0
        num = self._num[name] = self.count(name) + 1
        if num > self.limits.max_restarts:
            return None
        return 0.0 if num == 1 else min(self.limits.max_pause_s, self.limits.first_pause_s * 2.0 ** (num - 2))

    def started(self, name: str) -> None:
        """It runs again, as of now."""
        self._since_s[name] = self._clock_s()
