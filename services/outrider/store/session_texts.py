"""One session's view of other answers: asked by the thread that steps the target, answered from this process' memory alone.

What is not known is asked of the shared store, through whoever fetches, and is there for a later commit. A text that is known nowhere
asks ever less often. Must not know queues, threads or Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.store.contract import NOTHING, Continuation
from outrider.store.memory import MemoryNgrams
from outrider.store.ngram_keys import NgramKeys

ASK_EVERY, ASK_SELDOM = 4, 64  # commits without a guess between two questions of one session, at first and in the end


@dataclass(slots=True)
class FoundCounts:
    """Ends of texts that were looked for in memory; written by one thread."""

    num_hits: int = 0
    num_misses: int = 0


@dataclass(frozen=True, slots=True)
class Want:
    """The end of a text, for which the shared store is to be asked."""

    keys: NgramKeys
    end: tuple[int, ...]


class SessionTexts:
    """SharedTexts (session/shared_lookup.py) over a store in memory. ask: takes a question, or drops it; returns at once."""

    def __init__(self, keys: NgramKeys, memory: MemoryNgrams, counts: FoundCounts, ask: Callable[[Want], None]) -> None:
        self.keys = keys
        self._memory = memory
        self._counts = counts
        self._ask = ask
        self._num_until_asked = 1
        self._interval = ASK_EVERY

    def find(self, end: Sequence[int]) -> tuple[int, Continuation]:
        """See SharedTexts."""
        ends = self.keys.at_end(end)
        for (length, _), followed in zip(ends, self._memory.lookup([key for _, key in ends]), strict=True):
            if followed:
                self._counts.num_hits += 1
                self._num_until_asked, self._interval = 1, ASK_EVERY
                return length, followed
        self._counts.num_misses += 1
        self._num_until_asked -= 1
        if not self._num_until_asked:
            self._num_until_asked, self._interval = self._interval, min(2 * self._interval, ASK_SELDOM)
            self._ask(Want(self.keys, tuple(end)))
        return 0, NOTHING
