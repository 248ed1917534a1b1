"""The committed text of a drafter's session: the only truth it knows, and the rolling hash of each of its prefixes.

Knows how commits overlap. Must not know trees, sources or frames beyond a commit's numbers. Every commit is untrusted: it is checked as
a whole before a token of it is kept, so that a refused one leaves no trace.
"""

from __future__ import annotations

from outrider.errors import ProtocolViolation
from outrider.types.tree import running_hashes


class CommittedText:
    """Tokens from position 0 on, at most max_len of them, all below vocab_size."""

    def __init__(self, vocab_size: int, max_len: int) -> None:
        self.tokens: list[int] = []
        self._hashes: list[int] = [0]
        self._vocab_size = vocab_size
        self.max_len = max_len

    def __len__(self) -> int:
        return len(self.tokens)

    def prefix_hash(self, length: int) -> int:
        """Rolling hash of the first `length` tokens."""
        return self._hashes[length]

    def extend(self, begin: int, tokens: list[int], prefix_hash: int | None) -> list[int]:
        """Take in tokens of positions [begin, begin + len(tokens)); returns those that were not known before.

        prefix_hash: what the sender's text hashes to after them (None: not stated). Raises ProtocolViolation on a gap, a
        disagreement, a token outside the vocabulary, too long a text or another hash.
        """
        known = len(self.tokens)
        end = begin + len(tokens)
        if not 0 <= begin <= known:
            raise ProtocolViolation(f"commit begins at {begin}, but only {known} tokens are known here")
        if end > self.max_len:
            raise ProtocolViolation(f"commit reaches {end} tokens, but the session may hold {self.max_len}")
        overlap = min(end, known) - begin
        if tokens[:overlap] != self.tokens[begin : begin + overlap]:
            raise ProtocolViolation(f"commit at {begin} disagrees with tokens committed before")
        fresh = tokens[overlap:]
        hashes = self._hashes_after(fresh)
        stated = hashes[-1] if fresh else self._hashes[end]
        if prefix_hash is not None and prefix_hash != stated:
            raise ProtocolViolation(f"prefix of {end} tokens hashes to {stated:#x} here, the commit says {prefix_hash:#x}")
        self.tokens += fresh
        self._hashes += hashes
        return fresh

    def _hashes_after(self, fresh: list[int]) -> list[int]:
        if fresh and not (min(fresh) >= 0 and max(fresh) < self._vocab_size):
            wrong = next(token for token in fresh if not 0 <= token < self._vocab_size)
            raise ProtocolViolation(f"committed token {wrong} is outside the vocabulary of {self._vocab_size}")
        return running_hashes(self._hashes[-1], fresh)
