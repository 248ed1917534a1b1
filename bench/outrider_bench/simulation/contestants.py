"""Policies by short names: `pearl` finds its own draft length, `serial:4` is given one. Must not know worlds."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import InvalidRequest
from outrider.session.pacing.contract import Pacing
from outrider.session.pacing.draft_length import MAX_DRAFT_LEN
from outrider.session.pacing.registry import make_pacing


@dataclass(frozen=True, slots=True)
class Contestant:
    """A registered policy, and its draft length where that is given."""

    name: str
    draft_len: int | None = None

    @staticmethod
    def parse(text: str) -> Contestant:
        """`name` or `name:length`; raises InvalidRequest on an unknown name or a length out of range."""
        name, _, length = text.partition(":")
        if length and not (length.isdecimal() and 1 <= int(length) <= MAX_DRAFT_LEN):
            raise InvalidRequest("policies", f"{text!r}: a draft length is a number in [1, {MAX_DRAFT_LEN}]")
        make_pacing(name)
        return Contestant(name, int(length) if length else None)

    def pacing(self) -> Pacing:
        """A fresh policy."""
        return make_pacing(self.name, self.draft_len)

    def __str__(self) -> str:
        return self.name if self.draft_len is None else f"{self.name}:{self.draft_len}"
