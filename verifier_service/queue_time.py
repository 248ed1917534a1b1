"""How long a session admitted now would wait for its first step: what other prompts still have to be read, at the speed of reading.

The speed is the cost curve's, which was measured on small steps, times what steps that read really took of it lately. Sessions that decode
take a row of each step before any prompt gets the rest, of which the bound on reading (prefill_price.py) may leave little. Lives on the
engine thread. Must not know sessions or the engine.
"""

from __future__ import annotations

from outrider.errors import Overloaded
from outrider.rpc.turnover import MIN_RETRY_S
from outrider.session.pacing.contract import CostCurve
from verifier_service.prefill_price import PrefillPrice

MEMORY = 31 / 32  # of what was observed, from one step that reads to the next
MAX_SLOWNESS = 16.0  # of steps that read, beside what the curve says: a machine that stalled once is not slow for ever


class QueueTime:
    """max_wait_us: a session that would wait longer is refused; 0 = never. price: of reading beside sessions that decode."""

    def __init__(self, max_rows: int, max_wait_us: float = 0.0, price: PrefillPrice | None = None) -> None:
        self.price = price or PrefillPrice()
        self._max_rows = max_rows
        self._max_wait_us = max_wait_us
        self._taken_us = self._expected_us = 0.0

    def observe(self, num_rows: int, step_us: float, cost: CostCurve) -> None:
        """A step in which prompts were read."""
        expected_us = cost.verify_us(num_rows)
        self._taken_us = MEMORY * self._taken_us + min(step_us, MAX_SLOWNESS * expected_us)
        self._expected_us = MEMORY * self._expected_us + expected_us

    @property
    def slowness(self) -> float:
        """What steps that read take, as a multiple of what the curve says; 1 before there was any."""
        return self._taken_us / self._expected_us if self._expected_us else 1.0

    def wait_us(self, num_unread: int, num_decoding: int, cost: CostCurve) -> float:
        """Steps in which num_unread tokens of prompts are read first, beside num_decoding sessions that decode."""
        if num_unread <= 0:
            return 0.0
        room = max(1, self._max_rows - num_decoding)
        if bound := self.price.bound(num_decoding, cost):
            room = max(1, bound.num_rows(num_decoding, room))
        num_full, rest = divmod(num_unread, room)
        last_us = cost.verify_us(rest + num_decoding) if rest else 0.0
        return self.slowness * (num_full * cost.verify_us(room + num_decoding) + last_us)

    def check(self, wait_us: float) -> None:
        """Raise Overloaded when a session would have to wait so long, with the time after which the queue will be short enough."""
        if self._max_wait_us and wait_us > self._max_wait_us:
            raise Overloaded(
                f"a session would wait {wait_us / 1000:.0f} ms for its first step, more than --max-queue-ms {self._max_wait_us / 1000:g}",
                max(MIN_RETRY_S, (wait_us - self._max_wait_us) / 1e6),
            )
