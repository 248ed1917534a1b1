"""Time and function calls of one thread by part of its work, each counted for the innermost part alone.

Two ways that are never used at once: the clock reads times, whose minima are the work and whose rest is the machine's other business; the
counter counts function calls under the interpreter's profiling hook, which other work cannot change but through what the program itself
does by the clock. Must not know what the parts do.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
REST = "rest"


class PartClock:
    """`watch` functions, then `end_round` between rounds. rounds: for each, microseconds or calls by part."""

    def __init__(self, *, counts_calls: bool = False) -> None:
        self.rounds: list[dict[str, float]] = []
        self._counts_calls = counts_calls
        self._parts = [REST]
        self._spent: Counter[str] = Counter()
        self._since_ns = 0
        self._watched: list[tuple[object, str, Any]] = []
        self._is_counting = False

    def watch(self, owner: object, name: str, part: str) -> None:
        """From now on what this attribute does belongs to the part."""
        original = getattr(owner, name)
        self._watched.append((owner, name, original))
        setattr(owner, name, self.timed(original, part))

    def release(self) -> None:
        """What was watched is as it was."""
        while self._watched:
            setattr(*self._watched.pop())

    def timed(self, function: Callable[Arguments, Result], part: str) -> Callable[Arguments, Result]:
        """The function, its work counted for the part."""

        @wraps(function)
        def watched(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
            self._enter(part)
            try:
                return function(*arguments, **named)
            finally:
                self._leave()

        return watched

    def end_round(self) -> None:
        """What was done since the last call is a round; in the thread that is measured."""
        if self._counts_calls:
            self._start_counting()
        else:
            self._charge()
        self.rounds.append({part: spent if self._counts_calls else spent / 1000.0 for part, spent in self._spent.items()})
        self._spent.clear()

    def least(self) -> dict[str, float]:
        """The least of each part over the rounds."""
        return {part: min(found) for part, found in self._by_part().items()}

    def median(self) -> dict[str, float]:
        """The middle of each part over the rounds."""
        return {part: sorted(found)[len(found) // 2] for part, found in self._by_part().items()}

    def stop(self) -> None:
        """In the thread that is measured: no more calls are counted."""
        sys.setprofile(None)

    def _by_part(self) -> dict[str, list[float]]:
        parts = dict.fromkeys(part for spent in self.rounds for part in spent)
        return {part: [spent.get(part, 0.0) for spent in self.rounds] for part in parts}

    def _enter(self, part: str) -> None:
        self._charge()
        self._parts.append(part)

    def _leave(self) -> None:
        self._charge()
        self._parts.pop()

    def _charge(self) -> None:
        """Time since the last change of parts belongs to the present one."""
        if self._counts_calls:
            return
        now_ns = time.perf_counter_ns()
        self._spent[self._parts[-1]] += now_ns - self._since_ns
        self._since_ns = time.perf_counter_ns()

    def _start_counting(self) -> None:
        if not self._is_counting:
            self._is_counting = True
            sys.setprofile(self._count)

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        """The interpreter's hook: this file's own calls are nobody's."""
        if event in ("call", "c_call") and frame.f_code.co_filename != __file__:
            self._spent[self._parts[-1]] += 1
