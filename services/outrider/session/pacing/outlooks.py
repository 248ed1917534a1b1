"""What sessions hope for of the next step: how many guesses each waits for, when its drafter brings them and how many at a time.

Follows from a session's course, its text's guesses or its probe, and from measured times; asked at every plan. Knows views, what is
remembered of sessions and times. Must not know how a course is chosen, nor whether waiting pays.
"""

from __future__ import annotations

import math

from outrider.session.pacing.by_lookup import ByLookup
from outrider.session.pacing.contract import CostCurve, SessionView, StepView
from outrider.session.pacing.flushing import MAX_FLUSH_LEN, flush_len
from outrider.session.pacing.next_tail import TailTimes, next_tail
from outrider.session.pacing.pace_rates import PaceRates
from outrider.session.pacing.remembered import RememberedSession, RememberedSessions
from outrider.session.pacing.resting import NEAR_STEPS
from outrider.session.pacing.round_model import Pace
from outrider.session.pacing.together import Outlook

FIRST_LEN = PROBE_LEN = 4
PROBE_WAIT_STEPS = 4.0  # a probe that is waited for is in turns when its guesses take at most so many steps of the target
PROBE_HOPE = 0.8  # acceptance that a probe is worth waiting for
LEAVE_BOUNDS = 2  # leave reaches over so many of the longest drafts, of a resident drafter over one
PROMISING_LEN = 16  # guesses that one elsewhere may make that was not wrong yet, before any course was chosen
UNKNOWN_TOKENS = 4  # that a drafter of which nothing was measured is taken to guess in a step's time


