"""What this side does for a session's guesses in a round, beside the target's step: frames, trees, leave, plans of the engine thread.

With one session that is a part of its round like any other. In company each waits for the handling of everybody's guesses, and that is what
decides whether guesses pay where rows are cheap. Told from the time between two steps that were both planned, with and without guesses, of
about as many sessions.
Lives on the engine thread. Must not know sessions, frames or policies.
"""

from __future__ import annotations

RATE = 1 / 16  # of a running estimate, once it rests on as many turns
MAX_SURPRISE = 3.0  # what a single turn (a machine that stalled) can be, in terms of what was expected


class GuessHandling:
    """us: of one session's guesses in a round, in microseconds; 0 = not known."""

    def __init__(self) -> None:
        self.us = 0.0
        self._num_seen = 0
        self._plain_us: dict[int, float] = {}  # of a turn without guesses, by the power of two below the number of sessions
        self._num_plain: dict[int, int] = {}

    def observe(self, num_sessions: int, num_guessing: int, turn_us: float) -> None:
        """Between two steps of the same sessions, several, this thread worked so long; num_guessing of them had guesses, or drafters at
        work."""
        at = num_sessions.bit_length()
        plain_us = self._plain_us.get(at, 0.0)
        if not num_guessing:
            self._num_plain[at] = num_seen = self._num_plain.get(at, 0) + 1
            self._plain_us[at] = _followed(plain_us, turn_us, num_seen)
        elif plain_us:
            self._num_seen += 1
            self.us = _followed(self.us, max(0.0, turn_us - plain_us) / num_guessing, self._num_seen)


def _followed(known_us: float, measured_us: float, num_seen: int) -> float:
    if not known_us:
        return measured_us
    return known_us + max(RATE, 1.0 / num_seen) * (min(measured_us, MAX_SURPRISE * known_us) - known_us)
