"""What came of a simulated run, and the recorder that collects it.

Knows counts and virtual times. Must not know policies or worlds. A token's time is its round's time shared by the tokens of that round:
time since the request's last emission / tokens emitted; first tokens are left out (they are prefill).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.session.statistics import SessionStatistics


@dataclass(frozen=True, slots=True)
class Outcome:
    """tokens_per_s: of all clients together, virtual seconds. token_ms_*: quantiles over tokens. verify_busy, draft_busy: shares of the
    time in which each computed. rows_per_step: mean. acceptance_rate: accepted / drafted. tokens_by_load: of each of the world's loads."""

    tokens_per_s: float
    num_tokens: int
    num_rounds: int
    num_steps: int
    elapsed_us: int
    mean_emitted_per_round: float
    acceptance_rate: float
    overlap_share: float
    token_ms_p50: float
    token_ms_p99: float
    verify_busy: float
    draft_busy: float
    rows_per_step: float
    tokens_by_load: tuple[int, ...] = ()


class Recorder:
    """Collects; `outcome` says what came of it."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._by_load: list[int] = []
        self._num_steps = 0
        self._num_rows = 0
        self._verify_us = 0
        self._draft_us = 0
        self._token_us: list[float] = []
        self._weights: list[int] = []

    def begin_load(self) -> None:
        """What is emitted from now on belongs to the world's next load."""
        self._by_load.append(0)

    def count_tokens(self, num_tokens: int, since_us: int | None) -> None:
        """A round emitted tokens, since_us after the request's last ones (None: its first)."""
        self.num_tokens += num_tokens
        if self._by_load:
            self._by_load[-1] += num_tokens
        if since_us is not None:
            self._token_us.append(since_us / num_tokens)
            self._weights.append(num_tokens)

    def count_step(self, num_rows: int, busy_us: int) -> None:
        """The verifier's step is over."""
        self._num_steps += 1
        self._num_rows += num_rows
        self._verify_us += busy_us

    def count_drafting(self, busy_us: int) -> None:
        """A draft step is over."""
        self._draft_us += busy_us

    def outcome(self, elapsed_us: int, sessions: Sequence[SessionStatistics]) -> Outcome:
        """Of everything until now, with the statistics of every request there was."""
        num_rounds = sum(one.num_rounds for one in sessions)
        num_drafted = sum(one.num_drafted for one in sessions)
        draft_us = sum(one.draft_us for one in sessions)
        return Outcome(
            tokens_per_s=self.num_tokens / elapsed_us * 1e6,
            num_tokens=self.num_tokens,
            num_rounds=num_rounds,
            num_steps=self._num_steps,
            elapsed_us=elapsed_us,
            mean_emitted_per_round=sum(one.num_emitted for one in sessions) / max(1, num_rounds),
            acceptance_rate=sum(one.num_accepted for one in sessions) / max(1, num_drafted),
            overlap_share=min(1.0, sum(one.overlapped_draft_us for one in sessions) / max(1, draft_us)),
            token_ms_p50=self._quantile_ms(0.5),
            token_ms_p99=self._quantile_ms(0.99),
            verify_busy=self._verify_us / elapsed_us,
            draft_busy=self._draft_us / elapsed_us,
            rows_per_step=self._num_rows / max(1, self._num_steps),
            tokens_by_load=tuple(self._by_load),
        )

    def _quantile_ms(self, share: float) -> float:
        if not self._token_us:
            return 0.0
        times, weights = np.asarray(self._token_us), np.asarray(self._weights)
        order = np.argsort(times, kind="stable")
        reached = np.cumsum(weights[order])
        return float(times[order][np.searchsorted(reached, share * reached[-1])]) / 1000.0
