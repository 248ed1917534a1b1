"""What the log has of drafters that refuse sessions: why, once for each drafter, and how often, now and then.

A refusal costs a session its guesses and nothing else, so nobody hears of it otherwise: a drafter without room for any session looks like
one that is never asked. Lives on the engine thread. Must not know sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from verifier_service.clock import monotonic_us

_LOG = logging.getLogger(__name__)
MAX_DRAFTERS = 64
PAUSE_US = 60_000_000  # between two lines of one drafter


class RefusalLog:
    """Of at most MAX_DRAFTERS drafters, those heard of last. clock_us: microseconds that only grow."""

    def __init__(self, clock_us: Callable[[], int] = monotonic_us) -> None:
        self._clock_us = clock_us
        self._told: dict[str, tuple[int, int]] = {}  # when, and refusals since then

    def note(self, drafter: str, reason: str) -> None:
        """It has refused a session."""
        now_us = self._clock_us()
        told_us, num_since = self._told.pop(drafter, (now_us - PAUSE_US, 0))
        if now_us - told_us < PAUSE_US:
            self._told[drafter] = told_us, num_since + 1
            return
        self._told[drafter] = now_us, 0
        if len(self._told) > MAX_DRAFTERS:
            del self._told[next(iter(self._told))]
        more = f", and {num_since} more since this was last said" if num_since else ""
        _LOG.warning("drafter %s refuses a session%s, which goes on without its guesses: %s", drafter, more, reason)
