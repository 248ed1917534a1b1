"""What the pictures of a page show: a link `![title](plots/NAME.svg)` stands for the table after it, read as numbers.

Three kinds of tables are known, by their first heading:

    contestant       a table a cell, each below a heading of its own (### arithmetic, T = 0): tokens/s of every contestant, of the first
                     table and all further ones of the section that have the same headings and contestants
    cell             a row a cell, a column a contestant; of "640 (5.00)" the first number is shown
    one-way delay    a row a distance, and perhaps a task: times plain decoding, a column a policy (neither spreads nor speeds are shown)

Must not draw or measure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from outrider.errors import InvalidRequest

LINK = re.compile(r"^!\[([^\]]+)\]\(([\w./-]+\.svg)\)$")
_RULE = re.compile(r"^\|(?:\s*:?-+:?\s*\|)+$")
_NUMBER = re.compile(r"^\**(-?\d+(?:\.\d+)?)\**(?:ms|%)?(?: .*)?$")
CONTESTANT, CELL, DELAY = "contestant", "cell", "one-way delay"
_SPEED = "tokens/s"
_NOT_SHOWN = ("spread", "plain tokens/s")
WHOLE = ""  # of a panel that needs no title: the picture has no other


@dataclass(frozen=True, slots=True)
class Panel:
    """series: a number for each place `across`, None where the table has none."""

    title: str
    across: tuple[str, ...]
    series: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True)
class Picture:
    """path: relative to the page. is_bars: bars of tokens/s by cell; else lines of ratios to plain decoding by distance."""

    title: str
    path: str
    is_bars: bool
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A markdown table, and the nearest heading above it."""

    line: int
    heading: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of its rows."""
        return tuple(row[0] for row in self.rows)

    def column(self, heading: str) -> tuple[str, ...]:
        """Its texts. Raises ValueError where there is no such column."""
        return tuple(row[self.headings.index(heading)] for row in self.rows)


def pictures_in(page: str) -> list[Picture]:
    """Every picture that a page links to, in its order. Raises InvalidRequest naming the picture whose table cannot be read."""
    lines = page.splitlines()
    return [_picture(found.group(1), found.group(2), lines, at) for at, line in enumerate(lines) if (found := LINK.match(line))]


def _picture(title: str, path: str, lines: Sequence[str], at: int) -> Picture:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise InvalidRequest(path, "is not below the page's folder")
    end = next((later for later in range(at, len(lines)) if lines[later].startswith("## ")), len(lines))
    tables = [each for each in tables_of(lines[:end]) if each.line > at]
    if not tables:
        raise InvalidRequest(path, "no table follows this picture in its section")
    kinds = {CONTESTANT: _by_contestant, CELL: _by_cell, DELAY: _by_delay}
    if tables[0].headings[0] not in kinds:
        raise InvalidRequest(path, f"the table after it begins with {tables[0].headings[0]!r}, none of {', '.join(kinds)}")
    try:
        panels = kinds[tables[0].headings[0]](tables)
    except ValueError as error:
        raise InvalidRequest(path, f"the table after it cannot be read: {error}") from error
    return Picture(title, path, tables[0].headings[0] != DELAY, panels)


def tables_of(lines: Sequence[str]) -> Iterator[Table]:
    """Every table, with the nearest heading above it."""
    heading = ""
    for at, line in enumerate(lines):
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
        if _RULE.match(line) and at > 0 and lines[at - 1].startswith("|"):
            rows = []
            for row in lines[at + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append(_texts(row))
            yield Table(at - 1, heading, _texts(lines[at - 1]), tuple(rows))


def _texts(line: str) -> tuple[str, ...]:
    return tuple(text.strip() for text in line.strip().strip("|").split("|"))


def _by_contestant(tables: Sequence[Table]) -> tuple[Panel, ...]:
    first = tables[0]
    alike = [each for each in tables if (each.headings, each.names) == (first.headings, first.names)]
    speeds = [[_number(text) for text in each.column(_SPEED)] for each in alike]
    series = {name: tuple(each[place] for each in speeds) for place, name in enumerate(first.names)}
    return (Panel(WHOLE, tuple(each.heading for each in alike), series),)


def _by_cell(tables: Sequence[Table]) -> tuple[Panel, ...]:
    table = tables[0]
    return (Panel(WHOLE, table.names, {name: tuple(map(_number, table.column(name))) for name in table.headings[1:]}),)


def _by_delay(tables: Sequence[Table]) -> tuple[Panel, ...]:
    table = tables[0]
    tasks = table.column("task") if "task" in table.headings else (WHOLE,) * len(table.rows)
    columns = {name: tuple(map(_number, table.column(name))) for name in table.headings[1:] if name not in (*_NOT_SHOWN, "task")}
    panels = []
    for task in dict.fromkeys(tasks):
        rows = [number for number, each in enumerate(tasks) if each == task]
        series = {name: tuple(numbers[row] for row in rows) for name, numbers in columns.items()}
        panels.append(Panel(task, tuple(table.names[row] for row in rows), series))
    return tuple(panels)


def _number(text: str) -> float | None:
    """The number that a cell begins with, bold or not; None for an empty cell. Raises ValueError for any other text."""
    if not text:
        return None
    found = _NUMBER.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no number")
    return float(found.group(1))
