"""How soon a place becomes free, told from how long places were held of late: the pause that a refusal suggests.

With n places held for a time t each, one ends every t / n. Knows nothing of who holds them; the caller brings the time, in seconds.
Must not know grpc or requests.
"""

from __future__ import annotations

FIRST_HELD_S = 1.0  # until one has ended: an ordinary answer
MEMORY = 1 / 8  # weight of the newest end
MIN_RETRY_S, MAX_RETRY_S = 0.01, 30.0  # sooner would be no relief; later is no estimate


class Turnover:
    """Tell it of every place that was given back."""

    def __init__(self) -> None:
        self._held_s = FIRST_HELD_S

    def observe(self, held_s: float) -> None:
        """A place was held for so long."""
        self._held_s += MEMORY * (max(0.0, held_s) - self._held_s)

    def retry_after_s(self, num_held: int) -> float:
        """Until one of so many may be expected to be free."""
        return min(MAX_RETRY_S, max(MIN_RETRY_S, self._held_s / max(1, num_held)))
