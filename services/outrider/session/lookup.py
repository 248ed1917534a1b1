"""Where the end of a text occurred before, and how it went on there: prompt lookup over one session's own committed tokens.

An index from the hashes of n-grams to the newest position each was followed at, extended in constant time per token, bounded by two
generations of entries: when one is full, the one before it is forgotten. A hash only finds a place; the tokens there are compared. Must not
know what is done with a guess, or other sessions. Sources: Saxena 2023 (prompt lookup decoding); ours: the newest occurrence instead of the
first, several lengths in one pass, and a guess may go on over its own end (a text that repeats itself).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider.session.lookup_odds import LookupOdds
from outrider.types.tree import IntArray

NGRAM_LENS = (8, 5, 3, 2, 1)  # ends of the text that are looked for, the longest first
MAX_MATCH_LEN = 16  # how far back two places are compared
GENERATION_LEN = 1 << 15  # tokens: what is remembered goes back at least so far, and at most twice as far
_SHORTEST_FIRST = tuple(sorted((length, at) for at, length in enumerate(NGRAM_LENS)))
_LONGEST = max(NGRAM_LENS)
_MASK64 = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15
_FACTORS = tuple(pow(_FACTOR, power, 1 << 64) for power in range(1, _LONGEST + 1))
_Index = dict[int, int]
_Sums = tuple[int, int, int, int, int, int, int, int]


class TextLookup:
    """Built over a prefix (int32), extended by each commit; whether it was right, used or not, is counted in `odds`.

    match_len: tokens before the place found that are the same as at the end, up to MAX_MATCH_LEN; 0 when there is none.
    """

    def __init__(self, prefix: IntArray, odds: LookupOdds, generation_len: int = GENERATION_LEN) -> None:
        self.odds = odds
        self.match_len = 0
        self._place = 0  # what followed there is the guess
        self._tokens: list[int] = prefix.tolist()
        self._generation_len = generation_len
        newest = max(0, len(prefix) - generation_len)
        self._older = _indexes(prefix, max(0, newest - generation_len), newest)
        self._newer = _indexes(prefix, newest, len(prefix))
        self._num_newer = len(prefix) - newest
        self._sums = _sums_at_end(self._tokens)  # hash of the last n tokens for n from 1 to _LONGEST
        self._find()

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on."""
        for token in tokens:
            right = self.match_len > 0 and self._tokens[self._place] == token
            if self.match_len:
                self.odds.count(self.match_len, right=right)
            self._append(token)
            self._find(self._place + 1 if right else None)

    def guess(self, max_len: int) -> list[int]:
        """What followed the newest earlier occurrence of the longest end of the text that has one, at most max_len tokens; [] if none."""
        if not self.match_len:
            return []
        period = len(self._tokens) - self._place
        followed = self._tokens[self._place : self._place + min(period, max_len)]
        return (followed * -(-max_len // period))[:max_len]

    def _append(self, token: int) -> None:
        """The n-grams that ended here are followed by this token."""
        if self._num_newer == self._generation_len:
            self._older, self._newer, self._num_newer = self._newer, [{} for _ in NGRAM_LENS], 0
        sums, place = self._sums, len(self._tokens)
        for index, length in zip(self._newer, NGRAM_LENS, strict=True):
            if length <= place:
                index[sums[length - 1]] = place
        self._num_newer += 1
        self._tokens.append(token)
        self._sums = _sums_after(sums, token)

    def _find(self, expected: int | None = None) -> None:
        """Look for the end of the text. expected: the place after the one found before, which matches one token more than that did.

        Where an end of two tokens did not occur, none of three did: most texts are new, and looking ends after one or two lengths.
        """
        sums, end, found, longest = self._sums, len(self._tokens), 0, 0
        for length, at in _SHORTEST_FIRST:
            if length > end:
                break
            key = sums[length - 1]
            place = self._newer[at].get(key) or self._older[at].get(key)
            if place is None:
                break
            found, longest = place, length
        if not found or self._tokens[found - longest : found] != self._tokens[end - longest :]:
            self.match_len = 0
            return
        known_len = self.match_len + 1 if found == expected else self._common_len(found, longest)
        self.match_len, self._place = min(MAX_MATCH_LEN, known_len), found

    def _common_len(self, place: int, known_len: int) -> int:
        """Tokens before the place that are the same as those at the end."""
        end, longest = len(self._tokens), min(MAX_MATCH_LEN, place)
        while known_len < longest and self._tokens[place - known_len - 1] == self._tokens[end - known_len - 1]:
            known_len += 1
        return known_len


def _sums_at_end(tokens: Sequence[int]) -> _Sums:
    """The same sums as in `_indexes`; those of more tokens than there are mean nothing."""
    sums: _Sums = (0, 0, 0, 0, 0, 0, 0, 0)
    for token in tokens[-_LONGEST:]:
        sums = _sums_after(sums, token)
    return sums


def _sums_after(sums: _Sums, token: int) -> _Sums:
    """With one token more, each is made of that of one token less. Written out, for a loop takes twice as long, at every token."""
    one, two, three, four, five, six, seven, _ = sums
    new = token + 1
    return (
        new * _FACTOR & _MASK64,
        (new + one) * _FACTOR & _MASK64,
        (new + two) * _FACTOR & _MASK64,
        (new + three) * _FACTOR & _MASK64,
        (new + four) * _FACTOR & _MASK64,
        (new + five) * _FACTOR & _MASK64,
        (new + six) * _FACTOR & _MASK64,
        (new + seven) * _FACTOR & _MASK64,
    )


def _indexes(prefix: IntArray, begin: int, end: int) -> list[_Index]:
    """For each length the n-grams that are followed at a position in [begin, end), with the newest such position."""
    if begin >= end:
        return [{} for _ in NGRAM_LENS]
    first = max(0, begin - _LONGEST)
    window = prefix[first:end].astype(np.uint64) + np.uint64(1)
    sums: list[npt.NDArray[np.uint64]] = [np.zeros(len(window) + 1, np.uint64)]  # [number of tokens summed][position - first]
    for num_back, factor in enumerate(_FACTORS):
        following = sums[-1].copy()
        following[num_back + 1 :] += window[: max(0, len(window) - num_back)] * np.uint64(factor)
        sums.append(following)
    indexes: list[_Index] = []
    for length in NGRAM_LENS:
        positions = range(max(begin, length), end)
        keys = sums[length][positions.start - first : end - first] if positions else sums[length][:0]
        indexes.append(dict(zip(keys.tolist(), positions, strict=True)))
    return indexes
