"""Where the command prints: answers and tables on stdout, progress and errors on stderr, colours only on a terminal.

Must not know what is printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions
from rich.segment import Segment

PLAIN_WIDTH = 140


def print_line(text: str) -> None:
    """On stdout, and out of our hands. Where its reader has gone, exit code 1 without a word, as a console does when it streams."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is still buffered is flushed when the interpreter ends, and must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


@dataclass(frozen=True, slots=True)
class Literal:
    """(text, style) pieces that reach the stream character by character: rich's own texts lose control characters and expand tabs.

    No line end follows; print it with soft_wrap=True, or lines are cut at the console's width.
    """

    pieces: tuple[tuple[str, str], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        return (Segment(text, console.get_style(style)) for text, style in self.pieces)


class Unheeded:
    """A stream for what goes on all the same when nobody reads it any more: its terminal or its pipe has gone, or its disk is full."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As the stream does, while it can."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As the stream does; from the first time that it cannot it leads nowhere, for what it still holds would be tried again at the
        end of the interpreter, which then says so with an exit code of its own."""
        try:
            self._stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        """Whatever else a console asks of it."""
        return getattr(self._stream, name)


def make_console(*, stderr: bool = False) -> Console:
    """A console that takes every text literally and is as wide as a log line when it is not on a terminal. On stderr it tells of services
    that run on when nobody reads it any more.

    Paths, options and stop strings may hold brackets or colons, which rich would read as styles and emoji.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    file = cast(IO[str], Unheeded(sys.stderr)) if stderr else None
    return Console(file=file, stderr=stderr, width=width, highlight=False, markup=False, emoji=False)
