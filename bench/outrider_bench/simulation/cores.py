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
    """At most one piece of work per role. Slowdowns: at least 1.

    dues_us: by role, when it is done if nothing else begins or ends before; None when it rests.
    """

    def __init__(self, verify_slowdown: float, draft_slowdown: float) -> None:
        self.dues_us: list[int | None] = [None, None]
        self._slowdown = (verify_slowdown, draft_slowdown)
        self._left_us: list[float | None] = [None, None]
        self._now_us = 0

    def is_busy(self, role: Role) -> bool:
        """Whether the role computes."""
        return self.dues_us[role] is not None

    def is_done(self, role: Role, now_us: int) -> bool:
        """Whether the role's work ends now."""
        due_us = self.dues_us[role]
        return due_us is not None and due_us <= now_us

    def start(self, role: Role, work_us: float, now_us: int) -> None:
        """Begin work that would take work_us alone."""
        assert self._left_us[role] is None, "one thing at a time"
        self._change(role, work_us, now_us)

    def finish(self, role: Role, now_us: int) -> None:
        """The role's work is done."""
        self._change(role, None, now_us)

    def _change(self, role: Role, work_us: float | None, now_us: int) -> None:
        passed, factors = now_us - self._now_us, self._factors()
        left = [None if one is None else one - passed / factor for one, factor in zip(self._left_us, factors, strict=True)]
        left[role] = work_us
        self._left_us, self._now_us = left, now_us
        for each, (one, factor) in enumerate(zip(left, self._factors(), strict=True)):
            self.dues_us[each] = None if one is None else now_us + max(0, math.ceil(one * factor - _ROUNDING_US))

    def _factors(self) -> tuple[float, float]:
        return (1.0, 1.0) if None in self._left_us else self._slowdown
