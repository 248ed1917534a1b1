"""What this side does for guesses, beside the target's step: frames, trees, leave, plans of the engine thread.

With one session that is a part of its round like any other. In company each waits for the handling of everybody's guesses, and that is what
decides whether guesses pay where rows are cheap. Told from the time between two steps that were both planned, with and without frames of
drafters, where as many sessions were in the step before. Such times differ by more than one frame's handling takes, whoever guesses; so a
turn with few of them says little, and one with a frame of each session says most: a least-squares line through nothing.
Lives on the engine thread. Must not know sessions, frames or policies.
"""

from __future__ import annotations

RATE = 1 / 16  # of a running estimate, once it rests on as many turns
MAX_SURPRISE = 3.0  # what a single turn (a machine that stalled) can be, in terms of what was expected
PRIOR = 0.25  # turns of all sessions that its being nothing counts for: a probe among many is no reason to think otherwise


class GuessHandling:
    """Follows turns."""

    def __init__(self) -> None:
        self._known_us = 0.0
        self._weight = PRIOR
        self._plain_us: dict[int, float] = {}  # of a turn without guesses, by the power of two below the number of sessions
        self._num_plain: dict[int, int] = {}

    @property
    def us(self) -> float:
        """Of one session's guesses in a round, in microseconds; 0 = not known, or nothing."""
        return max(0.0, self._known_us)

    def observe(self, num_sessions: int, num_frames: int, turn_us: float) -> None:
        """After a step of so many sessions, several, this thread worked so long until the next, and took in so many frames of drafters."""
        at = num_sessions.bit_length()
        plain_us = self._plain_us.get(at, 0.0)
        if not num_frames:
            self._num_plain[at] = num_seen = self._num_plain.get(at, 0) + 1
            self._plain_us[at] = _followed(plain_us, turn_us, num_seen)
        elif plain_us:
            num_guessing = min(num_frames, num_sessions)  # of one that sends several, what comes of the last is most of it
            self._follow((turn_us - plain_us) / num_guessing, (num_guessing / num_sessions) ** 2)

    def _follow(self, measured_us: float, weight: float) -> None:
        surprise_us = measured_us - self._known_us
        if self._known_us > 0.0:
            most_us = (MAX_SURPRISE - 1.0) * self._known_us
            surprise_us = min(most_us, max(-most_us, surprise_us))
        self._weight = (1.0 - RATE * weight) * self._weight + weight
        self._known_us += weight / self._weight * surprise_us


def _followed(known_us: float, measured_us: float, num_seen: int) -> float:
    if not known_us:
        return measured_us
    return known_us + max(RATE, 1.0 / num_seen) * (min(measured_us, MAX_SURPRISE * known_us) - known_us)
