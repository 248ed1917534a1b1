"""What sessions made of their time whose far-away drafter was asked, against plain decoding: whether the next one's is asked.

Four steps away and more a drafter costs before it brings anything: its session is opened, messages pass, and steps have guesses that
come too late. None of that is in a promise, and all of it in the tokens of a session's time. So asking has an account: what it brought more
than plain decoding would have in the same time, or less. While it is overdrawn, nobody is asked; what is known fades, so that it is tried
again some day, and what trying costs in the long run is a share of 1 - KEEP of the time for each token of credit. Plain decoding is thought
quicker than it is as long as little was seen of it: where asking brings more than a token a round, nothing else could bring more, and
nobody goes without to find that out. Source: our own, after the fashion of a bandit with two arms that is optimistic of the one it does not
take. Must not know sessions, courses or why asking pays.
"""

from __future__ import annotations

KEEP = 0.9995  # of what is known, with each token of either way
CREDIT = 12.0  # tokens that asking may have cost: more than one answer's bad luck, whose deviation is some four
HOPED_TOKENS = 16.0  # without asking, that are taken to have been a token a round: nothing is decoded plainly in less


class AskingRecord:
    """Fading sums of tokens and of time, in rounds of one row (a machine's speed drifts), without asking and with it: rounds without a
    drafter at work, and rounds with one, for only the kind that is in use is known as it is now."""

    def __init__(self, known: AskingRecord | None = None) -> None:
        self._tokens: list[float] = [0.0, 0.0] if known is None else list(known._tokens)
        self._rounds: list[float] = [0.0, 0.0] if known is None else list(known._rounds)

    def count(self, num_tokens: int, num_rounds: float, *, asked: bool) -> None:
        """So many tokens of a session in the time of so many rounds."""
        kept = KEEP**num_tokens
        self._tokens = [kept * tokens for tokens in self._tokens]
        self._rounds = [kept * steps for steps in self._rounds]
        self._tokens[asked] += num_tokens
        self._rounds[asked] += num_rounds

    def asks(self, slowdown: float = 1.0) -> bool:
        """Whether the drafter of a session that now begins is to be asked. slowdown: how much longer a round takes beside a drafter at
        work."""
        without, asked = self._tokens
        plain_speed = (without + HOPED_TOKENS) / (self._rounds[False] + HOPED_TOKENS)
        return asked - plain_speed * slowdown * self._rounds[True] >= -CREDIT
