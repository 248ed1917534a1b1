"""Who computes at the moment, and until when: a verifier and a drafter that slow each other down where they share cores.

Knows amounts of work (microseconds if alone) and virtual time. While both run, each needs its own factor longer. Must not know what the
work is.
"""

from __future__ import annotations

import math
from enum import IntEnum

_ROUNDING_US = 1e-6


class Role(IntEnum):
    """The two processes."""

    VERIFIER = 0
    DRAFTER = 1


class Cores:
    """At most one piece of work per role. Slowdowns: at least 1."""

    def __init__(self, verify_slowdown: float, draft_slowdown: float) -> None:
        self._slowdown = (verify_slowdown, draft_slowdown)
        self._left_us: list[float | None] = [None, None]
        self._now_us = 0

    def is_busy(self, role: Role) -> bool:
        """Whether the role computes."""
        return self._left_us[role] is not None

    def start(self, role: Role, work_us: float, now_us: int) -> None:
        """Begin work that would take work_us alone."""
        assert self._left_us[role] is None, "one thing at a time"
        self._pass(now_us)
        self._left_us[role] = work_us

    def due_us(self, role: Role) -> int | None:
        """When the role is done if nothing else begins or ends before; None when it rests."""
        left = self._left_us[role]
        return None if left is None else self._now_us + max(0, math.ceil(left * self._factor(role) - _ROUNDING_US))

    def finish(self, role: Role, now_us: int) -> None:
        """The role's work is done."""
        self._pass(now_us)
        self._left_us[role] = None

    def _factor(self, role: int) -> float:
        return 1.0 if None in self._left_us else self._slowdown[role]

    def _pass(self, now_us: int) -> None:
        passed = now_us - self._now_us
        if passed:
            self._left_us = [None if left is None else left - passed / self._factor(role) for role, left in enumerate(self._left_us)]
            self._now_us = now_us
