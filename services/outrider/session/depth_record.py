"""What a session's guesses show of acceptance by depth, beside its single running estimate.

A logistic regression that goes on for ever: the logarithm of a guess' odds is the session's level plus an offset of its band of depth. The
level moves with the text, the offsets hardly do, so a text that changes is not taken for a drafter that drifts. Until a band has turned out
clearly otherwise than the single estimate says (a test of its outcomes), there are no offsets, and nobody plans by them. Source: our own;
the test that notices another text is Page's, as in acceptance_shift. Knows bands. Must not know drafters, rounds or what is made of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from outrider.session.acceptance_shift import AcceptanceShift
from outrider.session.guess_depths import DepthCounts
from outrider.session.pacing.depth_bands import NUM_BANDS, DepthOffsets, log_odds

RATE = 1 / 32  # of a guess: as quick as the session's single estimate, so that both speak of the same guesses
FIRST_JUDGED = 8  # guesses that the level a session begins with counts for: its first outcomes move it faster
LEAST_SPREAD = 0.05  # p (1 - p) of a guess, by which the level is moved: one surprise must not move it by more than a tenth of certainty
PRIOR_INFORMATION = 4.0  # of an offset of 0: so much must be learned before half of what was seen is believed
LEAST_INFORMATION = 2.0  # of a band, some 10 guesses, for it to be another than the one before it
MAX_INFORMATION = 32.0  # of a band, some 150 guesses: beyond it, what is older counts half
EVIDENCE, KEPT_EVIDENCE = 4.0, 3.0  # standard deviations of a band from all of them, for offsets to begin, and to stay
LITTLE = 0.25  # added to the variance of a band: a guess more or less is no evidence
CHECK_EVERY = 16  # guesses
MAX_OFFSET = 4.0
STEP = 1 / 8  # offsets that agree to this are the same
_NONE = (0.0,) * NUM_BANDS


@dataclass(frozen=True, slots=True)
class DepthPriors:
    """What sessions leave to the next one, by band, as in DepthRecord; mix: the mean offset of what was tested."""

    offsets: tuple[float, ...] = _NONE
    information: tuple[float, ...] = _NONE
    surplus: tuple[float, ...] = _NONE
    mix: float = 0.0


NO_DEPTHS = DepthPriors()


class DepthRecord:
    """Of one session. By band: the offset of the log odds; what is known of it (Fisher information of the outcomes at the single estimate);
    how many more guesses were right than the single estimate said. differs: depth makes a difference."""

    def __init__(self, known: DepthPriors = NO_DEPTHS, acceptance: float = 0.5) -> None:
        self._offsets, self._information, self._surplus = list(known.offsets), list(known.information), list(known.surplus)
        self._mix = known.mix
        self._level = log_odds(acceptance) - self._mix
        self._shift = AcceptanceShift()
        self._num_fresh = self._num_judged = 0
        self._found: tuple[float, DepthOffsets] | None = None  # the single estimate that offsets were asked for, and those
        self.differs = False
        self._check()

    def count(self, counts: DepthCounts, acceptance: float) -> None:
        """Guesses that were judged. acceptance: the session's single estimate."""
        if not self.differs:
            self._level = log_odds(acceptance) - self._mix
        spread = acceptance * (1.0 - acceptance)
        if spread < LEAST_SPREAD:
            spread = LEAST_SPREAD
        for band, num_right in enumerate(counts.right):
            if num := num_right + counts.wrong[band]:
                self._surplus[band] += num_right - num * acceptance
                self._information[band] += num * spread
                self._num_fresh += num
                self._learn(band, num, num_right)
        self._found = None
        if self._num_fresh >= CHECK_EVERY:
            self._num_fresh = 0
            self._check()

    def _learn(self, band: int, num: int, num_right: int) -> None:
        level, offset = self._level, self._offsets[band]
        expected = 1.0 / (1.0 + math.exp(-level - offset))
        surplus = num_right - num * expected
        self._num_judged += num
        self._offsets[band] = offset = offset + surplus / (PRIOR_INFORMATION + self._information[band])
        rate = RATE * num
        self._mix += (rate if rate < 1.0 else 1.0) * (offset - self._mix)
        if self.differs:  # else the single estimate says where it is, a change of text included
            changed = self._changed(num, num_right, expected)
            rate = max(RATE, 1.0 / (FIRST_JUDGED + self._num_judged))
            moved = level + rate * surplus / max(LEAST_SPREAD, expected * (1.0 - expected))
            self._level = moved if changed is None else log_odds(changed) - offset

    def _changed(self, num: int, num_right: int, expected: float) -> float | None:
        """The rate of right guesses since the text has become another, if it has."""
        found = None
        for at in range(num):
            if (changed := self._shift.rate_after(expected, right=at < num_right)) is not None:
                found = changed[0]
        return found

    def _check(self) -> None:
        """Whether depth makes a difference, and forget a part of what is old. A band is held against what all of them showed: an estimate
        that lags behind, as at the beginning of a text that suits nobody, is wrong for all alike."""
        least = KEPT_EVIDENCE if self.differs else EVIDENCE
        known_of_all = sum(self._information) or 1.0
        usual = sum(self._surplus) / known_of_all
        every = list(zip(self._surplus, self._information, strict=True))
        self.differs = any(
            (one - usual * known) ** 2 > least * least * (LITTLE + known * (1.0 - known / known_of_all)) for one, known in every
        )
        for band, (surplus, known) in enumerate(every):
            if known > MAX_INFORMATION:
                self._information[band], self._surplus[band] = 0.5 * known, 0.5 * surplus

    def offsets_from(self, acceptance: float) -> DepthOffsets:
        """Of each band, from the log odds of the session's single estimate; () while depth makes no difference. A band that was
        hardly tested is taken to be as the one before it."""
        if not self.differs:
            return ()
        if self._found is None or self._found[0] != acceptance:
            self._found = acceptance, self._offsets_from(acceptance)
        return self._found[1]

    def _offsets_from(self, acceptance: float) -> DepthOffsets:
        above = self._level - log_odds(acceptance)
        found: list[float] = []
        for offset, known in zip(self._offsets, self._information, strict=True):
            whole = max(-MAX_OFFSET, min(MAX_OFFSET, offset + above))
            found.append(round(whole / STEP) * STEP if known >= LEAST_INFORMATION or not found else found[-1])
        return tuple(found)

    def remembered(self) -> DepthPriors:
        """For the next session, of which it is not known how agreeable its text is: only what depth changes."""
        return DepthPriors(tuple(self._offsets), tuple(self._information), tuple(self._surplus), self._mix)
