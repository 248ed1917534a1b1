"""What rounds of one way really brought, of drafts in turns or plain ones, in tokens for each step's time.

A course's promise is as old as the newest look, and was made of estimates that one wrong guess or one pause can halve: both come in
runs, and the model of rounds knows of none. Whether a session that drafts in turns does better without guesses, or by others, is asked
of what its rounds and those of its kind brought lately as well; and of plain rounds, which are expected to bring a token each, for where
they bring less guesses must not be held against what is expected of them. Must not know courses, sessions or what competes.
"""

from __future__ import annotations

KEEP = 0.99  # of what is known, with each token
LEAST_TOKENS = 16.0  # known, for it to count at all
HANDED_ON = 24.0  # tokens that a session takes what is known of its kind for: a text that suits the drafter less shows soon


class AchievedSpeed:
    """Fading sums of tokens and of time, in what keeps its length while a machine's speed drifts: steps of one row. (What a plain round is
    expected to take is none such: it is learned itself.) known: of others, for HANDED_ON tokens at most."""

    def __init__(self, known: AchievedSpeed | None = None) -> None:
        self._num_tokens = self._time = 0.0
        if known is not None and known._num_tokens:
            self._num_tokens = min(HANDED_ON, known._num_tokens)
            self._time = known._time * self._num_tokens / known._num_tokens

    def count(self, num_tokens: float, time: float) -> None:
        """A round brought so many tokens in so much time."""
        kept = KEEP**num_tokens
        self._num_tokens = kept * self._num_tokens + num_tokens
        self._time = kept * self._time + time

    @property
    def speed(self) -> float:
        """Tokens in a unit of time; 0 while too little is known."""
        return self._num_tokens / self._time if self._num_tokens >= LEAST_TOKENS and self._time else 0.0
