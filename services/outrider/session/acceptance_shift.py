"""Whether guesses have begun to be right at quite another rate than was expected of them: a text that changes in its midst.

A running mean that averages enough to be steady is slow: of a drafter that was right in 0.95 of cases and is in 0.1, one of a rate of 1/32
believes more than 0.4 for thirty guesses yet. So outcomes are also summed since they began to speak for a change (Page's test: the
likelihood of a rate with sixteen times the odds, or a sixteenth), and once what was summed is too unlikely at the rate expected before it,
only what was summed counts. Source: Page 1954, "Continuous inspection schemes"; the likelihood ratio of a rate that is not known
beforehand is Lorden's, 1971. Must not know sessions, drafters or what a rate is used for.
"""

from __future__ import annotations

import math

ODDS = 16.0  # of a change that outcomes are summed for, to those expected: what speaks for less is soon outweighed
# Natural logarithm of how much likelier the outcomes must be at their own rate than at the one expected, which is itself an estimate: four
# wrong ones in a row at 0.95, five at 0.9, nine at 0.7; five right ones at 0.1.
EVIDENCE = 10.0
LEAST_CHANGE = 0.5  # a running mean follows a smaller one soon enough, and luck looks like one too often
OLD_TESTS = 2.0  # guesses that what was expected still counts for
_LEAST, _MOST = 0.02, 0.98  # rates that are taken for possible


class AcceptanceShift:
    """Of one session's guesses; outcomes one by one, in order."""

    def __init__(self) -> None:
        self._worse, self._better = _Side(is_better=False), _Side(is_better=True)

    def rate_after(self, expected: float, *, right: bool) -> tuple[float, int] | None:
        """A guess was right or wrong where `expected` was believed in: the rate since a change, and the guesses judged since; None = there
        was no change."""
        worse, better = self._worse, self._better
        # Where nine of ten are expected to be right, ten right ones are no large change, and nothing begins to speak for one.
        if (worse.num or (not right and expected >= LEAST_CHANGE)) and worse.count(right, expected):
            return self._changed(worse, expected)
        if (better.num or (right and expected <= 1.0 - LEAST_CHANGE)) and better.count(right, expected):
            return self._changed(better, expected)
        return None

    def _changed(self, side: _Side, expected: float) -> tuple[float, int]:
        found = (side.num_right + OLD_TESTS * expected) / (side.num + OLD_TESTS), side.num
        self._worse.reset()
        self._better.reset()
        return found


class _Side:
    """A change for the worse, or the better. num: outcomes since they began to speak for it, 0 = they do not."""

    def __init__(self, *, is_better: bool) -> None:
        self._is_better = is_better
        self._odds = ODDS if is_better else 1.0 / ODDS
        self._expected = self._gain_right = self._gain_wrong = self._score = self._peak = 0.0
        self.num = self.num_right = 0

    def count(self, right: bool, expected: float) -> bool:
        """Whether there was a change, by this outcome and those before it; the first of them speaks for one."""
        if not self.num:
            self._begin(min(_MOST, max(_LEAST, expected)))
        self._score += self._gain_right if right else self._gain_wrong
        if self._score > self._peak:
            self._peak = self._score
        if self._score <= 0.5 * self._peak:  # what follows it, if anything, is a change of its own
            self.reset()
            return False
        self.num += 1
        self.num_right += right
        return right is self._is_better and self._is_large() and self._evidence() > EVIDENCE

    def _is_large(self) -> bool:
        return abs(self.num_right - self.num * self._expected) >= LEAST_CHANGE * self.num

    def reset(self) -> None:
        """Nothing speaks for it."""
        self._score = self._peak = 0.0
        self.num = self.num_right = 0

    def _begin(self, expected: float) -> None:
        changed = expected * self._odds / (1.0 - expected + expected * self._odds)
        self._expected = expected
        self._gain_right, self._gain_wrong = math.log(changed / expected), math.log((1.0 - changed) / (1.0 - expected))

    def _evidence(self) -> float:
        num_wrong, total = self.num - self.num_right, 0.0
        if self.num_right:
            total += self.num_right * math.log(self.num_right / (self.num * self._expected))
        if num_wrong:
            total += num_wrong * math.log(num_wrong / (self.num * (1.0 - self._expected)))
        return total
