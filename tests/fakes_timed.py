"""Stand-ins for a card's time: work that is done once, and a clock that counts."""

from __future__ import annotations

from collections.abc import Callable

ONE_S = 1e-3


def once_s(work: Callable[[], object], /) -> float:
    """Do the work once; it took ONE_S, whatever it took."""
    work()
    return ONE_S


class FasterEachTime:
    """Each work takes half of what the one before took, the first half of ONE_S."""

    def __init__(self) -> None:
        self._spent_s = ONE_S

    def __call__(self, work: Callable[[], object], /) -> float:
        """Do the work once."""
        work()
        self._spent_s /= 2
        return self._spent_s


class CountingClock:
    """CardClock that keeps what was asked of it, in order, beside what the work writes there; the n-th span took spans_s[n]."""

    def __init__(self, spans_s: list[float]) -> None:
        self.asked: list[str] = []
        self._spans_s = list(spans_s)

    def flush(self) -> None:
        """Nothing to flush."""
        self.asked.append("flush")

    def mark(self) -> int:
        """How many marks there were."""
        self.asked.append("mark")
        return self.asked.count("mark")

    def between_s(self, begin: int, end: int) -> float:
        """Of neighbouring marks."""
        assert end == begin + 1
        return self._spans_s.pop(0)
