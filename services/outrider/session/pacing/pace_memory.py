"""Which pace keeps its promises: the time its rounds took over the time expected, so that what the model leaves out is found out.

On one shared machine a drafter that runs ahead slows the verifier it means to help; on separate machines it does not. Nothing tells which
world it is but the clock. Times of rounds, not tokens, are compared: they scatter less, and a wrong estimate of acceptance is no fault of
the pace. Must not know sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.session.pacing.round_model import Pace

TRUST_ROUNDS = 12.0  # a pace never tried counts as having kept its promise in so many rounds
KEEP_OWN = 0.985  # of what is remembered of a pace, with each of its rounds
# And with each round of another, or without guesses: one given up is tried again some day, for what it took while the machine was slow is
# no verdict for ever; but some day is not each ten answers of a quick target, of which it took two (bench/LOG.md, forty-fifth session).
KEEP_UNUSED = 0.998
MAX_SLOWNESS = 4.0  # of one round: a machine that stalled for once is no property of a pace


@dataclass(slots=True)
class _Record:
    num_rounds: float = 0.0
    slowness: float = 0.0  # sum over the rounds

    def fade(self, share: float) -> None:
        self.num_rounds *= share
        self.slowness *= share


class PaceMemory:
    """Running sums by pace. keep_unused: of a pace, with each round of another that has guesses."""

    def __init__(self, keep_unused: float = KEEP_UNUSED) -> None:
        self._keep_unused = keep_unused
        self._records = {pace: _Record() for pace in Pace}

    def factor(self, pace: Pace, before: float = 1.0) -> float:
        """What to multiply an expected speed by. before: the same of a pace never tried."""
        record = self._records[pace]
        return (record.num_rounds + TRUST_ROUNDS) / (record.slowness + TRUST_ROUNDS / before)

    def count_plain(self, num_rounds: float) -> None:
        """So many rounds went without guesses, and without probing. Of sessions in company each counts its share of a round: were it all of
        it, what many of them had learned together would be forgotten within a few steps."""
        for record in self._records.values():
            record.fade(KEEP_UNUSED**num_rounds)

    def count(self, pace: Pace, took_us: float, expected_us: float, num_rounds: float = 1.0, weight: float = 1.0) -> None:
        """So many rounds at this pace took so long, in one go; of them one may have stalled. weight: of each, in rounds of one session."""
        keep_unused = KEEP_UNUSED if pace is Pace.PLAIN else self._keep_unused
        for other, record in self._records.items():
            record.fade(KEEP_OWN ** (num_rounds * weight) if other is pace else keep_unused**num_rounds)
        self._records[pace].num_rounds += num_rounds * weight
        self._records[pace].slowness += weight * min(num_rounds - 1.0 + MAX_SLOWNESS, num_rounds * took_us / expected_us)
