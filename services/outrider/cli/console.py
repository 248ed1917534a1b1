"""Where the command prints: answers and tables on stdout, progress and errors on stderr, colours only on a terminal.

Must not know what is printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

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


def make_console(*, stderr: bool = False) -> Console:
    """A console that takes every text literally and is as wide as a log line when it is not on a terminal.

    Paths, options and stop strings may hold brackets or colons, which rich would read as styles and emoji.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)
