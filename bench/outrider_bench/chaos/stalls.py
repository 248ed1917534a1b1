"""How long clients waited because of which fault: gaps between deltas, against the times of faults. Pure; must not know requests.

A gap counts for the gravest fault that struck during it or shortly before: who waits for a new verifier waits no longer because a drafter
died as well. Of a gap that had begun before the fault only what came after it counts: the rest cannot be its doing. Clients wait without
any fault, too, above all where more processes compute than there are cores: so what was waited for in a fault's time stands beside what
was waited for in equal times of a calm stretch of the same run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from outrider_bench.chaos.schedule import GRAVE, Kind

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

    def since(self, at_s: float) -> float:
        """How long nothing came from this time on, which is not after its end."""
        return self.end_s - max(self.begin_s, at_s)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which nothing strikes."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Stall:
    """Of the longest gap in each fault's time, over all faults of a kind: the median, and the longest. calm_median_s, calm_longest_s: the
    same of equal times of a calm stretch. All in seconds."""

    median_s: float
    longest_s: float
    calm_median_s: float
    calm_longest_s: float


def stalls_by_kind(gaps: Sequence[Gap], struck: Sequence[Struck], calm: Stretch) -> Mapping[Kind, Stall]:
    """For each kind that any gap counts for. Faults whose every gap counts for a graver one are left out."""
    own: dict[Kind, list[float]] = {}
    lasted: dict[Kind, list[float]] = {}
    counted = [(gap, _gravest(gap, struck)) for gap in gaps]
    for fault in struck:
        met = [gap.since(fault.at_s) for gap, kind in counted if kind is fault.kind and _meets(gap, fault)]
        if met:
            own.setdefault(fault.kind, []).append(max(met))
            lasted.setdefault(fault.kind, []).append(fault.until_s - fault.at_s)
    quiet = {kind: calm_waits(gaps, calm, median(lengths) + JUST_BEFORE_S) for kind, lengths in lasted.items()}
    return {kind: Stall(median(waits), max(waits), median(quiet[kind]), max(quiet[kind])) for kind, waits in own.items()}


def calm_waits(gaps: Iterable[Gap], calm: Stretch, length_s: float) -> list[float]:
    """The longest wait from each of the stretch's times of this length on, at least one, by gaps that meet it: as for faults that had
    struck then. In seconds, 0 where there is none."""
    waits = [0.0] * max(1, int((calm.end_s - calm.begin_s) / length_s))
    for gap in gaps:
        first, last = (math.floor((edge_s - calm.begin_s) / length_s) for edge_s in (gap.begin_s, gap.end_s))
        for number in range(max(0, first), min(last, len(waits) - 1) + 1):
            waits[number] = max(waits[number], gap.since(calm.begin_s + number * length_s))
    return waits


def longest_by_kind(gaps: Iterable[Gap], struck: Sequence[Struck]) -> Mapping[Kind | None, float]:
    """The longest wait, in seconds, for each kind of fault, and for None, which had a hand in no fault's gap."""
    longest: dict[Kind | None, float] = {}
    for gap in gaps:
        kind = _gravest(gap, struck)
        begun_s = min((fault.at_s for fault in struck if fault.kind is kind and _meets(gap, fault)), default=gap.begin_s)
        longest[kind] = max(longest.get(kind, 0.0), gap.since(begun_s))
    return longest


def _gravest(gap: Gap, struck: Sequence[Struck]) -> Kind | None:
    met = [fault.kind for fault in struck if _meets(gap, fault)]
    return min(met, key=lambda kind: (kind not in GRAVE, list(Kind).index(kind)), default=None)


def _meets(gap: Gap, fault: Struck) -> bool:
    return fault.at_s <= gap.end_s and fault.until_s >= gap.begin_s - JUST_BEFORE_S
