"""How much text one token can stand for at most: what tells of a text that it has too many tokens before any are made.

Knows the parts of a tokenizer.json that may lose text on the way to tokens: a normalizer, a pre-tokenizer that removes, characters without
a token, added tokens that take the spaces beside them along. Where one of them might, nothing is promised. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.gateway.token_bytes import BYTE_LETTERS, SPACE_MARK, Spelling, TokenTable, spelling_of, steps_of

# Canonical composition makes at most so many bytes of UTF-8 one: three Hangul letters of nine bytes are a syllable of three, the sign for
# a unit of three bytes a letter of one.
COMPOSED_BYTES = 4
_MARK_BYTES = len(SPACE_MARK.encode())  # a text may hold the mark itself, which is then taken for a space of one byte
_KEEPING_PRE_TOKENIZERS = frozenset({"ByteLevel", "Metaspace", "Digits", "Split"})


def max_token_bytes(described: Mapping[str, Any], table: TokenTable | None) -> int | None:
    """described: a tokenizer.json. No token of any text stands for more bytes of it; None where text may stand for nothing."""
    if table is None or not _every_byte_has_a_token(described) or not _keeps_spaces(described):
        return None
    if not all(map(_is_keeping, steps_of(described.get("pre_tokenizer"), "pretokenizers"))):
        return None
    growth = [_bytes_made_one(step) for step in steps_of(described.get("normalizer"), "normalizers")]
    if 0 in growth:
        return None
    marked = _MARK_BYTES if spelling_of(described.get("decoder")) is Spelling.SENTENCEPIECE else 1
    return max(map(len, table.spelled), default=0) * max(growth, default=1) * marked


def _every_byte_has_a_token(described: Mapping[str, Any]) -> bool:
    """So that no character is left out, or stands with others for an unknown one."""
    model = described["model"]
    if model.get("type") != "BPE":
        return False
    if spelling_of(described.get("decoder")) is Spelling.SENTENCEPIECE:
        return bool(model.get("byte_fallback")) and all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(256))
    kinds = [step.get("type") for step in steps_of(described.get("pre_tokenizer"), "pretokenizers")]
    return "ByteLevel" in kinds and all(letter in model["vocab"] for letter in BYTE_LETTERS)


def _keeps_spaces(described: Mapping[str, Any]) -> bool:
    return not any(token.get("lstrip") or token.get("rstrip") for token in described.get("added_tokens", ()))


def _is_keeping(step: Mapping[str, Any]) -> bool:
    return step.get("type") in _KEEPING_PRE_TOKENIZERS and step.get("behavior") != "Removed"


def _bytes_made_one(step: Mapping[str, Any]) -> int:
    """By a normalizer's step, at most; 0: it may drop text."""
    if step.get("type") == "NFC":
        return COMPOSED_BYTES
    marks_spaces = step.get("type") == "Replace" and step.get("pattern") == {"String": " "} and step.get("content") == SPACE_MARK
    return 1 if marks_spaces or step.get("type") == "Prepend" else 0
