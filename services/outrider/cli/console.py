"""Where the command prints: answers and tables on stdout, progress and errors on stderr, colours only on a terminal.

Must not know what is printed.
"""

from __future__ import annotations

import os
import sys

from rich.console import Console

PLAIN_WIDTH = 140


def make_console(*, stderr: bool = False) -> Console:
    """A console that is quiet about markup and as wide as a log line when it is not on a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(stderr=stderr, width=width, highlight=False)
