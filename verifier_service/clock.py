"""The one monotonic clock of the process, in the units sessions use. Must not be compared with another machine's without an offset."""

from __future__ import annotations

import time


def monotonic_us() -> int:
    """Microseconds of the monotonic clock."""
    return time.monotonic_ns() // 1000
