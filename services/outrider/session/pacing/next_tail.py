"""When a drafter's next tail is expected, and what it must have foreseen: from when the one before arrived.

A drafter guesses one token after another, so that the arrival of its newest tail says at which instants it begins a token. One that is told
to start over ends the token that it is at: up to a token's time later than the way alone would have it, and where the same commit comes
after the same step again and again, always as much. Knows a session's view and times that are handed in. Must not know what is waited for,
or whether that pays.
"""

from __future__ import annotations

from typing import NamedTuple

from outrider.session.pacing.contract import SessionView


class TailTimes(NamedTuple):
    """Measured, in microseconds. draft_us: of a token. burst: tokens of a tail. link_us: one way. start_us: of a draft that begins anew."""

    draft_us: float
    burst: int
    link_us: float
    start_us: float

    @property
    def tail_us(self) -> float:
        """To draft one."""
        return self.burst * self.draft_us

    @property
    def anew_us(self) -> float:
        """From a commit that makes a drafter at rest start over to its first tail."""
        return 2.0 * self.link_us + self.start_us + self.tail_us


def next_tail(session: SessionView, times: TailTimes, now_us: int, restart: tuple[int, int]) -> tuple[float, int]:
    """When the next tail with guesses beyond the truth is expected, and the tokens decoded meanwhile that it must have foreseen.

    restart: the newest commit that the drafter is known to have started over at, and the text's length then. One tail follows another; the
    first ones of a drafter that starts over are for what was decoded meanwhile; so are those of one that had used up its leave, and rested
    until it heard of more. One that is late may be late as long again.
    """
    is_renewed, has_begun = session.renewed_us > 0, session.heard_us > session.waiting_since_us
    if session.depth and (session.following or has_begun) and not is_renewed:
        expected_us, num_behind = (session.heard_us or now_us) + times.tail_us, 0
    else:
        told_us, num_behind = session.waiting_since_us + times.link_us, 0
        if session.following:
            begin_us, begin_len = (session.renewed_us, session.renewed_len) if is_renewed else restart
            told_us, num_behind = begin_us + times.link_us, max(0, session.committed_len - begin_len)
        free_us = told_us + (session.heard_us - times.link_us - told_us) % times.draft_us if session.heard_us else told_us
        expected_us = free_us + times.start_us + (num_behind // times.burst + 1) * times.tail_us + times.link_us
    return max(expected_us, 2.0 * now_us - expected_us), num_behind
