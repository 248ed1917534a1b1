"""What a token is expected to take, of many pairs at once: plain, drafted in turns, drafted ahead.

The closed model of rounds that pacing policies choose by (outrider.session.pacing.round_model), reduced to what a fleet knows of a
session that has not begun: drafts never pause and have no side branches, and lengths are those of DRAFT_LENS. Three kinds of courses
are compared, each one of those that the policy compares too, so that a placement never promises more than the session's own model would:
in turns; ahead, waiting as long after a miss as after a hit (miss_len = hit_len); ahead, decoding on without guesses until the drafter is
heard of (miss_len = 0), with no more guesses than are there without waiting. All sessions of a verifier are taken to draft alike, as in
the policies. Against `adaptive` in `outrider bench simulate` (steps of 10 ms, drafted tokens of 0.5 and 2, 0.15 and 2 one way, acceptance
0.5 and 0.8, one and six sessions): 0.86 to 1.05 of the simulated time of a token.
Must not know who is paired with whom.
"""

from __future__ import annotations

import numpy as np

from outrider.coordinator.step_times import FloatColumns, IntColumns

DRAFT_LENS = np.array([1, 2, 3, 4, 6, 8, 12], np.int64)
ROUND_OVERHEAD_US = 200.0  # of a round, beside the target's step and the link: planning and messages
MIN_ACCEPTANCE, MAX_ACCEPTANCE = 1e-6, 0.999
MAX_UNHEARD = 10_000  # rounds; a drafter that far behind is of no use


def rows_of_steps(num_sessions: IntColumns) -> IntColumns:
    """[S, 1 + len(DRAFT_LENS)] rows of a step: plain, then with so many guesses for every session."""
    return num_sessions[:, None] * np.concatenate(([1], 1 + DRAFT_LENS))


def plain_us(steps_us: FloatColumns) -> FloatColumns:
    """[S] microseconds a token without guesses. steps_us: of rows_of_steps."""
    return np.asarray(steps_us[:, 0] + ROUND_OVERHEAD_US, np.float64)


def drafted_us(
    steps_us: FloatColumns, num_sessions: IntColumns, draft_us: FloatColumns, round_trip_us: FloatColumns, acceptance: FloatColumns
) -> FloatColumns:
    """[S, C] microseconds a token at the best length and pace, of verifiers [S] with drafters [S, C] each; steps_us: of rows_of_steps."""
    # Lengths come first, so that every operation runs along all pairs at once: [L, S, C].
    lengths = DRAFT_LENS.astype(np.float64).reshape(-1, 1, 1)
    right = np.clip(acceptance, MIN_ACCEPTANCE, MAX_ACCEPTANCE)
    goes_on = _powers(right)  # right ** (length + 1): all guesses right, and what follows them guessed too
    rounds_us = (steps_us[:, 1:] + ROUND_OVERHEAD_US).T[:, :, None]  # [L, S, 1]
    drafting_us = lengths * draft_us
    serial_wait = round_trip_us + drafting_us
    miss_wait = serial_wait + 0.5 * draft_us  # a drafter that is told of a mismatch has a token under way, which it ends first
    # While a step runs it guesses on; the first of these tokens tests the step's last pick and is lost.
    hit_wait = np.clip(drafting_us + draft_us - rounds_us, 0.0, drafting_us)
    any_missed = 1.0 - np.exp(num_sessions[:, None] * (lengths + 1.0) * np.log(right))  # those who share a step wait for the last of them
    ahead_wait = hit_wait + any_missed * (miss_wait - hit_wait)
    emitted = (1.0 - goes_on) / (1.0 - right)
    times = (rounds_us + np.minimum(serial_wait, ahead_wait)) / emitted
    # Decoding on: from a miss it is `heard` that leads to a hit, from a hit `goes_on`.
    plain_round_us = plain_us(steps_us)[:, None]
    heard = _heard_share(right, plain_round_us, draft_us, round_trip_us)
    hit_share = heard / (1.0 + heard - goes_on)
    decoding_on = (plain_round_us + hit_share * (rounds_us - plain_round_us)) / (1.0 + hit_share * (emitted - 1.0))
    decoding_on[hit_wait > 0.0] = np.inf
    return np.asarray(np.minimum(times, decoding_on).min(axis=0), np.float64)


def _heard_share(right: FloatColumns, plain_round_us: FloatColumns, draft_us: FloatColumns, round_trip_us: FloatColumns) -> FloatColumns:
    """[S, C] of rounds without guesses, those after which the drafter is heard of and follows (round_model._heard_share)."""
    gained_us = np.maximum(1e-3, plain_round_us - draft_us)  # on the truth, in each round
    num_unheard = np.clip(np.ceil((round_trip_us + draft_us) / gained_us), 1.0, MAX_UNHEARD)
    whole = right**num_unheard
    return np.asarray(whole * (1.0 - right) / (1.0 - whole), np.float64)


def _powers(right: FloatColumns) -> FloatColumns:
    """[L, S, C] right ** (length + 1), by multiplication: much quicker than powers, and the same bits whatever the place in the array."""
    powers = np.empty((len(DRAFT_LENS), *right.shape))
    power, exponent = right, 1
    for at, length in enumerate(DRAFT_LENS.tolist()):
        while exponent <= length:
            power, exponent = power * right, exponent + 1
        powers[at] = power
    return powers