class Outlooks:
    """sessions, by_lookup, rates: the policy's. longest: bound of every chain."""

    def __init__(self, sessions: RememberedSessions, by_lookup: ByLookup, rates: PaceRates, longest: int) -> None:
        self._sessions, self._by_lookup, self._rates, self._longest = sessions, by_lookup, rates, longest
        self._now_us = 0
        self._step_us = self._contended_us = 0.0
        self._cost: CostCurve | None = None  # of steps beside drafters at work
        self._num_sessions = 0

    def begin(self, view: StepView, step_us: float, contended_us: float) -> None:
        """Of the plan under way: step_us of a step of one row, contended_us of one beside drafters at work."""
        self._now_us, self._step_us, self._contended_us = view.now_us, step_us, contended_us
        self._cost, self._num_sessions = view.overlapped_cost, len(view.sessions)

    def bound(self, session: SessionView) -> int:
        """Guesses that a step may verify of it."""
        return max(1, min(self._longest, session.max_draft_len, session.remaining - 1))

    def first_leave(self, own: RememberedSession, session: SessionView) -> int:
        """Tokens that a new session's drafter may guess while the target reads its prompt, when they are cheapest, if only to find out. A
        draft in turns from elsewhere is to be there whole behind that step, beyond the token that it brings."""
        course = own.course
        if course.pace is Pace.AHEAD:
            return max(FIRST_LEN, course.ahead_len)
        return FIRST_LEN if course.pace is Pace.PLAIN or session.takes_turns else max(FIRST_LEN, course.hit_len + 1)

    def leave(self, own: RememberedSession, session: SessionView) -> int:
        """Tokens beyond the commit that the drafter of one that goes with guesses may guess. In company it drafts for others meanwhile."""
        leave = min(_reach_of(own, session), self.bound(session) * (1 if session.takes_turns else LEAVE_BOUNDS))
        if own.course.pace is not Pace.AHEAD or self._num_sessions > 1:
            return leave
        draft_us, cost = self._rates.draft_us(Pace.AHEAD), self._cost
        if cost is None or not draft_us or 2.0 * self._rates.link_us > NEAR_STEPS * self._step_us:
            return leave
        step_us = cost.verify_us(1 + own.course.hit_len) + self._rates.overhead_us
        return own.reach.leave(session, own.course, leave, step_us, draft_us)

    def flush_len(self, session: SessionView) -> int:
        """In turns nothing begins before the whole draft is there; beside the target a step may begin at any length."""
        draft_us = self._rates.draft_us(Pace.SERIAL)  # undisturbed; the step is one beside a drafter at work
        if self._sessions.of(session).course.pace is not Pace.AHEAD or not draft_us:
            return 0 if session.takes_turns else MAX_FLUSH_LEN  # one of this thread is always in time
        right = session.acceptance * session.continue_prob
        return flush_len(self._contended_us, draft_us, self._rates.link_us, self._rates.start_us, right)

    def of(self, session: SessionView) -> Outlook:
        """At this plan."""
        own, bound = self._sessions.known(session.session), self.bound(session)
        if (by_text := self._by_text(session)) is not None:
            return by_text
        wanted, right = self._wanted(own, session, bound)
        if self._num_sessions == 1 and session.depth >= wanted:  # what comes next is nobody's question
            return Outlook(wanted, bound, right, 0.0, math.inf, 0.0)
        rates = self._rates
        draft_us = self._draft_us(own)
        until_us = self._in_turns_until_us(own, session, wanted, draft_us)
        goes_on = own.course.pace is Pace.AHEAD
        burst = self.flush_len(session) if goes_on else max(1, wanted)
        times = TailTimes(draft_us, burst, rates.link_us, rates.start_us)
        next_us, num_behind = next_tail(session, times, self._now_us, (own.restart_us, own.restart_len))
        to_come = right * session.continue_prob
        return Outlook(wanted, bound, right, to_come, next_us, draft_us, until_us, goes_on, burst, num_behind, times.anew_us)

    def in_group(self, session: SessionView) -> Outlook:
        """The same of one whose group is waited for, or gone without: when more guesses come is nobody's question."""
        if (by_text := self._by_text(session)) is not None:
            return by_text
        own, bound = self._sessions.known(session.session), self.bound(session)
        wanted, right = self._wanted(own, session, bound)
        until_us = self._in_turns_until_us(own, session, wanted, self._draft_us(own))
        return Outlook(wanted, bound, right, 0.0, math.inf, 0.0, until_us)

    def _by_text(self, session: SessionView) -> Outlook | None:
        if not (num := self._by_lookup.goes(session)):
            return None
        right = math.prod(session.lookup_rights[:num]) ** (1.0 / num)
        return Outlook(num, num, right, right, self._now_us, 0.0)

    def _draft_us(self, own: RememberedSession) -> float:
        return self._rates.draft_us(own.course.pace) or self._step_us / UNKNOWN_TOKENS

    def _in_turns_until_us(self, own: RememberedSession, session: SessionView, wanted: int, draft_us: float) -> float | None:
        """Twice as long as it should take; None: not in turns, as a probe that would wait long is not."""
        if not session.has_drafter or not session.max_draft_len:
            return None
        if not own.probe.is_on and own.course.pace is not Pace.SERIAL:
            return None
        wait_us = 2.0 * self._rates.link_us + self._rates.start_us + wanted * draft_us
        if own.probe.is_on and (not wanted or wait_us > PROBE_WAIT_STEPS * self._step_us):
            return None
        return session.waiting_since_us + 2.0 * wait_us + self._step_us

    def _wanted(self, own: RememberedSession, session: SessionView, bound: int) -> tuple[int, float]:
        """Guesses that it waits for, and the chance that one is right."""
        if own.course.pace is not Pace.PLAIN:
            return min(own.course.hit_len if session.following else own.course.miss_len, bound), session.acceptance
        if own.probe.is_on:
            return 0 if self._is_probed_beside(own, session) else min(PROBE_LEN, bound), PROBE_HOPE
        return 0, session.acceptance  # guesses that come though nobody asked for more are verified where they pay

    def _is_probed_beside(self, own: RememberedSession, session: SessionView) -> bool:
        """Its drafter guesses while steps run, and what it guessed is told by what they decode, where that takes less from them than a
        wait would: of a drafter with a processor of its own, nothing."""
        if session.takes_turns:
            return False
        wait_us = 2.0 * self._rates.link_us + self._rates.start_us + PROBE_LEN * self._draft_us(own)
        return self._contended_us - self._step_us < wait_us


def _reach_of(own: RememberedSession, session: SessionView) -> int:
    """Guesses beyond the commit that its course has use for. The very first course is short in case that the drafter is of no use; where it
    was right each time, what is chosen next will have use for more, and is chosen only when this leave is on its way."""
    is_unproven = not own.course.tokens_per_us and own.course.pace is Pace.SERIAL and not session.takes_turns
    is_right = session.is_flawless and session.num_tested >= FIRST_LEN
    return PROMISING_LEN if is_unproven and is_right else own.course.ahead_len
