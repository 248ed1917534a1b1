"""How long answers are: learned from those that ended lately, so that nobody prepares for tokens that never come.

A request allows some number of tokens and the model mostly needs fewer. Knows lengths only. Must not know what ended an answer, nor texts.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass

REMEMBERED = 32  # answers
_NEVER = 1 << 40  # the length of one that its bound ended


@dataclass(frozen=True, slots=True)
class AnswerEnds:
    """newest: lengths in tokens, the newest last. ordered: the same, ascending; sums: of the first so many of those."""

    newest: tuple[int, ...] = ()
    ordered: tuple[int, ...] = ()
    sums: tuple[int, ...] = (0,)

    def after(self, num_tokens: int, *, by_itself: bool) -> AnswerEnds:
        """With an answer more, of so many tokens; without the oldest where there are more than REMEMBERED. by_itself: before its bound."""
        newest = (*self.newest, num_tokens if by_itself else _NEVER)[-REMEMBERED:]
        ordered = tuple(sorted(newest))
        return AnswerEnds(newest, ordered, tuple(itertools.accumulate(ordered, initial=0)))

    def expected_left(self, num_emitted: int, remaining: int) -> float:
        """Tokens to expect of an answer that has so many and may have `remaining` more: the mean over the remembered answers that were
        longer than it is by now, and one that needs all it may have."""
        first = bisect_right(self.ordered, num_emitted)
        last = bisect_right(self.ordered, num_emitted + remaining)
        within = self.sums[last] - self.sums[first] - (last - first) * num_emitted
        num_beyond = len(self.ordered) - last + 1
        return (within + num_beyond * remaining) / (last - first + num_beyond)


NO_ENDS = AnswerEnds()
