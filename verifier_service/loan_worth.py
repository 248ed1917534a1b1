"""Whether steps are quicker with lent cores: running estimates by rows, with and without, and now and then a step the other way.

A loan does not pay where cores are fewer than threads, where somebody else uses them, or where a step is too short to be shared. Both ways
are compared where both were measured, by the rows of a step; of the way that is not in use, probes tell. What probes lose is paid for from
PROBE_SHARE of the steps' time, so that a way that is far worse is tried far less often. Pure: must not know engines, sessions or drafters.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from outrider.session.pacing.contract import CostCurve
from verifier_service.cost_model import row_edges

PROBE_SHARE = 1 / 200  # of the steps' time may be lost to probes
PROBE_AFTER = 32  # steps of about the same rows between two probes, at least
MAX_SAVED_STEPS = 64  # of what probes may lose; a way that takes so many times as long is not tried again
# A loan begins when it promises more than the one, and ends when it loses more than the other: between them noise has its place.
MIN_GAIN, MAX_LOSS = 0.05, 0.02
# What a loan may seem to cost at start and begin all the same: the others of a deployment load then, on the very cores that are lent later,
# and a measurement that was disturbed is too long. Steps soon tell.
MAX_FIRST_RATIO = 2.0
MIN_STAY = 16  # steps of about the same rows from one change of mind to the next
RATE = 1 / 16  # of a running estimate, once it rests on as many steps
MAX_SURPRISE = 2.0  # what a single step (a machine that stalled) can be, in terms of what was expected


@dataclass(slots=True)
class _Estimate:
    """Of a step's time, in terms of what a step of its rows took at start without a loan."""

    ratio: float
    num_steps: int = 1

    def observe(self, ratio: float) -> None:
        self.num_steps += 1
        self.ratio += max(RATE, 1 / self.num_steps) * (min(ratio, MAX_SURPRISE * self.ratio) - self.ratio)


@dataclass(slots=True)
class _Place:
    """Steps of about the same rows. lends: the way in use. num_stayed: its steps since it came into use; num_unprobed: since a probe.

    usual_us: of the newest step's rows, num_rows of them, at start without a loan.
    """

    own: _Estimate
    lent: _Estimate
    lends: bool = field(init=False)
    num_stayed: int = 0
    num_unprobed: int = 0
    num_rows: int = 0
    usual_us: float = 1.0

    def __post_init__(self) -> None:
        self.lends = self.lent.ratio < MAX_FIRST_RATIO * self.own.ratio

    def of(self, *, lent: bool) -> _Estimate:
        return self.lent if lent else self.own

    @property
    def lead(self) -> float:
        """By how much a step of the other way takes longer than one of the way in use, in the estimates' terms."""
        return self.of(lent=not self.lends).ratio - self.of(lent=self.lends).ratio

    def reconsider(self) -> bool:
        """After a step: begin or end the loan, where it is clear that it pays or no longer does. Returns whether it did."""
        pays = self.lent.ratio < (1.0 + MAX_LOSS if self.lends else 1.0 - MIN_GAIN) * self.own.ratio
        if pays == self.lends or self.num_stayed < MIN_STAY:
            return False
        self.lends = pays
        self.num_stayed = self.num_unprobed = 0
        return True


class LoanWorth:
    """own, lent: what steps took at start without and with a loan, while drafters rested.

    rows: of the curves' points, ascending. ways: for each of them, whether steps of about so many rows use lent cores that are at hand.
    """

    def __init__(self, own: CostCurve, lent: CostCurve) -> None:
        self._usual = own
        self._places = [_Place(_Estimate(1.0), _Estimate(lent.verify_us(rows) / max(1.0, us))) for rows, us in own.points]
        self._saved_us = 0.0
        self.rows = [rows for rows, _ in own.points]
        self._edges = row_edges(self.rows)
        self.ways = [place.lends for place in self._places]

    def lends(self, num_rows: int) -> bool:
        """Whether steps of so many rows use lent cores where they are at hand, but for a probe."""
        return self._place(num_rows).lends

    def choose(self, num_rows: int) -> bool:
        """Whether the coming step, of so many rows and with lent cores at hand, is to use them."""
        place = self._place(num_rows)
        if place.num_unprobed < PROBE_AFTER:
            return place.lends
        return place.lends != (self._saved_us >= place.lead * place.usual_us)

    def observe(self, num_rows: int, step_us: int, *, lent: bool) -> bool:
        """A step without prefill, with lent cores at hand, took so long; lent: with them. Returns whether `ways` changed."""
        place = self._place(num_rows)
        if num_rows != place.num_rows:
            place.num_rows, place.usual_us = num_rows, max(1.0, self._usual.verify_us(num_rows))
        usual_us = place.usual_us
        self._saved_us = min(MAX_SAVED_STEPS * step_us, self._saved_us + PROBE_SHARE * step_us)
        if lent == place.lends:
            place.num_stayed += 1
            place.num_unprobed += 1
        else:
            place.num_unprobed = 0
            self._saved_us -= max(0.0, step_us - usual_us * place.of(lent=place.lends).ratio)
        place.of(lent=lent).observe(step_us / usual_us)
        if not place.reconsider():
            return False
        self.ways = [each.lends for each in self._places]
        return True

    def _place(self, num_rows: int) -> _Place:
        return self._places[bisect.bisect_left(self._edges, num_rows)]
