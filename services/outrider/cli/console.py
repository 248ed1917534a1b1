"""Where the command prints: answers and tables on stdout, progress and errors on stderr, colours only on a terminal.

Must not know what is printed.
"""

from __future__ import annotations

import os
import sys

from rich.console import Console

PLAIN_WIDTH = 140


def make_console(*, stderr: bool = False) -> Console:
    """A console that takes every text literally and is as wide as a log line when it is not on a terminal.

    Paths, options and stop strings may hold brackets or colons, which rich would read as styles and emoji.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)
