"""How far a long run is, on stderr, for people; nothing where stderr is no terminal. Must not know what is measured."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from outrider.cli.console import make_console


def make_progress() -> Progress:
    """A bar for each task of a run, with counts and the time so far. Use as a context manager."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=make_console(stderr=True))
