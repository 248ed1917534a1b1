"""What drafting, the link and a round's rest cost, as measured: drafting in turns apart from drafting beside the target.

On shared cores the two differ by a factor; taken together, the one in use would hide what the other could do. Knows session views. Must
not know courses or who chose a pace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.session.pacing.contract import SessionView, StepView
from outrider.session.pacing.round_model import Pace, RoundRates, measured_rates

MEASURE_RATE = 1 / 2  # sessions smooth what they measure; this is between them


class PaceRates:
    """Running estimates in microseconds. link_us: one way. overhead_us: of a round, beside the target's step."""

    def __init__(self) -> None:
        self.link_us = self.overhead_us = 0.0
        self._draft_us: dict[Pace, float] = {}  # of a token; SERIAL: while the target rests, AHEAD: while it may be at work

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._draft_us)

    def draft_us(self, pace: Pace) -> float:
        """Drafting time of a token at this pace, or at another while this one was never tried; 0 when nothing is known."""
        return self._draft_us.get(pace) or max(self._draft_us.values(), default=0.0)

    def observe(self, fresh: Mapping[Pace, Sequence[SessionView]]) -> None:
        """Sessions that drafted lately, by the pace they did it at."""
        for pace, sessions in fresh.items():
            self._draft_us[pace] = _followed(self._draft_us.get(pace), [session.draft_us_per_token for session in sessions])
        known = [session for sessions in fresh.values() for session in sessions]
        if known:
            self.link_us = _followed(self.link_us, [session.link_us for session in known])
            self.overhead_us = _followed(self.overhead_us, [session.step_overhead_us for session in known])

    def of_rounds(self, view: StepView, pace: Pace) -> RoundRates:
        """For the model of rounds, with all sessions of the view in each step."""
        cost = view.overlapped_cost if pace is Pace.AHEAD else view.cost
        return measured_rates(cost, len(view.sessions), self.draft_us(pace), self.link_us, self.overhead_us)


def _followed(estimate: float | None, measured: list[float]) -> float:
    mean = sum(measured) / len(measured)
    return estimate + MEASURE_RATE * (mean - estimate) if estimate else mean
