"""Drafts in turns of several sessions: one round for all of them, which takes as long as the longest draft and the step of all rows.

A session in company has no round of its own: with fewer guesses than the others it waits as long, and without any it gets one token in
their time. So lengths are chosen for all together, and then each session's guesses are held against what their rows cost everybody.
Knows measured rates and shares. Must not know sessions, nor what was achieved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider.session.pacing.depth_bands import DepthOffsets
from outrider.session.pacing.round_model import MAX_SERIAL_LEN, Course, Pace, RoundRates, chains

KEEP_WITHIN = 0.04  # another length must promise all of them so much more than the present one
_FloatArray = npt.NDArray[np.float64]


def company_courses(
    rates: RoundRates,
    shares: Sequence[tuple[float, float] | None],
    longest: int,
    present_len: int,
    offsets: Sequence[DepthOffsets] = (),
) -> list[Course]:
    """A course for each session. shares: acceptance and continue_prob, None for one without guesses, whose course is plain, in the rounds
    of the others. longest: guesses of a session at most. present_len: of the longest draft as it is now, 0 = nobody drafts in turns.
    offsets: of each session's acceptance by depth, as in SessionView; () = of none. Somebody must have guesses."""
    longest = min(longest, MAX_SERIAL_LEN)
    kinds = list(zip(shares, offsets or [()] * len(shares), strict=True))
    each = {kind: _emitted_and_sent(*kind, longest) for kind in set(kinds)}
    emitted = np.array([each[kind][0] for kind in kinds])  # [session, length]
    sent = np.array([each[kind][1] for kind in kinds])
    going = [share[1] for share in shares if share is not None]
    waits_us = rates.start_us + 2.0 * rates.link_us + _longest_sent(going, longest) * rates.draft_us
    speeds = emitted.sum(axis=0) / (waits_us + rates.round_us(1.0 + sent.mean(axis=0)))
    speeds[0] = 0.0
    best = int(np.argmax(speeds))
    if 0 < present_len <= longest and speeds[best] <= (1.0 + KEEP_WITHIN) * speeds[present_len]:
        best = present_len
    lengths = _own_lengths(rates, emitted, sent, best, float(speeds[best]))
    taken = np.arange(len(shares)), lengths
    wait_us = float(waits_us[lengths.max()])
    round_us = wait_us + float(rates.round_us(np.array([1.0 + sent[taken].mean()]))[0])
    every = zip(lengths.tolist(), (emitted[taken] / round_us).tolist(), shares, strict=True)
    return [_course(length if share is not None else 0, speed, round_us, wait_us) for length, speed, share in every]


def _own_lengths(rates: RoundRates, emitted: _FloatArray, sent: _FloatArray, longest: int, tokens_per_us: float) -> npt.NDArray[np.int64]:
    """Of each session, 1..longest: as many guesses as add more tokens than all of them would get in the time of their rows."""
    num_rows = 1.0 + sent[:, longest].mean()
    steps_us = rates.steps_us(np.array([1.0, num_rows]))
    row_us = float(steps_us[1] - steps_us[0]) / max(1.0, len(emitted) * (num_rows - 1.0))
    net = emitted[:, 1 : longest + 1] - tokens_per_us * row_us * sent[:, 1 : longest + 1]
    return np.asarray(1 + np.argmax(net, axis=1), np.int64)


def _longest_sent(going: Sequence[float], longest: int) -> _FloatArray:
    """For each length 0..longest: the expected length of the longest chain of them all, each of which may pause before it with its own
    chance. One that never pauses is waited for however soon the others do."""
    reached = 1.0 - np.prod(1.0 - np.asarray(going)[:, None] ** np.arange(longest + 1), axis=0)
    return np.asarray(np.cumsum(reached) - 1.0, np.float64)


def _emitted_and_sent(share: tuple[float, float] | None, offsets: DepthOffsets, longest: int) -> tuple[_FloatArray, _FloatArray]:
    if share is None:
        return np.ones(longest + 1), np.zeros(longest + 1)
    return chains(*share, longest, offsets)


def _course(length: int, tokens_per_us: float, round_us: float, wait_us: float) -> Course:
    pace = Pace.SERIAL if length else Pace.PLAIN
    return Course(pace, length, length, length, tokens_per_us, round_us, round_us, wait_us)
