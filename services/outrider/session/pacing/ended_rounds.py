"""Rounds that ended since the last plan: what they took, against what their courses promised, and who is told of it.

What a pace takes beyond its promise, what guesses brought their session, what plain rounds pay towards probes, and what whole rounds take
of a session that is alone with a drafter of the target's own thread: all is learned from the times between commits. Knows views and what is
remembered of sessions. Must not know how a course is chosen.
"""

from __future__ import annotations

from typing import NamedTuple

from outrider.session.pacing.by_lookup import ByLookup
from outrider.session.pacing.contract import SessionView, StepView
from outrider.session.pacing.lone_rounds import LoneRounds
from outrider.session.pacing.pace_memory import PaceMemory
from outrider.session.pacing.probing import ProbeBudget
from outrider.session.pacing.remembered import RememberedSession, RememberedSessions
from outrider.session.pacing.round_model import Pace

MOST_TIMES = 3.0  # the time expected that a round may count for: a machine that stalled for once is no property of its rounds
# Plain rounds in one go that say what such a round takes: they are planned together, and one alone between others takes half as long again.
STEADY = 4


class PresentTimes(NamedTuple):
    """Microseconds. step_us: of a step of one row; beside_us: of a round, beside its step; contended_us: of such a step while drafters are
    at work; excess_us: of the newest step, beyond what its courses promise. is_far: drafters are so far away that asking them is held
    against what came of it; is_lone: one session, whose drafter computes on the target's own thread; is_timed: or one without any
    drafter at hand, so that its rounds are nobody else's either."""

    step_us: float
    beside_us: float
    contended_us: float
    excess_us: float
    is_far: bool
    is_lone: bool
    is_timed: bool


class EndedRounds:
    """Tells who learns from them: sessions, memory, budget, by_lookup and lone are the policy's."""

    def __init__(
        self, sessions: RememberedSessions, memory: PaceMemory, budget: ProbeBudget, by_lookup: ByLookup, lone: LoneRounds
    ) -> None:
        self._sessions, self._memory, self._budget, self._by_lookup, self._lone = sessions, memory, budget, by_lookup, lone

    def count(self, view: StepView, times: PresentTimes) -> None:
        """Of every session that has committed since."""
        num_plain = 0
        for session in view.sessions:
            own = self._sessions.of(session)
            if not session.following:
                own.restart_us, own.restart_len = session.waiting_since_us, session.committed_len
            if session.committed_len == own.committed_len:
                continue
            if times.is_far:
                self._sessions.count_asking(session, times.step_us + times.beside_us, times.contended_us + times.beside_us)
            took_us = session.waiting_since_us - own.ready_us - int(times.excess_us)
            # Plain rounds promise nothing: what slows them is somebody's probe, or a drafter that has not heard yet.
            if own.comparable and session.num_uncached == 1 and own.expected_us > 0.0 and own.course.pace is not Pace.PLAIN:
                self._count_drafted(session, own, took_us, len(view.sessions), times)
            if own.course.pace is Pace.PLAIN and not own.probe.is_on:
                num_plain += session.committed_len - own.committed_len
                self._count_plain(session, own, took_us, len(view.sessions), times)
            if times.is_timed and own.was_plain and session.num_uncached == 1:
                self._count_timed(session, own, took_us, took_us - view.cost.verify_us(1 + own.looked_up), times)
            if times.is_lone and own.turn_len and own.expected_us and (own.is_opening or own.is_return):
                (self._lone.openings if own.is_opening else self._lone.returns).count(took_us - own.expected_us, times.step_us)
            if times.is_lone and session.num_uncached == 1:
                self._sessions.count_texted(session, *self._by_lookup.offered(session.session, own.committed_len))
            if session.lookup_us:
                self._count_text(session, own, times.step_us)
            self._sessions.confirm_plain(session)
            _begin_round(session, own, is_plain=times.is_timed and not times.is_lone)
        if num_plain:
            self._budget.count_plain(num_plain)
            self._memory.count_plain(num_plain / len(view.sessions))

    def _count_drafted(self, session: SessionView, own: RememberedSession, took_us: int, num_sessions: int, times: PresentTimes) -> None:
        if own.course.pace is Pace.SERIAL:
            self._sessions.count_drafted(session, min(took_us, MOST_TIMES * own.expected_us) / times.step_us)
        if num_sessions == 1 and took_us > (own.expected_us if own.falls_short else 0.0):
            self._memory.count(own.course.pace, took_us, own.expected_us)
        if own.turn_len:
            self._lone.count(own.turn_len, took_us, own.expected_us, times.step_us)

    def _count_plain(self, session: SessionView, own: RememberedSession, took_us: int, num_sessions: int, times: PresentTimes) -> None:
        if num_sessions > 1 or not own.was_plain or session.num_uncached > 1:
            return
        num_tokens = session.committed_len - own.committed_len
        most_us = MOST_TIMES * num_tokens * (times.step_us + times.beside_us)
        self._sessions.kind(session).plain.count(num_tokens, min(took_us, most_us) / times.step_us)
        if times.is_lone and num_tokens > 1 and not own.looked_up:
            # none of the rounds that were not planned one by one had guesses worth a thought
            self._sessions.count_texted(session, num_tokens - 1, num_tokens - 1)

    def _count_text(self, session: SessionView, own: RememberedSession, step_us: float) -> None:
        saved_us = self._by_lookup.saved_us(session.session, own.committed_len) if own.looked_up else 0.0
        num_tokens, spent_us = session.committed_len - own.committed_len, session.lookup_us - own.lookup_us
        self._sessions.kind(session).texts.count(num_tokens, saved_us / step_us, spent_us / step_us)
        own.lookup_us = session.lookup_us

    def _count_timed(self, session: SessionView, own: RememberedSession, took_us: int, beside_us: float, times: PresentTimes) -> None:
        """Rounds without drafts, one of guesses from the text or some of none. Plain ones tell what they take where they are neither the
        first of an answer nor behind guesses, when their weights are gone from the cache. beside_us: of took_us, what passed beside a step
        of as many rows."""
        num_tokens = session.committed_len - own.committed_len
        if own.is_return:
            plain_us = times.step_us + self._lone.overhead_us(times.step_us, times.beside_us)
            self._lone.plain_returns.count(0.0 if own.looked_up else took_us - num_tokens * plain_us, times.step_us)
        elif num_tokens >= STEADY and not own.looked_up and own.committed_len > own.begin + 1:
            self._lone.count_plain(num_tokens, took_us, times.step_us)
        if own.looked_up:
            self._lone.count_looked_up(beside_us, times.step_us)


def _begin_round(session: SessionView, own: RememberedSession, *, is_plain: bool) -> None:
    """What is known of the round that begins with this commit. A session's first one with guesses, in which a resident drafter is opened
    and reads the prompt, is no verdict on anything. is_plain: it decodes plainly whatever its course, for nobody drafts."""
    own.committed_len, own.ready_us = session.committed_len, session.waiting_since_us
    is_first = session.takes_turns and not session.num_tested
    own.is_opening, own.is_return = is_first, own.looked_up > 0
    own.comparable = session.num_uncached == 1 and session.has_drafter and not own.looked_up and not is_first
    own.looked_up, own.chosen_wait_us, own.turn_len = 0, 0.0, 0
    own.was_plain = (is_plain or own.course.pace is Pace.PLAIN) and not own.probe.is_on and not session.depth
