"""What a token is expected to take, of many pairs at once: plain, drafted in turns, drafted ahead.

The closed model of rounds that pacing policies choose by (outrider.session.pacing.round_model), reduced to what a fleet knows of a
session that has not begun: drafts never pause and have no side branches, a round is as long after a miss as after a hit (miss_len =
hit_len), and lengths are those of DRAFT_LENS. Each is one of the courses that the policy compares, so a placement never promises more
than the session's own model would; the pace that decodes on while guesses are far away (miss_len 0) is left out, since a placement
looks for near ones first. All sessions of a verifier are taken to draft alike, as in the policies.
Must not know who is paired with whom.
"""

from __future__ import annotations

import numpy as np

from outrider.coordinator.step_times import FloatColumns, IntColumns

DRAFT_LENS = np.array([1, 2, 3, 4, 6, 8, 12], np.int64)
ROUND_OVERHEAD_US = 200.0  # of a round, beside the target's step and the link: planning and messages
MAX_ACCEPTANCE = 0.999


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
    right = np.minimum(acceptance, MAX_ACCEPTANCE)[:, :, None]  # [S, C, 1]
    powers = np.cumprod(np.broadcast_to(right, (*acceptance.shape, int(DRAFT_LENS[-1]) + 1)), axis=2)
    goes_on = powers[:, :, DRAFT_LENS]  # right ** (length + 1): all guesses right, and what follows them guessed too
    emitted = (1.0 - goes_on) / (1.0 - right)
    rounds_us = (steps_us[:, 1:] + ROUND_OVERHEAD_US)[:, None, :]  # [S, 1, L]
    token_us = draft_us[:, :, None]
    serial_wait = round_trip_us[:, :, None] + DRAFT_LENS * token_us
    miss_wait = serial_wait + 0.5 * token_us  # a drafter that is told of a mismatch has a token under way, which it ends first
    ready = np.maximum(0.0, rounds_us / token_us - 1.0)
    hit_wait = np.maximum(0.0, DRAFT_LENS - ready) * token_us
    any_missed = 1.0 - goes_on ** num_sessions[:, None, None]  # those who share a step wait for the last of them
    ahead_wait = hit_wait + any_missed * (miss_wait - hit_wait)
    return np.asarray(((rounds_us + np.minimum(serial_wait, ahead_wait)) / emitted).min(axis=2), np.float64)
