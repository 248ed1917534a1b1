"""Which pace keeps its promises: achieved over expected tokens by pace, so that what the model leaves out is found out.

On one shared machine a drafter that runs ahead slows the verifier it means to help; on separate machines it does not. Nothing tells which
world it is but the throughput itself. Knows tokens and expectations. Must not know sessions or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.session.pacing.round_model import Pace

TRUST_TOKENS = 40.0  # an expectation never put to the test counts as kept so far
KEEP_OWN = 0.99  # of what is remembered of a pace, with each of its rounds
KEEP_OTHERS = 0.998  # and with each round of another pace: one given up is tried again some day


@dataclass(slots=True)
class _Record:
    achieved: float = 0.0
    expected: float = 0.0

    def fade(self, share: float) -> None:
        self.achieved *= share
        self.expected *= share


class PaceMemory:
    """Running sums by pace."""

    def __init__(self) -> None:
        self._records = {pace: _Record() for pace in Pace}
        self._pace: Pace | None = None

    def factor(self, pace: Pace) -> float:
        """What to multiply an expectation by; 1 for a pace never tried."""
        record = self._records[pace]
        return (record.achieved + TRUST_TOKENS) / (record.expected + TRUST_TOKENS)

    def interrupt(self) -> None:
        """The round under way is not comparable (prefill, sessions came or went)."""
        self._pace = None

    def count(self, pace: Pace, num_tokens: int, expected_tokens: float) -> None:
        """A round at this pace brought num_tokens where expected_tokens were expected in its time."""
        if pace is not self._pace:  # the first round after a change began under the old pace
            self._pace = pace
            return
        for other, record in self._records.items():
            record.fade(KEEP_OWN if other is pace else KEEP_OTHERS)
        self._records[pace].achieved += num_tokens
        self._records[pace].expected += expected_tokens
