"""How the time that a replayed draft takes passes: as exactly as a model's would, which a sleep does not.

A sleep of 100 us takes 160 or more, and of guesses at such a price that is most. So the last stretch is spent awake, as a model on this
processor spends all of it; between two looks at the clock other threads of the process may have the interpreter. Must not know guesses.
"""

from __future__ import annotations

import select
import time
from typing import Protocol

# How late a sleep may end, and more (bench/LOG.md, forty-fifth session).
AWAKE_S = 0.0003


class ReplayPace(Protocol):
    """A clock that can be waited for."""

    def now_s(self) -> float:
        """Seconds since some moment."""
        ...

    def wait_until(self, moment_s: float) -> None:
        """Return at that moment of `now_s`; at once if it is over."""
        ...


class WallPace:
    """The time of day's."""

    def now_s(self) -> float:
        """See ReplayPace."""
        return time.perf_counter()

    def wait_until(self, moment_s: float) -> None:
        """See ReplayPace."""
        if (rest_s := moment_s - self.now_s() - AWAKE_S) > 0.0:
            time.sleep(rest_s)
        while self.now_s() < moment_s:
            select.select((), (), (), 0.0)  # gives the interpreter away at once; a sleep of nothing takes 50 us
