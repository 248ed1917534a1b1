"""How the end of a text went on in other answers: guesses from what a shared store knows, beside those from the session's own text.

`SharedTexts` is the seam: whoever implements it answers at once, from memory. What is found is followed token by token while the truth
agrees, and asked for anew where it does not, or where it is nearly used up. Wrong texts cost rows of a step, never a token. Must not know
where the texts come from (outrider.store), other sessions, rounds or drafters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.session.lookup import MAX_MATCH_LEN
from outrider.session.lookup_odds import LookupOdds
from outrider.types.tree import IntArray

END_LEN = 16  # tokens of a text's end that are looked for at most
LEAST_LEFT = 8  # known tokens ahead, below which more are asked for
FIRST_SHARED_RIGHTS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)  # of each class of lookup_odds: other answers agree less than a text with itself


class SharedTexts(Protocol):
    """What is known of other answers, for one session."""

    def find(self, end: Sequence[int]) -> tuple[int, Sequence[int]]:
        """(tokens of the end that are the same there, what followed); (0, ()) if nothing is known. end: the newest tokens, END_LEN or
        all. Takes microseconds and never raises: it is called by the thread that steps the target."""
        ...


class NoTexts:
    """Nothing is shared."""

    def find(self, end: Sequence[int]) -> tuple[int, Sequence[int]]:
        """Nothing."""
        return 0, ()


NO_TEXTS = NoTexts()


class SharedLookup:
    """Built over a prefix (int32), extended by each commit; whether it was right, used or not, is counted in `odds`.

    match_len: tokens before the place found that are the same as at the end, as far as it is known, up to MAX_MATCH_LEN; 0: nothing found.
    """

    def __init__(self, texts: SharedTexts, prefix: IntArray, odds: LookupOdds) -> None:
        self.odds = odds
        self.match_len = 0
        self._texts = texts
        self._end: list[int] = prefix[-END_LEN:].tolist()
        self._followed: Sequence[int] = ()
        self._at = 0  # in _followed: the next token's guess
        self._find()

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on."""
        for token in tokens:
            self._compare(token)
        self._end = [*self._end, *tokens][-END_LEN:]
        if len(self._followed) - self._at < LEAST_LEFT:
            self._find()

    def guess(self, max_len: int) -> Sequence[int]:
        """What followed there, at most max_len tokens; nothing if none is known."""
        return self._followed[self._at : self._at + max_len]

    def _compare(self, token: int) -> None:
        if not self.match_len:
            return
        right = self._followed[self._at] == token
        self.odds.count(self.match_len, right=right)
        self._at += 1
        self.match_len = min(MAX_MATCH_LEN, self.match_len + 1)
        if not right or self._at == len(self._followed):
            self._followed, self._at, self.match_len = (), 0, 0

    def _find(self) -> None:
        """Look for the end of the text; what is known by now stays where that tells less."""
        match_len, followed = self._texts.find(self._end)
        left = self._followed[self._at :]
        if len(followed) > len(left):
            goes_on = list(followed[: len(left)]) == list(left)  # the same text, as far as it was known
            self.match_len = min(MAX_MATCH_LEN, max(match_len, self.match_len) if goes_on else match_len)
            self._followed, self._at = followed, 0
