"""What a pace is expected to yield: tokens per microsecond of plain, serial and overlapped rounds, from measured rates alone.

A chain of guesses goes on with probability continue_prob and each is right with probability acceptance, so g = continue_prob * acceptance
is the chance of one more accepted token: a round of length L emits sum over i <= L of g^i (ALGORITHMS 0, with pauses). Overlapped
rounds are a chain of two states, after the fashion of ALGORITHMS A.1: MISS (the drafter starts over, the verifier waits for `miss_len`
guesses, PEARL: 0) and HIT (it had guessed on while its guesses were verified; the verifier waits until `hit_len` are there).
Must not know sessions, views or how a pace is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from outrider.session.pacing.contract import CostCurve

MAX_SERIAL_LEN = 24
MAX_WAIT_LEN = 16
_ALMOST_ONE = 0.999
_FloatArray = npt.NDArray[np.float64]


class Pace(Enum):
    """PLAIN: no guesses. SERIAL: draft, then verify, in turns. AHEAD: the drafter goes on while its guesses are verified."""

    PLAIN = "plain"
    SERIAL = "serial"
    AHEAD = "ahead"


@dataclass(frozen=True, slots=True)
class Course:
    """A pace with its lengths, and the tokens per microsecond that one of the sessions is expected to get from it.

    miss_len: guesses to wait for when the drafter starts over. hit_len: when it had guessed on. ahead_len: tokens beyond the commit that it
    may guess.
    """

    pace: Pace
    miss_len: int
    hit_len: int
    ahead_len: int
    tokens_per_us: float


@dataclass(frozen=True, slots=True)
class RoundRates:
    """Measured. step_us: of a step in which each session has so many rows, [0] for none, [n] for n. draft_us: per token, all sessions'.

    link_us: one way between verifier and drafter. overhead_us: of a round on the verifier's side.
    """

    step_us: _FloatArray  # [MAX_SERIAL_LEN + 2]
    draft_us: float
    link_us: float
    overhead_us: float

    def round_us(self, mean_rows: _FloatArray) -> _FloatArray:
        """Time of a round whose sessions have so many rows each on average."""
        return np.interp(mean_rows, np.arange(len(self.step_us)), self.step_us) + self.overhead_us


def measured_rates(cost: CostCurve, num_sessions: int, draft_us: float, link_us: float, overhead_us: float) -> RoundRates:
    """Rates of num_sessions that share every step."""
    rows = range(MAX_SERIAL_LEN + 2)
    step_us = np.array([cost.verify_us(max(1, rows_each * num_sessions)) for rows_each in rows], np.float64)
    return RoundRates(step_us, draft_us, link_us, overhead_us)


def plain_course(rates: RoundRates) -> Course:
    """One token a round."""
    return Course(Pace.PLAIN, 0, 0, 0, 1.0 / float(rates.step_us[1] + rates.overhead_us))


def serial_courses(rates: RoundRates, acceptance: float, continue_prob: float) -> list[Course]:
    """One course for each length 1..MAX_SERIAL_LEN."""
    emitted, sent = _chains(acceptance, continue_prob, MAX_SERIAL_LEN)
    round_us = sent * rates.draft_us + 2.0 * rates.link_us + rates.round_us(1.0 + sent)
    speeds = (emitted / round_us)[1:]
    return [Course(Pace.SERIAL, length, length, length, float(speed)) for length, speed in enumerate(speeds, start=1)]


def best_ahead_course(rates: RoundRates, acceptance: float, continue_prob: float) -> Course:
    """The best pair of waits, over miss_len 0..MAX_WAIT_LEN and hit_len 1..MAX_WAIT_LEN."""
    emitted, sent = _chains(acceptance, continue_prob, MAX_WAIT_LEN)
    again = emitted[1:] - emitted[:-1]  # g^1 .. g^MAX_WAIT_LEN
    goes_on = np.append(again, again[-1] * (again[-1] / again[-2] if again[-2] > 0.0 else 0.0))  # chance of a HIT after length L: g^(L+1)
    step_us = rates.round_us(1.0 + sent)
    heard = np.where(np.arange(MAX_WAIT_LEN + 1) > 0, 2.0 * rates.link_us, 0.0)  # without a wait nothing is heard of
    miss_us = heard + sent * rates.draft_us + step_us
    ready = np.maximum(0.0, step_us / rates.draft_us - 1.0)  # guessed while a round of length L runs, less the one its last pick tests
    hit_len = np.maximum(np.arange(MAX_WAIT_LEN + 1), np.minimum(np.floor(ready), MAX_WAIT_LEN)).astype(np.int64)
    wait_us = np.maximum(0.0, np.arange(MAX_WAIT_LEN + 1) - ready[hit_len]) * rates.draft_us
    hit_us = wait_us + step_us[hit_len]
    goes_on_hit = goes_on[hit_len]
    hit_share = goes_on[:, None] / (1.0 + goes_on[:, None] - goes_on_hit[None, :])  # [miss_len, hit_len]
    tokens = (1.0 - hit_share) * emitted[:, None] + hit_share * emitted[hit_len][None, :]
    speeds = tokens / ((1.0 - hit_share) * miss_us[:, None] + hit_share * hit_us[None, :])
    miss_at, hit_at = np.unravel_index(int(np.argmax(speeds[:, 1:])), (MAX_WAIT_LEN + 1, MAX_WAIT_LEN))
    hit_at += 1
    ahead_len = int(hit_len[hit_at] + np.ceil((step_us[hit_len[hit_at]] + 2.0 * rates.link_us) / rates.draft_us)) + 1
    return Course(Pace.AHEAD, int(miss_at), int(hit_at), ahead_len, float(speeds[miss_at, hit_at]))


def _chains(acceptance: float, continue_prob: float, longest: int) -> tuple[_FloatArray, _FloatArray]:
    """For each length 0..longest: expected tokens of the round, and expected guesses sent."""
    powers = np.arange(longest + 1, dtype=np.float64)
    emitted = np.cumsum(min(_ALMOST_ONE, acceptance * continue_prob) ** powers)
    sent = np.cumsum(continue_prob**powers) - 1.0
    return emitted, sent
