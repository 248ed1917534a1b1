"""How well drafts are accepted, written short: `0.8`; `0.9>0.2` changes in the middle of every answer; `0.9|0.3` differs by session;
`0.9/0.7/0.5` differs by depth: of the first guess beyond the truth that a drafter knows, the second, and all deeper ones.

Must not know costs or policies.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import InvalidRequest
from outrider_bench.simulation.world import Phase, Phases


@dataclass(frozen=True, slots=True)
class Profile:
    """text: as written. by_session: acceptances by depth in the order of an answer's stretches (of equal length), for session i of
    i % len."""

    text: str
    by_session: tuple[tuple[tuple[float, ...], ...], ...]

    @staticmethod
    def parse(text: str) -> Profile:
        """Raises InvalidRequest when it is no profile."""
        try:
            values = tuple(tuple(_by_depth(part) for part in one.split(">")) for one in text.split("|"))
        except ValueError as error:
            raise InvalidRequest("acceptances", f"{text!r} is neither a number, a>b, a|b nor a/b") from error
        if any(not 0.0 <= value <= 1.0 for one in values for part in one for value in part):
            raise InvalidRequest("acceptances", f"{text!r}: an acceptance lies in [0, 1]")
        return Profile(text, values)

    def phases(self, output_len: int) -> tuple[Phases, ...]:
        """Of answers of this length."""
        return tuple(_stretches(values, output_len) for values in self.by_session)

    @property
    def mean(self) -> float:
        """Over stretches, sessions and depths: where it lies on a plot's axis."""
        values = [value for one in self.by_session for part in one for value in part]
        return sum(values) / len(values)


def _by_depth(text: str) -> tuple[float, ...]:
    return tuple(float(value) for value in text.split("/"))


def _stretches(values: tuple[tuple[float, ...], ...], output_len: int) -> Phases:
    ends = [output_len * (at + 1) // len(values) for at in range(len(values) - 1)]
    return tuple(Phase(first, until, tuple(deeper)) for (first, *deeper), until in zip(values, [*ends, None], strict=True))
