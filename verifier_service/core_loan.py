"""Cores of a drafter on this machine, lent to the target's steps while that drafter is idle, as far as is known here.

Knows which connected drafters are of this machine, and what steps cost, with a loan and without, while drafters rest and while they may be
at work: the policies are told what the coming step is going to cost. A drafter that reads a prompt which the target reads as well counts as
idle: it is done long before the target is. A loan stays out from step to step, for a drafter that rests begins nothing by itself: it is
given back before a frame goes to it. Must not know streams or what is in a step beyond its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from outrider.engine.contract import Engine
from outrider.rpc.address import is_of_this_machine
from outrider.session.pacing.contract import CostCurve
from outrider.session.verifier import VerifierSession
from verifier_service.cost_model import CostModel, StepCosts, measure_cost, rising
from verifier_service.loan_worth import LoanWorth

_NOBODY: frozenset[str] = frozenset()


class CoreLoan:
    """own, lent: what steps took at start, at the same rows; lent None where nothing is lent. most_lent: threads of a loan.

    num_steps: steps that ran with a loan. plain_ahead: plain steps were computed before they were asked for.
    """

    def __init__(self, own: CostModel, lent: CostModel | None = None, most_lent: int = 0) -> None:
        self.num_steps = 0
        self.plain_ahead = False
        self._own = StepCosts(own)
        self._lent = None if lent is None else StepCosts(lent)
        self._worth = None if lent is None else LoanWorth(own.curve(), lent.curve())
        self._most_lent = most_lent
        self._near = _NOBODY  # drafters of this machine that are connected
        self._is_at_hand = False  # for the step chosen for last
        self._is_out = False
        self._resting: CostCurve | None = None  # of steps while drafters rest, and
        self._drafting: CostCurve | None = None  # of steps while some may be at work, until they change

    @property
    def is_possible(self) -> bool:
        """Whether there is anything to lend."""
        return self._worth is not None

    @property
    def concerns_drafters(self) -> bool:
        """Whether it matters what drafters do."""
        return bool(self._near)

    def observe_drafters(self, drafters: Iterable[str]) -> None:
        """From now on these are connected, by endpoint."""
        if self.is_possible:
            self._near = frozenset(filter(is_of_this_machine, drafters))
            self._drafting = None

    # --- what steps cost --------------------------------------------------------------------------------------------------

    def curves(self, num_sequences: int = 1) -> tuple[CostCurve, CostCurve]:
        """What steps of so many sequences cost while drafters rest, and while some may be at work.

        Beside drafters of this machine there is no loan, beside those of others there is.
        """
        resting, drafting = self._rows_curves()
        if num_sequences == 1:
            return resting, drafting
        resting_us = own_us = self._own.sequences.us(num_sequences)
        if self._lent is not None and self._worth is not None and self._worth.lends(num_sequences):
            resting_us = self._lent.sequences.us(num_sequences)
        drafting_us = own_us if self._near else resting_us
        return replace(resting, sequence_us=resting_us, num_sequences=num_sequences), replace(
            drafting, sequence_us=drafting_us, num_sequences=num_sequences
        )

    def _rows_curves(self) -> tuple[CostCurve, CostCurve]:
        own, lent = self._own, self._lent
        if lent is None:
            return own.alone.curve(), own.drafting.curve()
        if self._resting is None:
            self._resting = self._mixed(own.alone, lent.alone)
        if self._drafting is None:
            self._drafting = own.drafting.curve() if self._near else self._mixed(own.drafting, lent.drafting)
        return self._resting, self._drafting

    @property
    def ahead(self) -> CostCurve | None:
        """What steps cost that are computed ahead, by a thread of our own; None while there was none."""
        costs = self._own.ahead
        return None if costs is None else costs.curve()

    @property
    def unlent(self) -> CostCurve:
        """What steps cost while a drafter of this machine may be at work, whether or not one is connected."""
        return self._own.drafting.curve()

    def observe(
        self, num_rows: int, step_us: int, lent_threads: int, *, drafting: bool, was_ahead: bool = False, num_sequences: int = 1
    ) -> None:
        """The step, of so many sequences, had no prefill. drafting: some drafter, near or far, had leave to go on meanwhile. was_ahead: as
        in StepResult; it says nothing of whether a loan pays. A plain one is what such a step costs on the threads that it had."""
        if was_ahead:
            self.plain_ahead = self.plain_ahead or num_rows == 1
            if num_rows > 1:
                self._own.observe(num_rows, step_us, drafting=drafting, was_ahead=True)
                return
        costs = self._lent if self._lent is not None and lent_threads else self._own
        costs.observe(num_rows, step_us, drafting=drafting, num_sequences=num_sequences)
        if drafting:
            self._drafting = None
        else:
            self._resting = None
        if was_ahead or self._worth is None or not self._is_at_hand:
            return
        if self._worth.observe(num_rows, step_us, lent=lent_threads > 0):
            self._resting = self._drafting = None

    def _mixed(self, own: CostModel, lent: CostModel) -> CostCurve:
        """By rows, the curve of the way that is in use."""
        assert self._worth is not None
        ways = self._worth.ways
        if all(ways):
            return lent.curve()
        if not any(ways):
            return own.curve()
        points = zip(own.curve().points, lent.curve().points, ways, strict=True)
        return rising(self._worth.rows, [(lent_us if lends else own_us) for (_, own_us), (_, lent_us), lends in points])

    # --- what is lent -----------------------------------------------------------------------------------------------------

    def threads(self, num_rows: int, sessions: Iterable[VerifierSession], *, reads: bool = False) -> int:
        """How many lent threads the coming step is to use; the engine holds them from then on.

        sessions: all that a drafter may be at work for. reads: the step has a prefill, and is not observed.
        """
        worth = self._worth
        if worth is None:
            return 0
        near = self._near
        self._is_at_hand = not near or not any(session.is_drafted_for_by(near) for session in sessions)
        self._is_out = self._is_at_hand and (worth.lends(num_rows) if reads else worth.choose(num_rows))
        return self._most_lent if self._is_out else 0

    def count(self, lent_threads: int) -> None:
        """A step has run on so many lent threads."""
        self.num_steps += lent_threads > 0

    def give_back(self, engine: Engine, drafters: Iterable[str]) -> None:
        """Before frames go to these drafters: one that hears of something may want its cores at once."""
        if self._is_out and not self._near.isdisjoint(drafters):
            engine.end_loan()
            self._is_out = False


def measure_loan(engine: Engine) -> CoreLoan:
    """Time steps with and without what can be lent, in the calling thread, which owns the engine; nothing is held afterwards."""
    most_lent = engine.limits.lent_threads
    if not most_lent:
        return CoreLoan(measure_cost(engine))
    own, lent = measure_cost(engine), measure_cost(engine, most_lent)
    engine.end_loan()
    both = own.rows & lent.rows  # steps of many rows that lent threads make in time may take too long without them to be measured
    return CoreLoan(own.among(both), lent.among(both), most_lent)
