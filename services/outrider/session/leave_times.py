"""When a drafter that had used up its leave was given more: it rests until it hears of that, a way there and back before its next guesses.

Knows lengths of the text and times that are handed in. Must not know frames, links or what is made of it.
"""

from __future__ import annotations

from collections import deque

MAX_LEAVES = 64  # the newest; a drafter that is further behind is not known


class LeaveTimes:
    """Leaves in the order they were given. renewed_us: when it was given the leave that it goes on by, 0 = it has not stopped for want of
    leave, or has none yet; renewed_len: the text's length up to which it had guessed by then."""

    def __init__(self) -> None:
        self._leaves: deque[tuple[int, int]] = deque(maxlen=MAX_LEAVES)
        self._stopped_at = self.renewed_us = self.renewed_len = 0

    def give(self, until: int, now_us: int) -> None:
        """It may guess up to this length."""
        self._leaves.append((until, now_us))
        if self._stopped_at and not self.renewed_us and until > self._stopped_at:
            self.renewed_us, self.renewed_len = now_us, self._stopped_at

    def stop(self, at_len: int, known_len: int = 0) -> None:
        """It said that its leave was used up at this length, of the text with its guesses. known_len: of the text without, beyond which it
        has guessed whenever it stops: leave that reaches no further is forgotten, else every tail would look through all there was."""
        while self._leaves and self._leaves[0][0] <= known_len:
            self._leaves.popleft()
        self._stopped_at, self.renewed_us = at_len, 0
        for until, given_us in self._leaves:
            if until > at_len:
                self.renewed_us, self.renewed_len = given_us, at_len
                return

    def go_on(self) -> None:
        """It was heard of otherwise, or starts over."""
        self._stopped_at = self.renewed_us = self.renewed_len = 0
