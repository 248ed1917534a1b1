"""After how many guesses a drafter that runs ahead sends a tail: few enough that they come in time, many enough that they cost little.

Knows measured times only. Must not know sessions or policies.
"""

from __future__ import annotations

import math

MAX_FLUSH_LEN = 16  # in turns, too: guesses of a drafter that does not get to the end in time are there all the same
FLUSHES_A_STEP = 5  # tails that a drafter running ahead sends in the time of one step of the target
LEAST_APART_US = 1_000.0  # between two tails: each takes the verifier's core from the target, whatever a step takes
RARELY_RIGHT = 0.2
LEAST_IN_TIME = 4  # fewer guesses in time are worth less than the messages that they cost, and a step is never so punctual
_LEAST_RIGHT, _MOST_RIGHT = 0.01, 0.99


def flush_len(step_us: float, draft_us: float, link_us: float, start_us: float, right: float) -> int:
    """Guesses of a tail, 1..MAX_FLUSH_LEN. step_us: beside a drafter at work. right: chance that one more comes and is right.

    A share of a step, or what comes in LEAST_APART_US: sent off one by one, guesses would cost so much that they would stay so. Nor do
    guesses wait for one that would hardly ever be right, or for more than a drafter has time for if it starts over and they are to be here
    when a step without guesses ends: half a step away, a quarter of a step of guesses came just behind the beginning of the step that it
    was meant for, every time (0.82 of PEARL's speed, 0.95 so; bench/LOG.md, tenth session).
    """
    share = round(max(step_us / FLUSHES_A_STEP, LEAST_APART_US) / draft_us)
    useful = math.ceil(math.log(RARELY_RIGHT) / math.log(min(_MOST_RIGHT, max(_LEAST_RIGHT, right))))
    room_us = step_us - 2.0 * link_us - start_us
    in_time = int(room_us / draft_us - 0.5)  # a token is under way when it hears
    if in_time < LEAST_IN_TIME:
        in_time = MAX_FLUSH_LEN
    return max(1, min(MAX_FLUSH_LEN, share, useful, in_time))
