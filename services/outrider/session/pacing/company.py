"""Drafts in turns of several sessions: one round for all of them, which takes as long as the longest draft and the step of all rows; or
one for each of several groups, which draft while the steps of the others run.

A session in company has no round of its own: with fewer guesses than the others it waits as long, and without any it gets one token in
their time. So lengths are chosen for all together, and then each session's guesses are held against what their rows cost everybody. In
groups the target rests only where a draft takes longer than the steps of the others; but a step of half the sessions takes more than half
as long. Knows measured rates and shares. Must not know sessions, nor what was achieved. Source: our own; the groups are the micro-batches
of pipeline parallelism (Huang et al. 2019, GPipe), with a stage that drafts and one that verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from outrider.session.pacing.depth_bands import DepthOffsets
from outrider.session.pacing.round_model import MAX_SERIAL_LEN, Course, Pace, RoundRates, chains

MAX_GROUPS = 3
KEEP_WITHIN = 0.04  # another length, or number of groups, must promise all of them so much more than the present one
_FloatArray = npt.NDArray[np.float64]


class Split(NamedTuple):
    """So many groups of the sessions that draft; those that do not are in every step. rates: of the sessions of one step."""

    num_groups: int
    rates: RoundRates

    def mean_rows(self, num_sent: _FloatArray | float) -> _FloatArray:
        """Of a session in a step, where all groups together have so many guesses."""
        return np.asarray(1.0 + num_sent / (self.num_groups * self.rates.num_sessions), np.float64)

    def fits(self, num_sent: _FloatArray) -> npt.NDArray[np.bool_]:
        """Whether so many guesses of all groups find room."""
        return np.asarray(self.mean_rows(num_sent) <= 1.0 + self.rates.most_len)

    def step_us(self, num_sent: _FloatArray | float) -> _FloatArray:
        """Of one group, with what comes beside its step. num_sent: as above."""
        return self.rates.round_us(self.mean_rows(num_sent))

    def round_us(self, wait_us: _FloatArray, num_sent: _FloatArray | float) -> _FloatArray:
        """From one step of a group to its next: those of all others pass while it drafts, or it is waited for."""
        step_us = self.step_us(num_sent)
        return np.maximum(self.num_groups * step_us, wait_us + step_us)


def splits_of(rates: RoundRates, beside: Callable[[int], RoundRates] | None, num_sessions: int, num_drafting: int) -> list[Split]:
    """All together, and the groups worth comparing. rates: of all in one step, while drafters rest; beside: of so many sessions' steps
    while drafters are at work, None = they never are."""
    splits = [Split(1, rates)]
    if beside is not None:
        for num_groups in range(2, min(MAX_GROUPS, num_drafting) + 1):
            splits.append(Split(num_groups, beside(num_sessions - num_drafting + -(-num_drafting // num_groups))))
    return splits


class Present(NamedTuple):
    """The longest draft as it is now, 0 = nobody drafts in turns; and the groups."""

    longest: int = 0
    num_groups: int = 1


def company_courses(
    splits: Sequence[Split],
    shares: Sequence[tuple[float, float] | None],
    longest: int,
    present: Present,
    offsets: Sequence[DepthOffsets] = (),
) -> list[Course]:
    """A course for each session. splits: to choose among. shares: acceptance and continue_prob, None for one without guesses, whose course
    is plain, in the rounds of the others. longest: guesses of a session at most. offsets: of each session's acceptance by depth, as in
    SessionView; () = of none. Somebody must have guesses."""
    longest = min(longest, MAX_SERIAL_LEN)
    kinds = list(zip(shares, offsets or [()] * len(shares), strict=True))
    each = {kind: _emitted_and_sent(*kind, longest) for kind in set(kinds)}
    emitted = np.array([each[kind][0] for kind in kinds])  # [session, length]
    sent = np.array([each[kind][1] for kind in kinds])
    going = [share[1] for share in shares if share is not None]
    num_plain = len(shares) - len(going)
    waits_us = [_waits_us(split, going, longest) for split in splits]
    num_sent, num_emitted = sent.sum(axis=0), emitted.sum(axis=0)
    speeds = np.array([  # [split, length]
        (num_emitted + (split.num_groups - 1) * num_plain) / split.round_us(wait_us, num_sent)
        for split, wait_us in zip(splits, waits_us, strict=True)
    ])  # fmt: skip
    speeds[:, 0] = 0.0
    for at, split in enumerate(splits):
        speeds[at, 2:] *= split.fits(num_sent)[2:]  # a longer draft would be cut, and only wait
    at, best = _best([split.num_groups for split in splits], speeds, present)
    split = splits[at]
    lengths = _own_lengths(split, emitted, sent, best, float(speeds[at, best]))
    taken = np.arange(len(shares)), lengths
    num_taken = float(sent[taken].sum())
    round_us, step_us = float(split.round_us(waits_us[at][[lengths.max()]], num_taken)[0]), float(split.step_us(num_taken))
    steps = zip(lengths.tolist(), emitted[taken].tolist(), shares, strict=True)
    return [_course(length if share is not None else 0, tokens, round_us, step_us, split.num_groups) for length, tokens, share in steps]


def _best(groups: Sequence[int], speeds: _FloatArray, present: Present) -> tuple[int, int]:
    """Split and length of the highest speed, or those of the present unless others promise a good deal more."""
    at, best = np.unravel_index(int(np.argmax(speeds)), speeds.shape)
    if 0 < present.longest < speeds.shape[1] and present.num_groups in groups:
        now = groups.index(present.num_groups), present.longest
        if speeds[at, best] <= (1.0 + KEEP_WITHIN) * speeds[now]:
            return now
    return int(at), int(best)


def _own_lengths(split: Split, emitted: _FloatArray, sent: _FloatArray, longest: int, tokens_per_us: float) -> npt.NDArray[np.int64]:
    """Of each session, 1..longest: as many guesses as add more tokens than all of them would get in the time of their rows."""
    num_sent = float(sent[:, longest].sum())
    steps_us = split.rates.steps_us(split.mean_rows(np.array([0.0, num_sent])))
    row_us = float(steps_us[1] - steps_us[0]) / max(1.0, num_sent / split.num_groups)
    net = emitted[:, 1 : longest + 1] - tokens_per_us * row_us * sent[:, 1 : longest + 1]
    return np.asarray(1 + np.argmax(net, axis=1), np.int64)


def _waits_us(split: Split, going: Sequence[float], longest: int) -> _FloatArray:
    """For each length 0..longest: what one group waits for drafts."""
    rates = split.rates
    return rates.start_us + 2.0 * rates.link_us + _longest_sent(going, longest, split.num_groups) * rates.draft_us


def _longest_sent(going: Sequence[float], longest: int, num_groups: int = 1) -> _FloatArray:
    """For each length 0..longest: the expected length of the longest chain of a group, each of which may pause before it with its own
    chance. One that never pauses is waited for however soon the others do."""
    all_short = np.prod(1.0 - np.asarray(going)[:, None] ** np.arange(longest + 1), axis=0)
    return np.asarray(np.cumsum(1.0 - all_short ** (1.0 / num_groups)) - 1.0, np.float64)


def _emitted_and_sent(share: tuple[float, float] | None, offsets: DepthOffsets, longest: int) -> tuple[_FloatArray, _FloatArray]:
    if share is None:
        return np.ones(longest + 1), np.zeros(longest + 1)
    return chains(*share, longest, offsets)


def _course(length: int, num_tokens: float, round_us: float, step_us: float, num_groups: int) -> Course:
    """num_tokens: of a step that it is in; without guesses that is each group's."""
    if not length:
        between_us = round_us / num_groups
        return Course(Pace.PLAIN, 0, 0, 0, num_tokens / between_us, between_us, between_us, between_us - step_us, num_groups)
    return Course(Pace.SERIAL, length, length, length, num_tokens / round_us, round_us, round_us, round_us - step_us, num_groups)
