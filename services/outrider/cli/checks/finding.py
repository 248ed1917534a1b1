"""One thing a check found, with what to do about it. Must not know how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """FINE: as it should be. NOTE: worth knowing. BROKEN: something will not work until the remedy is applied."""

    FINE = "fine"
    NOTE = "note"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """what: what was looked at. found: what was there. remedy: what to do, empty when nothing needs doing."""

    level: Level
    what: str
    found: str
    remedy: str = ""


def fine(what: str, found: str) -> Finding:
    """All is well."""
    return Finding(Level.FINE, what, found)


def note(what: str, found: str, remedy: str = "") -> Finding:
    """Not an error, but somebody may want to know."""
    return Finding(Level.NOTE, what, found, remedy)


def broken(what: str, found: str, remedy: str) -> Finding:
    """Will not work; the remedy says what to do."""
    return Finding(Level.BROKEN, what, found, remedy)
