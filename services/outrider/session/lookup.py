"""Where the end of a text occurred before, and how it went on there: prompt lookup over one session's own committed tokens.

Each pair of tokens leads to the newest place that it was followed at, each place to the one before it of the same pair; the newest few are
compared with the end of the text, token by token, and the longest match is the place. One from which the text goes on as it did before
stays among them, however many newer ones its pair has. An entry or two for each token of the text, so a session's longest text bounds
them. Must not know what is done with a guess, or other sessions. Sources: Saxena 2023 (prompt lookup decoding); the chains of places are
those of LZ77 coders (Deutsch, RFC 1951, section 4); ours: a guess may go on over its own end (a text that repeats itself).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.session.lookup_odds import LookupOdds
from outrider.types.tree import IntArray

MAX_MATCH_LEN = 16  # how far back two places are compared
MAX_PLACES = 8  # of a pair that are compared with the end of the text: a pair that is met everywhere says little of what follows
_TOKEN_BITS = 32


class TextLookup:
    """Built over a prefix (int32), extended by each commit; whether it was right, used or not, is counted in `odds`.

    match_len: tokens before the place found that are the same as at the end, up to MAX_MATCH_LEN; 0 when there is none.
    """

    def __init__(self, prefix: IntArray, odds: LookupOdds) -> None:
        self.odds = odds
        self.match_len = 0
        self._place = 0  # what followed there is the guess
        self._tokens: list[int] = prefix.tolist()
        # Newest places where a token, and a pair of them, was followed, and for each place the one before it of the same pair; 0: none.
        self._singles: dict[int, int] = dict(zip(self._tokens[:-1], range(1, len(prefix)), strict=True))
        self._pairs, self._before = _chains(prefix)
        self._find(0, 0)

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on."""
        text, singles, pairs = self._tokens, self._singles, self._pairs
        for token in tokens:
            place, match_len, end = self._place, self.match_len, len(text)
            right = match_len > 0 and text[place] == token
            if match_len:
                self.odds.count(match_len, right=right)
            before = 0
            if end:
                singles[text[-1]] = end
            if end > 1:
                pair = text[-2] << _TOKEN_BITS | text[-1]
                before, pairs[pair] = pairs.get(pair, 0), end
            self._before.append(before)
            text.append(token)
            if right:
                self._find(place + 1, match_len + 1)
            else:
                self._find(0, 0)

    def guess(self, max_len: int) -> list[int]:
        """What followed the place, at most max_len tokens; [] if there is none."""
        if not self.match_len:
            return []
        period = len(self._tokens) - self._place
        followed = self._tokens[self._place : self._place + min(period, max_len)]
        return (followed * -(-max_len // period))[:max_len]

    def _find(self, followed: int, known_len: int) -> None:
        """The newest of the places that match longest. followed: one that is known to match so many tokens, one more than is compared
        where it goes on for long, however many places of its pair are newer; 0: none."""
        text = self._tokens
        end = len(text)
        place = self._pairs.get(text[-2] << _TOKEN_BITS | text[-1], 0) if end > 1 else 0
        if not place:
            self._place = self._singles.get(text[-1], 0) if end else 0
            self.match_len = min(1, self._place)
            return
        found, longest = followed, known_len
        for _ in range(MAX_PLACES):
            match_len = known_len if place == followed else self._match_len(place, end)
            if match_len > longest or (match_len == longest and place > found):
                found, longest = place, match_len
            place = self._before[place]
            if longest >= MAX_MATCH_LEN or not place:
                break
        self._place, self.match_len = found, min(MAX_MATCH_LEN, longest)

    def _match_len(self, place: int, end: int) -> int:
        """Tokens before the place that are the same as those at the end, of a pair's place: two of them are."""
        text, num, most = self._tokens, 2, min(MAX_MATCH_LEN, place)
        while num < most and text[place - num - 1] == text[end - num - 1]:
            num += 1
        return num


def _chains(prefix: IntArray) -> tuple[dict[int, int], list[int]]:
    """By pair the newest place that it was followed at, and by place the one before it of its pair, as `extend` makes them."""
    before = np.zeros(len(prefix), np.int64)
    if len(prefix) < 3:
        return {}, before.tolist()
    tokens = prefix.astype(np.int64)
    pairs = tokens[:-2] << _TOKEN_BITS | tokens[1:-1]
    order = np.argsort(pairs, kind="stable")
    ordered = pairs[order]
    is_same = ordered[1:] == ordered[:-1]
    before[order[1:][is_same] + 2] = order[:-1][is_same] + 2
    return dict(zip(pairs.tolist(), range(2, len(prefix)), strict=True)), before.tolist()
