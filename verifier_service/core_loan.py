"""Cores of a drafter on this machine, lent to the target's steps while that drafter is idle, as far as is known here.

Knows which connected drafters are of this machine, and what steps cost, with a loan and without, while drafters rest and while they may be
at work: the policies are told what the coming step is going to cost. A drafter that reads a prompt which the target reads as well counts as
idle: it is done long before the target is. Must not know streams or what is in a step beyond its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from outrider.engine.contract import Engine
from outrider.session.pacing.contract import CostCurve
from outrider.session.verifier import VerifierSession
from verifier_service.cost_model import CostModel, StepCosts, measure_cost, rising
from verifier_service.loan_worth import LoanWorth

_NEAR = ("unix:", "127.", "localhost:", "[::1]:")


class CoreLoan:
    """own, lent: what steps took at start, at the same rows; lent None where nothing is lent. most_lent: threads of a loan.

    num_steps: steps that ran with a loan.
    """

    def __init__(self, own: CostModel, lent: CostModel | None = None, most_lent: int = 0) -> None:
        self.num_steps = 0
        self._own = StepCosts(own)
        self._lent = None if lent is None else StepCosts(lent)
        self._worth = None if lent is None else LoanWorth(own.curve(), lent.curve())
        self._most_lent = most_lent
        self._is_at_hand = False  # for the step chosen for last
        self._resting: CostCurve | None = None  # of steps while drafters rest, until the next observation

    def curves(self, drafters: Collection[str]) -> tuple[CostCurve, CostCurve]:
        """What steps cost while drafters rest, and while some may be at work. drafters: endpoints of those that are connected.

        Beside drafters of this machine there is no loan, beside those of others there is.
        """
        own, lent = self._own, self._lent
        if lent is None:
            return own.alone.curve(), own.drafting.curve()
        if self._resting is None:
            self._resting = self._mix(own.alone, lent.alone)
        is_lent_beside = not any(map(is_near, drafters))
        return self._resting, self._mix(own.drafting, lent.drafting) if is_lent_beside else own.drafting.curve()

    def threads(self, num_rows: int, sessions: Iterable[VerifierSession], drafters: Collection[str], *, reads: bool = False) -> int:
        """How many lent threads the coming step is to use.

        sessions: all that are live. drafters: endpoints of those that are connected. reads: the step has a prefill, and is not observed.
        """
        if self._worth is None:
            return 0
        near = frozenset(filter(is_near, drafters))
        self._is_at_hand = not near or not any(session.is_drafted_for_by(near) for session in sessions)
        if not self._is_at_hand:
            return 0
        return self._most_lent if (self._worth.lends if reads else self._worth.choose)(num_rows) else 0

    def count(self, lent_threads: int) -> None:
        """A step has run on so many lent threads."""
        self.num_steps += lent_threads > 0

    def observe(self, num_rows: int, step_us: int, lent_threads: int, *, drafting: bool) -> None:
        """The step had no prefill. drafting: some drafter, near or far, had leave to go on meanwhile."""
        costs = self._lent if self._lent is not None and lent_threads else self._own
        costs.observe(num_rows, step_us, drafting=drafting)
        if self._worth is not None and self._is_at_hand:
            self._worth.observe(num_rows, step_us, lent=lent_threads > 0)
        self._resting = None

    def _mix(self, own: CostModel, lent: CostModel) -> CostCurve:
        """By rows, the curve of the way that is in use."""
        assert self._worth is not None
        both = zip(own.curve().points, lent.curve().points, self._worth.ways(), strict=True)
        return rising([lent_point if lends else own_point for own_point, lent_point, lends in both])


def measure_loan(engine: Engine) -> CoreLoan:
    """Time steps with and without what can be lent, in the calling thread, which owns the engine; nothing is held afterwards."""
    most_lent = engine.limits.lent_threads
    return CoreLoan(measure_cost(engine), measure_cost(engine, most_lent) if most_lent else None, most_lent)


def is_near(drafter: str) -> bool:
    """Whether this endpoint is of the machine we run on, as far as an address tells."""
    return drafter.startswith(_NEAR)
