"""How often a looked-up token is right, by how much of the text before it matched: learned from every token that is committed.

A place that matches one or two tokens says little, one that matches sixteen is usually a copy; how little and how usually differs from
text to text, so it is counted, whether or not a guess was verified. Must not know texts or rounds; apart from what drafters achieve on
purpose.
"""

from __future__ import annotations

from collections.abc import Sequence

CLASS_LENS = (1, 2, 3, 5, 8, 16)  # the shortest match of each class
FIRST_RIGHTS = (0.2, 0.3, 0.4, 0.6, 0.8, 0.9)  # of each class, until something is known: copying apart, texts repeat themselves seldom
RATE = 1 / 32
PRIOR_TESTS = 4  # tokens that the prior counts for
TESTS_TO_REMEMBER = 16  # tokens of a class, from which on a text counts as much as any
MEMORY = 1 / 4  # of such a text, in what is expected of the next
TRUST_RIGHTS = 2.0  # right guesses, expected and found, that a text begins with
TRUST_KEPT = 1.0 - 1 / 64  # of both, with each token that was looked at: what comes later in a text may be other text


class LookupOdds:
    """priors: one chance for each class, in [0, 1]."""

    def __init__(self, priors: Sequence[float] = FIRST_RIGHTS) -> None:
        assert len(priors) == len(CLASS_LENS)
        self._rights = list(priors)
        self._num_tested = [0] * len(CLASS_LENS)
        self._num_right = [0] * len(CLASS_LENS)
        self._expected = self._found = TRUST_RIGHTS

    @property
    def rights(self) -> tuple[float, ...]:
        """Chance of a looked-up token in each class."""
        return tuple(self._rights)

    @property
    def num_tested(self) -> tuple[int, ...]:
        """Tokens counted in each class."""
        return tuple(self._num_tested)

    @property
    def trust(self) -> float:
        """Share of the right guesses that were expected of this text, of all classes together, at most 1: one that repeats itself less than
        those before it shows so in short matches long before it has many long ones."""
        return min(1.0, self._found / self._expected)

    def right(self, match_len: int) -> float:
        """Chance of the token that followed where so many tokens matched; match_len at least 1."""
        return self._rights[_CLASS_OF[min(match_len, CLASS_LENS[-1])]]

    def count(self, match_len: int, *, right: bool) -> None:
        """The truth went on as it did there, or otherwise."""
        at = _CLASS_OF[min(match_len, CLASS_LENS[-1])]
        self._num_tested[at] += 1
        self._num_right[at] += right
        self._expected = TRUST_KEPT * self._expected + self._rights[at]
        self._found = TRUST_KEPT * self._found + right
        self._rights[at] += max(RATE, 1.0 / (PRIOR_TESTS + self._num_tested[at])) * (float(right) - self._rights[at])

    def remembered(self, known: Sequence[float]) -> tuple[float, ...]:
        """What is to be expected of the next text, after this one and those before it: the fewer tokens it had of a class, the less. (Were
        few not to count at all, short answers would never teach anything.)"""
        learned = zip(known, self._rights, self._num_right, self._num_tested, strict=True)
        return tuple(_remembered(*of_class) for of_class in learned)


def _remembered(before: float, newest: float, num_right: int, num_tested: int) -> float:
    """Of one class. newest: its running estimate, which few tokens have not told apart from where it began: then their share says more."""
    if num_tested >= TESTS_TO_REMEMBER:
        return before + MEMORY * (newest - before)
    return before + MEMORY * (num_right - num_tested * before) / TESTS_TO_REMEMBER


_CLASS_OF = tuple(max(0, sum(shortest <= length for shortest in CLASS_LENS) - 1) for length in range(CLASS_LENS[-1] + 1))
