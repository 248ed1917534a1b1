"""A part of a run: so many requests at a time, first a calm stretch, then faults; and what came of it. Must not know processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider_bench.chaos.askers import Harvest
from outrider_bench.chaos.schedule import Kind
from outrider_bench.chaos.stalls import Gap, Stall, Stretch, Struck, longest_by_kind, stalls_by_kind


@dataclass(frozen=True, slots=True)
class Phase:
    """num_at_a_time: requests. calm: until the first fault, but not from the beginning. took_s: all of it."""

    num_at_a_time: int
    harvest: Harvest
    calm: Stretch
    struck: Sequence[Struck]
    took_s: float

    @property
    def counts(self) -> Counter[Kind]:
        """How often each kind of fault struck."""
        return Counter(fault.kind for fault in self.struck)

    @property
    def stalls(self) -> Mapping[Kind, Stall]:
        """By kind, beside the calm stretch."""
        return stalls_by_kind(self.harvest.gaps, self.struck, self.calm)

    @property
    def longest(self) -> Mapping[Kind | None, float]:
        """Seconds; None: while faults struck, but with none near."""
        return longest_by_kind([gap for gap in self.harvest.gaps if gap.end_s > self.calm.end_s], self.struck)

    @property
    def calm_gaps(self) -> list[Gap]:
        """Of the calm stretch, the shortest first; one of no length where there was no gap."""
        own = [gap for gap in self.harvest.gaps if self.calm.begin_s <= gap.end_s <= self.calm.end_s]
        return sorted(own, key=lambda gap: gap.length_s) or [Gap(0.0, 0.0)]

    def num_differing(self, truth: Sequence[tuple[int, ...]]) -> int:
        """Tokens that are not those of the undisturbed answers, by request."""
        return sum(tokens_differing(tokens, truth[number]) for number, tokens in self.harvest.answers)


def tokens_differing(tokens: Sequence[int], truth: Sequence[int]) -> int:
    """Positions at which two answers differ, missing ones included."""
    return sum(one != other for one, other in zip(tokens, truth, strict=False)) + abs(len(tokens) - len(truth))
