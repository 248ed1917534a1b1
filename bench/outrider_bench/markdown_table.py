"""A table as markdown lines. Must not know what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Headings, a rule, the rows; a `|` inside a text is escaped."""
    return [_line(headings), "|" + "---|" * len(headings), *map(_line, rows)]


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
