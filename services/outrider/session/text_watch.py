"""A text that nobody keeps the places of: whether it has begun to repeat itself all the same, asked now and then.

Must not know what follows from it. A search of the whole text for its end takes 7 microseconds for a hundred tokens and 280 for eight
thousand, and the longer the text the seldomer it is searched: about one a token, whatever its length.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

END_LEN = 8  # tokens that stand in the text before
WATCH_EVERY = 16  # tokens
WATCH_SHARE = 32  # and at least such a part of the text


class TextWatch:
    """Of a text that is so long now."""

    def __init__(self, length: int) -> None:
        self._next_len = length + WATCH_EVERY

    def is_due(self, length: int) -> bool:
        """Whether the text, which is so long now, is to be looked at; then not again for a while."""
        if length < self._next_len:
            return False
        self._next_len = length + max(WATCH_EVERY, length // WATCH_SHARE)
        return True


def repeats_itself(text: Sequence[int]) -> bool:
    """Whether its newest END_LEN tokens stand in it before."""
    whole = array("i", text).tobytes()
    end_bytes = END_LEN * array("i").itemsize
    return len(whole) > end_bytes and whole[-end_bytes:] in whole[: -array("i").itemsize]
