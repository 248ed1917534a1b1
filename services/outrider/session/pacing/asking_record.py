"""What sessions made of their time whose far-away drafter was asked, and what others did: whether the next one's is asked.

Four steps away and more a drafter costs before it brings anything: its session is opened, messages pass, and steps have guesses that
come too late. None of that is in a promise, and all of it in the tokens of a session's time. Who is hardly ever asked, or always, says
nothing of the other way, so what is known fades and each way is tried again. Source: our own, after the fashion of a bandit with two arms.
Must not know sessions, courses or why asking pays.
"""

from __future__ import annotations

KEEP = 0.9995  # of what is known, with each token of either way
ENOUGH_TOKENS = 64.0  # of a way, for its speed to be known: of some two thousand, so many are spent on the worse one


class AskingRecord:
    """Fading sums of tokens and of time, in steps of the target (a machine's speed drifts), without asking and with it."""

    def __init__(self, known: AskingRecord | None = None) -> None:
        self._tokens: list[float] = [0.0, 0.0] if known is None else list(known._tokens)
        self._steps: list[float] = [0.0, 0.0] if known is None else list(known._steps)

    def count(self, num_tokens: int, num_steps: float, *, asked: bool) -> None:
        """So many tokens of a session in the time of so many steps."""
        kept = KEEP**num_tokens
        self._tokens = [kept * tokens for tokens in self._tokens]
        self._steps = [kept * steps for steps in self._steps]
        self._tokens[asked] += num_tokens
        self._steps[asked] += num_steps

    @property
    def is_known(self) -> bool:
        """Whether both ways were tried lately."""
        return min(self._tokens) >= ENOUGH_TOKENS

    @property
    def asks(self) -> bool:
        """Whether the drafter of a session that now begins is to be asked: where that was quicker, or to find out."""
        without, asked = self._tokens
        if not self.is_known:
            return asked <= without
        return asked * self._steps[False] > without * self._steps[True]
