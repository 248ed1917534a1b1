"""Shows how a training run is doing: a live bar on a terminal, plain lines elsewhere.

Knows what to show; must not know what a model is.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_LINE_INTERVAL_S = 20.0


class TrainingProgress:
    """Context manager; `update` after every batch."""

    def __init__(self, title: str) -> None:
        self._bar = None
        if sys.stdout.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console())
            self._task = self._bar.add_task(title, total=1.0, state="")
        self._title, self._last_line_s = title, 0.0

    def __enter__(self) -> TrainingProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, share: float, state: str) -> None:
        """`share` of the budget is spent; `state` says loss and speed."""
        if self._bar:
            self._bar.update(self._task, completed=share, state=state)
        elif time.monotonic() - self._last_line_s >= _LINE_INTERVAL_S:
            self._last_line_s = time.monotonic()
            print(f"{time.strftime('%H:%M:%S')} {self._title} {share:6.1%} {state}", flush=True)
