"""What bytes each token id stands for, read off a tokenizer's own decoder.

Knows the two spellings that nearly all decoder-only models use: byte-level (every byte has a printable stand-in, as GPT-2 defined it)
and sentencepiece-style (a lower-one-eighth block for a space, `<0x0A>` for a byte). Any other decoder is OPAQUE and needs the
tokenizer's own `decode`. Must not know requests, streams or text: see detokenizer.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE_STEPS = frozenset({"Replace", "ByteFallback", "Fuse", "Strip"})


class Spelling(Enum):
    """How a vocabulary writes bytes."""

    BYTE_LEVEL = 1
    SENTENCEPIECE = 2
    OPAQUE = 3


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Bytes of every id.

    pieces: id -> bytes as they appear in text; b"" for special tokens and ids without a token. spelled: id -> bytes of the token
    itself, special tokens included. strips_leading_space: whether a text that starts with a space loses it when it is decoded whole.
    """

    pieces: tuple[bytes, ...]
    spelled: tuple[bytes, ...]
    strips_leading_space: bool


def spelling_of(decoder: Mapping[str, Any] | None) -> Spelling:
    """The spelling that a `decoder` section of tokenizer.json undoes."""
    steps = steps_of(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling.BYTE_LEVEL
    if kinds == ["Metaspace"] and steps[0].get("replacement", SPACE_MARK) == SPACE_MARK:
        return Spelling.SENTENCEPIECE
    strips_whole = "Strip" not in kinds or "Fuse" in kinds[: kinds.index("Strip")]  # else it strips every token
    if set(kinds) <= _SENTENCEPIECE_STEPS and "Replace" in kinds and strips_whole and all(map(_is_understood, steps)):
        return Spelling.SENTENCEPIECE
    return Spelling.OPAQUE


def token_table(vocab: Mapping[str, int], special_ids: frozenset[int], decoder: Mapping[str, Any] | None) -> TokenTable:
    """The table of a BYTE_LEVEL or SENTENCEPIECE vocabulary; ids that no token has stand for nothing."""
    spelling = spelling_of(decoder)
    assert spelling is not Spelling.OPAQUE, "an opaque decoder has no table"
    has_byte_tokens = any(step.get("type") == "ByteFallback" for step in steps_of(decoder))
    size = max(vocab.values(), default=-1) + 1
    pieces, spelled = [b""] * size, [b""] * size
    for token, token_id in vocab.items():
        piece = byte_level_bytes(token) if spelling is Spelling.BYTE_LEVEL else sentencepiece_bytes(token, has_byte_tokens)
        if token_id in special_ids:
            spelled[token_id] = token.encode()
        else:
            pieces[token_id] = spelled[token_id] = piece
    return TokenTable(tuple(pieces), tuple(spelled), _strips_leading_space(decoder))


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; one with a character outside the alphabet (an added token) stands for itself."""
    try:
        return bytes(_BYTE_OF_LETTER[letter] for letter in token)
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str, has_byte_tokens: bool = True) -> bytes:
    """Bytes of a sentencepiece-style token."""
    match = _BYTE_TOKEN.fullmatch(token) if has_byte_tokens else None
    if match is not None:
        return bytes([int(match[1], 16)])
    return token.replace(SPACE_MARK, " ").encode()


def steps_of(part: Mapping[str, Any] | None, inner: str = "decoders") -> list[Mapping[str, Any]]:
    """Of a tokenizer.json's part, in their order; inner: what the steps of its sequences are called."""
    if part is None:
        return []
    if part.get("type") == "Sequence":
        return [step for one in part.get(inner, ()) for step in steps_of(one, inner)]
    return [part]


def _is_understood(step: Mapping[str, Any]) -> bool:
    """Whether a sentencepiece-style step does no more than the table can say: the space mark, and one space stripped at the start."""
    if step.get("type") == "Replace":
        return step.get("pattern") == {"String": SPACE_MARK} and step.get("content") == " "
    if step.get("type") == "Strip":
        return step.get("content") == " " and step.get("start", 0) <= 1 and step.get("stop", 0) == 0
    return True


def _strips_leading_space(decoder: Mapping[str, Any] | None) -> bool:
    for step in steps_of(decoder):
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start", 0) > 0:
            return True
        if step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return True
    return False


def _letters() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 bytes are themselves, the others follow from code point 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(256 + rank): byte for rank, byte in enumerate(byte for byte in range(256) if byte not in printable)})
    return letters


_BYTE_OF_LETTER = _letters()
BYTE_LETTERS = frozenset(_BYTE_OF_LETTER)
