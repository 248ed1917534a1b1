"""How long clients waited because of which fault: gaps between deltas, against the times of faults. Pure; must not know requests.

A gap counts for the gravest fault that struck during it or shortly before: who waits for a new verifier waits no longer because a drafter
died as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outrider_bench.chaos.schedule import HITS_VERIFIERS, Kind

JUST_BEFORE_S = 0.25  # a gap that begins so soon after a fault is of its making: a delta was on its way


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was carried out. until_s: the end of what lasts, for a kill its moment."""

    kind: Kind
    at_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two deltas of one answer, or the request and the first."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """How long nothing came."""
        return self.end_s - self.begin_s


def longest_by_kind(gaps: Iterable[Gap], struck: Sequence[Struck]) -> Mapping[Kind | None, float]:
    """The longest gap, in seconds, for each kind of fault, and for None, which had a hand in no fault's gap."""
    longest: dict[Kind | None, float] = {}
    for gap in gaps:
        kind = _gravest(gap, struck)
        longest[kind] = max(longest.get(kind, 0.0), gap.length_s)
    return longest


def _gravest(gap: Gap, struck: Sequence[Struck]) -> Kind | None:
    met = [fault.kind for fault in struck if fault.at_s <= gap.end_s and fault.until_s >= gap.begin_s - JUST_BEFORE_S]
    return min(met, key=lambda kind: (kind not in HITS_VERIFIERS, list(Kind).index(kind)), default=None)
