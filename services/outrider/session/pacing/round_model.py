"""What a pace is expected to yield: tokens per microsecond of plain, serial and overlapped rounds, from measured rates alone.

A chain of guesses goes on with probability continue_prob and each is right with probability acceptance, so g = continue_prob * acceptance
is the chance of one more accepted token: a round of length L emits sum over i <= L of g^i (ALGORITHMS 0, with pauses). Overlapped
rounds are a chain of two states, after the fashion of ALGORITHMS A.1: MISS (the drafter starts over; the verifier waits for `miss_len`
guesses, or, PEARL's 0, decodes on without until it is heard of, or nearly, and waits for the rest) and HIT (it had guessed on while its
guesses were verified; the verifier waits until `hit_len` are there). Where acceptance differs with depth (depth_bands.py), g differs from
guess to guess, and those that were made while the round before was verified are as much deeper.
Must not know sessions, views or how a pace is carried out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from outrider.session.pacing.contract import MAX_SIDE_NODES, CostCurve
from outrider.session.pacing.depth_bands import DepthOffsets, rights_by_depth
from outrider.types.value import quickly_made

MAX_SERIAL_LEN = 32
MAX_WAIT_LEN = 31
MAX_LEAVE_LEN = 64  # tokens beyond a commit: what comes of them is kept for the steps to come, and a session keeps so many nodes at most
MAX_UNHEARD = 10_000  # rounds; a drafter that far behind is of no use
HEDGE_WORTH = 0.5  # what a side branch brings, of a whole tail
SIDE_WORTH = 0.75  # of what side nodes beside every guess would bring to a step: not all of them are there in time
HARDLY_EVER = 0.002  # chance that the truth comes so far along a chain: beyond it guesses only cost messages
LOST_TOKENS = 1.0  # of what is drafted while a step runs: the one that its last pick tests
CHAINS_KEPT = 512  # expectations of chains, by what they follow from: looks choose by acceptance in steps, and come back to the same ones
_ALMOST_ONE = 0.999
_FloatArray = npt.NDArray[np.float64]
_RANKS: _FloatArray = np.arange(MAX_SERIAL_LEN + 2, dtype=np.float64)  # made once: numpy lets go of the interpreter to make one
_ONE = np.ones(1)
_LEVELS = np.arange(MAX_WAIT_LEN + 2)
_BEGINS = np.arange(1, MAX_WAIT_LEN + 2)  # a guess lies where the round before has its own token


class Pace(Enum):
    """PLAIN: no guesses. SERIAL: draft, then verify, in turns. AHEAD: the drafter goes on while its guesses are verified."""

    PLAIN = "plain"
    SERIAL = "serial"
    AHEAD = "ahead"

    __hash__ = object.__hash__  # there is one of each, and a look asks dozens of times: an enum's own is a function of the interpreter


class Course(NamedTuple):  # made by the dozen at every look: a frozen dataclass takes six times as long
    """A pace with its lengths, and what one of the sessions is expected to get from it: tokens per microsecond, times of its rounds.

    miss_len: guesses to verify when the drafter starts over. hit_len: when it had guessed on. ahead_len: tokens beyond the commit that it
    may guess. miss_us, hit_us: rounds of either kind, waits included; in turns wait_us of them is waiting, for guesses or for the steps of
    other groups. num_groups: in turns, of the sessions that draft, each of which drafts while the steps of the others run (company.py).
    """

    pace: Pace
    miss_len: int
    hit_len: int
    ahead_len: int
    tokens_per_us: float
    miss_us: float
    hit_us: float
    wait_us: float = 0.0
    num_groups: int = 1

    @property
    def waits_for_none(self) -> bool:
        """Runs ahead, and rounds go on without guesses until its drafter is heard of."""
        return self.pace is Pace.AHEAD and not self.miss_len


@quickly_made
@dataclass(frozen=True, slots=True)
class RoundRates:
    """Measured. step_us: of a step in which each session has so many rows, [0] for none, [n] for n. draft_us: per token, all sessions'.

    num_sessions: that share every step, so that all wait for the last. link_us: one way between verifier and drafter. overhead_us: of a
    round on the verifier's side. start_us: of a draft that begins anew, beside its tokens. leave_len: tokens beyond a commit that a
    drafter may guess. toll_us: what a guess that is drafted beside a step adds to it, on cores that both want. turn_us: of a round in turns
    as a whole, without its guesses and of each of them, where that was measured (lone_rounds.py); None = its parts make it. others_us: of
    a round with guesses, what the verifier does for those of all but one session, beside the step. most_len: guesses of each that a step
    has room for.
    """

    num_sessions: int
    step_us: _FloatArray  # [MAX_SERIAL_LEN + 2]
    draft_us: float
    link_us: float
    overhead_us: float
    start_us: float = 0.0
    leave_len: int = MAX_LEAVE_LEN
    toll_us: float = 0.0
    turn_us: tuple[float, float] | None = None
    others_us: float = 0.0
    most_len: float = math.inf

    def steps_us(self, mean_rows: _FloatArray) -> _FloatArray:
        """Time of a step in which sessions have so many rows each on average."""
        return np.interp(mean_rows, _RANKS[: len(self.step_us)], self.step_us)

    def round_us(self, mean_rows: _FloatArray) -> _FloatArray:
        """Time of a round whose sessions have so many rows each on average."""
        round_us = self.steps_us(mean_rows) + self.overhead_us
        return round_us + self.others_us * (mean_rows > 1.0) if self.others_us else round_us


def measured_rates(
    cost: CostCurve,
    num_sessions: int,
    draft_us: float,
    link_us: float,
    overhead_us: float,
    start_us: float = 0.0,
    leave_len: int = MAX_LEAVE_LEN,
) -> RoundRates:
    """Rates of num_sessions that share every step."""
    step_us = cost.verify_us_of(np.maximum(1.0, num_sessions * _RANKS))
    return RoundRates(num_sessions, step_us, draft_us, link_us, overhead_us, start_us, leave_len)


def plain_course(rates: RoundRates) -> Course:
    """One token a round."""
    round_us = float(rates.step_us[1] + rates.overhead_us)
    return Course(Pace.PLAIN, 0, 0, 0, 1.0 / round_us, round_us, round_us)


@quickly_made
@dataclass(frozen=True, slots=True)
class SerialRounds:
    """Rounds in turns by length, [0..MAX_SERIAL_LEN]: tokens per microsecond, time, and what of it is waiting for guesses."""

    speeds: _FloatArray
    round_us: _FloatArray
    waits_us: _FloatArray

    @staticmethod
    def of(rates: RoundRates, acceptance: float, continue_prob: float, offsets: DepthOffsets = ()) -> SerialRounds:
        """offsets: of acceptance by depth."""
        if rates.turn_us is not None:
            emitted, sent = begun_chains(acceptance, continue_prob, MAX_SERIAL_LEN, offsets)
            round_us = rates.turn_us[0] + rates.turn_us[1] * sent
            return SerialRounds(emitted / round_us, round_us, np.maximum(0.0, round_us - rates.round_us(1.0 + sent)))
        emitted, sent = chains(acceptance, continue_prob, MAX_SERIAL_LEN, offsets)
        drafting_us = longest_sent(continue_prob, MAX_SERIAL_LEN, rates.num_sessions) * rates.draft_us
        waits_us = rates.start_us + drafting_us + 2.0 * rates.link_us
        round_us = waits_us + rates.round_us(1.0 + sent)
        return SerialRounds(emitted / round_us, round_us, waits_us)

    def best_len(self, longest: int) -> int:
        """Of lengths 1..longest."""
        return 1 + int(np.argmax(self.speeds[1 : longest + 1]))

    def course(self, length: int) -> Course:
        """Of one length."""
        took_us = float(self.round_us[length])
        return Course(Pace.SERIAL, length, length, length, float(self.speeds[length]), took_us, took_us, float(self.waits_us[length]))


def serial_courses(rates: RoundRates, acceptance: float, continue_prob: float, offsets: DepthOffsets = ()) -> list[Course]:
    """One course for each length 1..MAX_SERIAL_LEN."""
    rounds = SerialRounds.of(rates, acceptance, continue_prob, offsets)
    return [rounds.course(length) for length in range(1, MAX_SERIAL_LEN + 1)]


def serial_speed(rates: RoundRates, acceptance: float, length: int) -> float:
    """Tokens per microsecond of one of them, of a drafter that never pauses."""
    emitted = (1.0 - acceptance ** (length + 1)) / (1.0 - acceptance) if acceptance < 1.0 else length + 1.0
    return emitted / turn_us(rates, length)


def turn_us(rates: RoundRates, length: int) -> float:
    """Of a round in turns with so many guesses, by its parts."""
    beside_us = rates.overhead_us + (rates.others_us if length else 0.0)
    return float(rates.start_us + length * rates.draft_us + 2.0 * rates.link_us + beside_us + rates.step_us[length + 1])


def best_ahead_course(
    rates: RoundRates,
    acceptance: float,
    continue_prob: float,
    hedge_share: float = 0.0,
    offsets: DepthOffsets = (),
    *,
    sides_count: bool = False,
) -> Course:
    """The best pair of lengths: miss_len in 0..MAX_WAIT_LEN, hit_len in 1..MAX_WAIT_LEN. hedge_share: of mismatches that find a branch;
    sides_count: branches are expected to add to the step itself too."""
    num_unheard, plain_us = ahead_start(rates)
    heard_us = _heard_us(rates)
    num_before, rest_us = int(heard_us / plain_us), heard_us % plain_us
    if not num_before and num_unheard > 1:  # near, but slow: after one round it is behind, if not by much
        num_before, rest_us = 1, heard_us - plain_us + rates.draft_us
    shares = acceptance, continue_prob, hedge_share, hedge_share if sides_count else 0.0
    courses = [_ahead_course(rates, shares, offsets, num_unheard, 0.0)]
    if 0 < num_before < MAX_UNHEARD:  # or the rounds that end before it is heard of, and a wait for the rest
        courses.append(_ahead_course(rates, shares, offsets, num_before, rest_us / num_before))
    return max(courses, key=lambda course: course.tokens_per_us)


def ahead_start(rates: RoundRates) -> tuple[int, float]:
    """Rounds without guesses until a drafter that starts over now is heard of with guesses beyond the truth, and the time of each (us)."""
    round_us = float(rates.round_us(np.ones(1))[0])
    return _num_unheard(_heard_us(rates), round_us - rates.draft_us), round_us


def speed_to_end(rates: RoundRates, speed: float, num_left: float) -> float:
    """Tokens per microsecond in the rest of an answer, of a drafter that starts over now, whose guesses are not waited for, and that has
    this speed once it is heard of: before that come nothing but plain rounds beside it, and where those take most of the rest, they are
    all there is to it. num_left: tokens of the rest, more than 0."""
    num_before, round_us = ahead_start(rates)
    before = min(float(num_before), num_left)
    return num_left / (before * round_us + (num_left - before) / speed)


def _heard_us(rates: RoundRates) -> float:
    """From a commit that makes a drafter start over to its first guess."""
    return 2.0 * rates.link_us + rates.start_us + rates.draft_us


def _ahead_course(
    rates: RoundRates, shares: tuple[float, float, float, float], offsets: DepthOffsets, num_unheard: int, unheard_wait_us: float
) -> Course:
    """The best pair of lengths. shares: acceptance, continue_prob, hedge_share, and the same of branches verified in the step.
    num_unheard: rounds without guesses until a drafter that starts over is heard of; unheard_wait_us: what each waits on average."""
    acceptance, continue_prob, hedge_share, side_share = shares
    emitted, sent = chains(acceptance, continue_prob, MAX_WAIT_LEN, offsets)
    lengths = _RANKS[: MAX_WAIT_LEN + 1]
    right = min(_ALMOST_ONE, acceptance * continue_prob)
    step_us = rates.round_us(1.0 + sent)
    longest = longest_sent(continue_prob, MAX_WAIT_LEN, rates.num_sessions)
    ready = np.maximum(0.0, step_us / rates.draft_us - LOST_TOKENS)  # guessed meanwhile
    # Chance that what the drafter guessed beyond a round's guesses still stands after it.
    goes_on: _FloatArray = np.power(right, lengths + 1.0, dtype=np.float64)
    useful_len = math.ceil(math.log(HARDLY_EVER) / math.log(max(HARDLY_EVER, right)))
    foreseen = None
    if offsets:
        rights = np.minimum(_ALMOST_ONE, continue_prob * rights_by_depth(acceptance, offsets))
        reached: _FloatArray = np.cumprod(rights, dtype=np.float64)
        goes_on, useful_len = reached[: MAX_WAIT_LEN + 1].copy(), 1 + int((reached >= HARDLY_EVER).sum())
        foreseen = _foreseen(reached, ready, num_unheard)
        right = float(reached[min(num_unheard, len(reached)) - 1] ** (1.0 / min(num_unheard, len(reached))))
    # A drafter that is told of a mismatch has a token under way, which it ends first.
    miss_wait_us = 2.0 * rates.link_us + rates.start_us + (0.5 + longest) * rates.draft_us
    # Without guesses rounds go on one after another until the drafter is heard of; it follows if all their tokens were guessed.
    miss_wait_us[0] = unheard_wait_us
    branch_share = HEDGE_WORTH * hedge_share  # a mismatch that finds a branch goes on, if not as far
    goes_on[0] = _heard_share(right + (1.0 - right) * branch_share, num_unheard)
    goes_on[1:] += (1.0 - goes_on[1:]) * branch_share
    if side_share > 0.0:
        emitted = emitted + _side_tokens(rates, right, sent, side_share)
    hit_wait_us = np.maximum(0.0, longest - ready) * rates.draft_us
    if foreseen is None:
        num_hits = goes_on[:, None] / (1.0 - goes_on)
        more = num_hits * emitted
    else:
        num_hits, more = _by_depth(goes_on, foreseen, branch_share)
    speeds = _speeds(emitted, more, (miss_wait_us, hit_wait_us, step_us), num_hits, rates.num_sessions)
    # The drafter has leave for so many beyond what it knows to be the truth: far away that is what flows in a way there and back, unless
    # rounds without guesses are quicker than that.
    flow = rates.leave_len / (2.0 * rates.link_us + step_us + hit_wait_us)
    unheard = np.minimum(speeds[0], np.maximum(flow, 1.0 / (step_us[0] + unheard_wait_us)))
    np.minimum(speeds, flow, out=speeds)
    speeds[0] = unheard
    speeds[:, 0] = 0.0  # guesses never verified are plain decoding
    speeds[:, useful_len + 1 :] = 0.0
    if rates.most_len < MAX_WAIT_LEN:
        crowded = sent > max(1.0, rates.most_len)
        speeds[crowded] = 0.0
        speeds[:, crowded] = 0.0
    miss_len, hit_len = divmod(int(speeds.argmax()), MAX_WAIT_LEN + 1)
    meanwhile_len = max(miss_len, hit_len) + int(np.ceil((step_us[hit_len] + 2.0 * rates.link_us) / rates.draft_us)) + 1
    if rates.toll_us:
        useful_len = min(useful_len, _worth_len(rates.toll_us * float(speeds[miss_len, hit_len]), right))
    ahead_len = max(miss_len, hit_len, min(meanwhile_len, useful_len))
    miss_us, hit_us = float(miss_wait_us[miss_len] + step_us[miss_len]), float(hit_wait_us[hit_len] + step_us[hit_len])
    return Course(Pace.AHEAD, miss_len, hit_len, ahead_len, float(speeds[miss_len, hit_len]), miss_us, hit_us)


def _foreseen(reached: _FloatArray, ready: _FloatArray, num_unheard: int) -> tuple[_FloatArray, _FloatArray]:
    """Of a round with guesses that its drafter made while the one before was verified, [length of that, own length]: expected tokens, and
    the chance that the next is such a round too. reached: chance that the guess at depth 1, 2, ... and all before it are right; ready:
    guesses that are made meanwhile, beyond which the drafter knows what the round before has brought; num_unheard: rounds of length 0
    that pass meanwhile."""
    whole = np.concatenate((_ONE, reached))
    begins = _BEGINS.copy()
    begins[0] = min(num_unheard, MAX_WAIT_LEN)
    known = np.minimum(MAX_WAIT_LEN + 1, ready.astype(np.int64))
    ahead = whole[begins[:, None] + _LEVELS] / whole[begins][:, None]
    at_known = ahead[_LEVELS[:-1], known] / whole[known]
    reach = np.where(known[:, None] >= _LEVELS, ahead, at_known[:, None] * whole[: MAX_WAIT_LEN + 2])
    return reach[:, :-1].cumsum(axis=1), reach[:, 1:]


def _by_depth(goes_on: _FloatArray, foreseen: tuple[_FloatArray, _FloatArray], branch_share: float) -> tuple[_FloatArray, _FloatArray]:
    """Rounds whose guesses were made meanwhile, for each whose drafter had started over, and their tokens, [miss_len, hit_len]: the first
    of them follows a round of the other length, each other one a round like itself."""
    first, first_goes_on = foreseen
    first_goes_on = first_goes_on + (1.0 - first_goes_on) * branch_share
    again, again_goes_on = first.diagonal(), np.minimum(_ALMOST_ONE, first_goes_on.diagonal())
    num_first = goes_on[:, None]
    num_again = num_first * first_goes_on / (1.0 - again_goes_on)
    return num_first + num_again, num_first * first + num_again * again


def _speeds(
    emitted: _FloatArray,
    more: _FloatArray,
    times_us: tuple[_FloatArray, _FloatArray, _FloatArray],
    num_hits: _FloatArray,
    num_sessions: int,
) -> _FloatArray:
    """Tokens per microsecond, [miss_len, hit_len]. emitted: of a round whose drafter had started over; more, num_hits: tokens and number of
    the rounds for each of those whose guesses were made meanwhile. times_us: waits of either, and steps, by length."""
    miss_wait_us, hit_wait_us, step_us = times_us
    if num_sessions == 1:  # nobody waits for anybody else: as much of either round as there is
        return np.asarray((emitted[:, None] + more) / ((miss_wait_us + step_us)[:, None] + num_hits * (hit_wait_us + step_us)), np.float64)
    num_all = 1.0 + num_hits
    hit_share = num_hits / num_all
    waits_us = _mean_longest_wait(miss_wait_us[:, None], hit_wait_us[None, :], hit_share, num_sessions)
    steps_us = (1.0 - hit_share) * step_us[:, None] + hit_share * step_us[None, :]
    return np.asarray((emitted[:, None] + more) / num_all / (waits_us + steps_us), np.float64)


def _worth_len(toll: float, right: float) -> int:
    """Guesses beyond a commit of which each is more often reached by the truth than it costs tokens. toll: of a guess, in tokens that the
    time would bring which it takes from the target."""
    least = max(HARDLY_EVER, min(_ALMOST_ONE, toll))
    return math.ceil(math.log(least) / math.log(max(HARDLY_EVER, right)))


def _side_tokens(rates: RoundRates, right: float, sent: _FloatArray, side_share: float) -> _FloatArray:
    """For each length 0..MAX_WAIT_LEN: what second choices beside the first guesses add to a round, less what plain decoding would do in
    the time of their rows. As many of them as are worth it."""
    num_sides = np.arange(MAX_SIDE_NODES + 1)
    tokens = SIDE_WORTH * side_share * (1.0 - right**num_sides)
    without_us = rates.round_us(1.0 + sent)[:, None]
    with_us = rates.round_us((1.0 + sent)[:, None] + num_sides[None, :])
    net = tokens[None, :] - (with_us - without_us) / float(rates.round_us(np.ones(1))[0])
    net[num_sides[None, :] > np.arange(len(sent))[:, None]] = 0.0  # beside a guess only
    return np.asarray(net.max(axis=1), np.float64)


def _num_unheard(heard_us: float, gained_us: float) -> int:
    """Rounds without guesses from a commit that the drafter did not guess until what it guesses from there is beyond the truth here.
    gained_us: on the truth, in each round."""
    return MAX_UNHEARD if gained_us <= 0.0 else max(1, min(MAX_UNHEARD, math.ceil(heard_us / gained_us)))


def _heard_share(right: float, num_unheard: int) -> float:
    """Of rounds without guesses, those after which the drafter is heard of and follows: num_unheard tokens in a row must be right, and
    a wrong one begins the count anew (runs of successes: (1 - g^n) / ((1 - g) g^n) rounds on average)."""
    whole = right**num_unheard
    return whole * (1.0 - right) / (1.0 - whole)


def _mean_longest_wait(miss_us: _FloatArray, hit_us: _FloatArray, hit_share: _FloatArray, num_sessions: int) -> _FloatArray:
    """Sessions that share a step wait for the last of them: the longer wait counts as soon as one has it."""
    longer_share = np.where(hit_us > miss_us, hit_share, 1.0 - hit_share)
    shorter = np.minimum(hit_us, miss_us)
    return np.asarray(shorter + (1.0 - (1.0 - longer_share) ** num_sessions) * np.abs(hit_us - miss_us), np.float64)


@lru_cache(maxsize=CHAINS_KEPT)
def longest_sent(continue_prob: float, longest: int, num_sessions: int) -> _FloatArray:
    """For each length 0..longest: the expected length of the longest of num_sessions chains that may pause before it. Kept: not to be
    written to, as all that follow."""
    reached = 1.0 - (1.0 - continue_prob ** _RANKS[: longest + 1]) ** num_sessions
    return _kept(np.cumsum(reached) - 1.0)


@lru_cache(maxsize=CHAINS_KEPT)
def chains(acceptance: float, continue_prob: float, longest: int, offsets: DepthOffsets = ()) -> tuple[_FloatArray, _FloatArray]:
    """For each length 0..longest: expected tokens of the round, and expected guesses sent, of a drafter that starts over. offsets: of
    acceptance by depth."""
    powers = _RANKS[: longest + 1]
    if offsets:
        emitted = np.ones(longest + 1)
        emitted[1:] += np.cumsum(np.cumprod(continue_prob * rights_by_depth(acceptance, offsets)[:longest]))
    else:
        emitted = np.cumsum(min(_ALMOST_ONE, acceptance * continue_prob) ** powers)
    sent = np.cumsum(continue_prob**powers) - 1.0
    return _kept(emitted), _kept(sent)


@lru_cache(maxsize=CHAINS_KEPT)
def begun_chains(acceptance: float, continue_prob: float, longest: int, offsets: DepthOffsets = ()) -> tuple[_FloatArray, _FloatArray]:
    """`chains` of a drafter whose first guess is always sent. continue_prob counts that guess as one that was gone on with: of drafts of
    mean length s it is s / (s + 1), where one goes on behind a guess in (s - 1) / s."""
    goes_on = max(0.0, 2.0 - 1.0 / max(continue_prob, 0.5))
    emitted, sent = np.ones(longest + 1), np.zeros(longest + 1)
    reached = goes_on ** _RANKS[:longest]
    rights = rights_by_depth(acceptance, offsets)[:longest] if offsets else np.full(longest, min(_ALMOST_ONE, acceptance))
    emitted[1:] += np.cumsum(reached * np.cumprod(rights))
    sent[1:] = np.cumsum(reached)
    return _kept(emitted), _kept(sent)


def _kept(values: _FloatArray) -> _FloatArray:
    values.setflags(write=False)
    return values
