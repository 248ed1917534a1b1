"""Tokens to text, one token at a time, never splitting a UTF-8 character.

Two decoders of one shape. `ByteTextDecoder` knows the bytes of every token and is exact: at most three bytes ever wait, and the text
does not depend on how tokens were grouped into rounds. `WindowTextDecoder` serves tokenizers that only offer `decode(ids)`: it decodes
a short window and takes what goes beyond the text that has left.
Invalid UTF-8 becomes U+FFFD per maximal invalid part (the Unicode recommendation), so a bad byte never hides the good ones after it.
Must not know stop strings, requests or vocabularies.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

from outrider.gateway.token_bytes import TokenTable

REPLACEMENT = "�"
WINDOW_CONTEXT_TOKENS = 6
MAX_WINDOW_TOKENS = 32
MAX_HELD_CHARACTERS = 3


class TextDecoder(Protocol):
    """Text of a growing token sequence."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token; empty while a character is incomplete."""
        ...

    def push_run(self, token_ids: Sequence[int]) -> str:
        """The same of several tokens at once."""
        ...

    def flush(self) -> str:
        """The end: what still waited, incomplete characters as U+FFFD. Call once."""
        ...


class ByteTextDecoder:
    """Exact decoding from a table of bytes. at_start: nothing visible comes before (some tokenizers then drop a leading space)."""

    def __init__(self, table: TokenTable, at_start: bool) -> None:
        self._pieces = table.pieces
        self._strip = at_start and table.strips_leading_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """See TextDecoder; ids beyond the table (padding rows of a vocabulary) stand for nothing."""
        piece = self._pieces[token_id] if token_id < len(self._pieces) else b""
        if self._strip and piece:
            self._strip = False
            piece = piece.removeprefix(b" ")
        return self._utf8.decode(piece)

    def push_run(self, token_ids: Sequence[int]) -> str:
        """See TextDecoder."""
        if self._strip:
            return "".join([self.push(token_id) for token_id in token_ids])
        pieces, num_pieces = self._pieces, len(self._pieces)
        return self._utf8.decode(b"".join([pieces[token_id] for token_id in token_ids if token_id < num_pieces]))

    def flush(self) -> str:
        """See TextDecoder."""
        return self._utf8.decode(b"", final=True)


class WindowTextDecoder:
    """Decoding through `decode(ids) -> text` alone.

    The window starts with up to WINDOW_CONTEXT_TOKENS tokens whose text has left, because a token's spelling may depend on its
    neighbours (leading spaces, joined pieces). An incomplete character shows as up to MAX_HELD_CHARACTERS trailing U+FFFD, which wait;
    earlier ones are invalid bytes and leave.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context_ids: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(context_ids)
        self._num_sent = 0
        self._restart()

    def push(self, token_id: int) -> str:
        """See TextDecoder."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        certain_len = max(len(text.rstrip(REPLACEMENT)), len(text) - MAX_HELD_CHARACTERS)
        new = text[self._num_sent : certain_len]
        self._num_sent = max(self._num_sent, certain_len)
        if certain_len == len(text) or len(self._ids) >= MAX_WINDOW_TOKENS:
            self._restart(num_held=max(0, len(text) - self._num_sent))
        return new

    def push_run(self, token_ids: Sequence[int]) -> str:
        """See TextDecoder."""
        return "".join([self.push(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """See TextDecoder."""
        return self._decode(self._ids)[self._num_sent :]

    def _restart(self, num_held: int = 0) -> None:
        """Keep the window's end as context; all of its text but the last num_held characters has left."""
        self._ids = self._ids[-WINDOW_CONTEXT_TOKENS:]
        self._num_sent = max(0, len(self._decode(self._ids)) - num_held)
