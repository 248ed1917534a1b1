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
# Tokens of a context, until one shows where a word and a character begin.
_CONTEXT_SIZES = (*range(WINDOW_CONTEXT_TOKENS, WINDOW_CONTEXT_TOKENS + 4), MAX_WINDOW_TOKENS // 2, MAX_WINDOW_TOKENS - 1)


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

    The window starts with tokens whose text has left, WINDOW_CONTEXT_TOKENS or a few more, because a token's spelling may depend on its
    neighbours (leading spaces, joined pieces). An incomplete character shows as up to MAX_HELD_CHARACTERS trailing U+FFFD, which wait;
    earlier ones are invalid bytes and leave. A decoder that takes bytes for characters run by run spells a whole run as U+FFFD while its
    last character is incomplete, also what has left of it: such tokens wait until the text goes on from there, or cannot any more.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context_ids: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(context_ids[-MAX_WINDOW_TOKENS:])
        self._sent = ""  # of the window's text
        self._num_waiting = 0  # tokens since the window's text went on from what has left
        self._restart()

    def push(self, token_id: int) -> str:
        """See TextDecoder."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if not text.startswith(self._sent):
            self._num_waiting += 1
            if self._num_waiting <= MAX_HELD_CHARACTERS:
                return ""
            self._ids, self._sent = self._ids[-self._num_waiting :], ""  # no character has so many bytes
            text = self._decode(self._ids)
        self._num_waiting = 0
        certain_len = max(len(self._sent), len(text.rstrip(REPLACEMENT)), len(text) - MAX_HELD_CHARACTERS)
        new, self._sent = text[len(self._sent) : certain_len], text[:certain_len]
        if certain_len == len(text) or len(self._ids) >= MAX_WINDOW_TOKENS:
            self._restart(num_held=len(text) - certain_len)
        return new

    def push_run(self, token_ids: Sequence[int]) -> str:
        """See TextDecoder."""
        return "".join([self.push(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """See TextDecoder."""
        text = self._decode(self._ids)
        return text[len(self._sent) :] if text.startswith(self._sent) else self._decode(self._ids[-self._num_waiting :])

    def _restart(self, num_held: int = 0) -> None:
        """Keep the window's end as context; all of its text but the last num_held characters has left. A context that shows no text says
        nothing of a space after it, and one that begins inside a character may spell what follows as invalid bytes."""
        for num_tokens in _CONTEXT_SIZES:
            text = self._decode(self._ids[-num_tokens:])
            if text and not text.startswith(REPLACEMENT):
                break
        else:
            num_tokens = WINDOW_CONTEXT_TOKENS
            text = self._decode(self._ids[-num_tokens:])
        self._ids = self._ids[-num_tokens:]
        self._sent = text[: max(0, len(text) - num_held)]
