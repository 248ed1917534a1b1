"""When enough was seen of drafters for the model of rounds to be asked for the first time. Must not know what was seen in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.session.pacing.contract import SessionView

FIRST_TESTS = 8  # guesses judged before the model is asked for the first time, or
FLAWLESS_TESTS = 4  # or so many, where none was wrong: more would be drafted as shortly as the first, and say the same
FIRST_ROUNDS = 4  # rounds in which some were: who is wrong at once in each of them has said enough, and far away each costs three steps
MAX_FIRST_TOKENS = 24


class FirstLessons:
    """Of all sessions of a policy together; an answer without a drafter teaches nothing, and need not be waited for."""

    def __init__(self) -> None:
        self._num_tests = self._num_rounds = 0

    def are_over(self, sessions: Sequence[SessionView], begin_of: Callable[[SessionView], int]) -> bool:
        """Asked at each plan until they are. sessions: of the plan; begin_of: committed length when a session was first seen."""
        num_tests = sum(session.num_tested for session in sessions)
        if num_tests > self._num_tests:
            self._num_tests, self._num_rounds = num_tests, self._num_rounds + 1
        num_tokens = sum(session.committed_len - begin_of(session) for session in sessions)
        least = FLAWLESS_TESTS if all(session.is_flawless for session in sessions) else FIRST_TESTS
        return num_tokens >= MAX_FIRST_TOKENS or num_tests >= least or self._num_rounds >= FIRST_ROUNDS
