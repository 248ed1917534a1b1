"""Which bytes each token id stands for, hashed canonically, so that a drafter and a verifier can prove they share a vocabulary.

Read from a model directory's tokenizer.json with the standard library alone: byte-level spellings (GPT-2's printable letters) and
SentencePiece spellings (a low bar for a space, <0xNN> for a byte) come down to the same bytes. Padding rows of the embedding are not
ids. Must not know torch or a tokenizer library, so that every service can use it. Source: Radford et al. 2019 section 2.2
(byte-level BPE); docs/architecture.md section 6 (compatibility of a pair).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE_SPACE = "\u2581"


@dataclass(frozen=True, slots=True)
class VocabularyEntry:
    """One real id: the bytes it adds to a text, and whether it is special (never part of the text)."""

    token_id: int
    content: bytes
    special: bool


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """entries: ascending by id, ids distinct."""

    entries: tuple[VocabularyEntry, ...]

    @property
    def size(self) -> int:
        """One more than the largest real id."""
        return self.entries[-1].token_id + 1 if self.entries else 0

    @property
    def missing_ids(self) -> tuple[int, ...]:
        """Ids below size that stand for nothing and must never be picked."""
        known = {entry.token_id for entry in self.entries}
        return tuple(token_id for token_id in range(self.size) if token_id not in known)

    @property
    def hash(self) -> str:
        """Hex SHA-256 over (id, special, length, bytes) of every entry, integers as 8 little-endian bytes."""
        digest = hashlib.sha256(b"outrider.vocabulary.1")
        for entry in self.entries:
            head = (entry.token_id, int(entry.special), len(entry.content))
            digest.update(b"".join(number.to_bytes(8, "little") for number in head) + entry.content)
        return digest.hexdigest()


def read_vocabulary(model_dir: Path) -> Vocabulary | None:
    """The vocabulary of model_dir/tokenizer.json; None when there is no such file."""
    path = model_dir / "tokenizer.json"
    return vocabulary_of(json.loads(path.read_text("utf-8"))) if path.is_file() else None


def vocabulary_of(tokenizer: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a parsed tokenizer.json."""
    table = tokenizer["model"]["vocab"]
    pieces = table.items() if isinstance(table, Mapping) else ((piece[0], index) for index, piece in enumerate(table))
    byte_level = '"ByteLevel"' in json.dumps([tokenizer.get("decoder"), tokenizer.get("pre_tokenizer")])
    entries = {int(token_id): VocabularyEntry(int(token_id), _content(piece, byte_level), False) for piece, token_id in pieces}
    for added in tokenizer.get("added_tokens") or ():
        token_id = int(added["id"])
        entries[token_id] = VocabularyEntry(token_id, str(added["content"]).encode(), bool(added.get("special", False)))
    return Vocabulary(tuple(entries[token_id] for token_id in sorted(entries)))


def unnamed_vocabulary(num_ids: int) -> Vocabulary:
    """For a model without a tokenizer: id i stands for the decimal digits of i. Such models match only among themselves."""
    return Vocabulary(tuple(VocabularyEntry(token_id, f"\x00{token_id}".encode(), False) for token_id in range(num_ids)))


def _content(piece: str, byte_level: bool) -> bytes:
    if byte_level:
        letters = byte_letters()
        if all(letter in letters for letter in piece):
            return bytes(letters[letter] for letter in piece)
        return piece.encode()
    matched = _BYTE_TOKEN.fullmatch(piece)
    if matched:
        return bytes([int(matched.group(1), 16)])
    return piece.replace(_SENTENCEPIECE_SPACE, " ").encode()


@functools.cache
def byte_letters() -> dict[str, int]:
    """The printable letter of each byte in byte-level vocabularies, inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    letters = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    letters.update({chr(256 + index): byte for index, byte in enumerate(hidden)})
    return letters
