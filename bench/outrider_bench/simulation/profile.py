"""How well drafts are accepted, written short: `0.8`; `0.9>0.2` changes in the middle of every answer; `0.9|0.3` differs by session.

Must not know costs or policies.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import InvalidRequest
from outrider_bench.simulation.world import Phase, Phases


@dataclass(frozen=True, slots=True)
class Profile:
    """text: as written. by_session: acceptances in the order of an answer's stretches (of equal length), for session i of i % len."""

    text: str
    by_session: tuple[tuple[float, ...], ...]

    @staticmethod
    def parse(text: str) -> Profile:
        """Raises InvalidRequest when it is no profile."""
        try:
            values = tuple(tuple(float(part) for part in one.split(">")) for one in text.split("|"))
        except ValueError as error:
            raise InvalidRequest("acceptances", f"{text!r} is neither a number, a>b nor a|b") from error
        if any(not 0.0 <= value <= 1.0 for one in values for value in one):
            raise InvalidRequest("acceptances", f"{text!r}: an acceptance lies in [0, 1]")
        return Profile(text, values)

    def phases(self, output_len: int) -> tuple[Phases, ...]:
        """Of answers of this length."""
        return tuple(_stretches(values, output_len) for values in self.by_session)

    @property
    def mean(self) -> float:
        """Over stretches and sessions: where it lies on a plot's axis."""
        values = [value for one in self.by_session for value in one]
        return sum(values) / len(values)


def _stretches(values: tuple[float, ...], output_len: int) -> Phases:
    ends = [output_len * (at + 1) // len(values) for at in range(len(values) - 1)]
    return tuple(Phase(value, until) for value, until in zip(values, [*ends, None], strict=True))
