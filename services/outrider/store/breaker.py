"""When a server that failed is tried again: after a pause that doubles with each failure, by chance a little sooner or later.

A circuit breaker without a half: while it is open nothing is tried before the pause is over, and the first failure opens it. Knows times
that a clock tells. Must not know servers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0
JITTER = (0.5, 1.5)  # of a pause
CALM_S = 10.0  # without a failure, after which pauses are short again: a server that comes and goes is not asked ten times a second


class Breaker:
    """is_open: the newest attempt failed. clock: seconds that only grow; luck: evenly from [0, 1)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, luck: Callable[[], float] = random.random) -> None:
        self.is_open = False
        self._clock = clock
        self._luck = luck
        self._pause_s = FIRST_PAUSE_S
        self._failed_s = self._try_s = -CALM_S

    @property
    def wait_s(self) -> float:
        """Until it may be tried again; 0: now."""
        return max(0.0, self._try_s - self._clock()) if self.is_open else 0.0

    @property
    def allows(self) -> bool:
        """Whether to try now."""
        return self.wait_s == 0.0

    def failed(self) -> None:
        """The newest attempt failed."""
        now_s = self._clock()
        calm = not self.is_open and now_s - self._failed_s >= CALM_S
        self._pause_s = FIRST_PAUSE_S if calm else min(MAX_PAUSE_S, 2.0 * self._pause_s)
        least, most = JITTER
        self._failed_s, self.is_open = now_s, True
        self._try_s = now_s + self._pause_s * (least + (most - least) * self._luck())

    def succeeded(self) -> None:
        """The newest attempt did not fail."""
        self.is_open = False
