"""The committed tokens of a session: the only truth, with a rolling hash at every length that a guess may be based on.

Knows tokens, lengths and hashes. Must not know drafters, engines or rounds. A tail names the prefix it was drafted from by (base, hash);
this answers whether that prefix is ours (docs/architecture.md section 3, "hash mismatch means re-open").
"""

from __future__ import annotations

import numpy as np

from outrider.types.tree import IntArray, extend_hash, running_hashes


class CommittedPrefix:
    """An append-only token sequence. Hashes are kept from the initial length on, for no guess is based below it, and made when somebody
    asks for one: a session without drafters needs none."""

    def __init__(self, tokens: IntArray) -> None:
        self._tokens: list[int] = tokens.tolist()
        self._start = len(self._tokens)
        self._hashes: list[int] = []
        self.newest_begin = 0

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def start(self) -> int:
        """Length the session began with."""
        return self._start

    @property
    def hash(self) -> int:
        """Hash of everything committed."""
        return self.hash_at(len(self._tokens))

    def tokens_from(self, position: int) -> list[int]:
        """The committed tokens from an absolute position on."""
        return self._tokens[position:]

    def slice(self, begin: int, end: int) -> IntArray:
        """int32 tokens of [begin, end)."""
        return np.asarray(self._tokens[begin:end], np.int32)

    def hash_at(self, length: int) -> int:
        """Hash of the first `length` tokens; length in [start, len(self)]."""
        assert self._start <= length <= len(self._tokens)
        at = length - self._start
        if at >= len(self._hashes):
            self._hash_to(length)
        return self._hashes[at]

    def _hash_to(self, length: int) -> None:
        hashes = self._hashes
        if not hashes:
            hashes.append(extend_hash(0, self._tokens[: self._start]))
        known_len = self._start + len(hashes) - 1
        hashes += running_hashes(hashes[-1], self._tokens[known_len:length])

    def append(self, tokens: list[int]) -> None:
        """Extend the truth by one commit; `newest_begin` is where it began."""
        self.newest_begin = len(self._tokens)
        self._tokens += tokens
