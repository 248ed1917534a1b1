"""When something was found out that the newest look did not know: a session is new and does not go as the newest of its kind went, its
first guesses were judged, they turn out otherwise than its course was chosen for, its drafter is much nearer than believed, or it is now
known what undisturbed drafting takes.

Answers may be over before the next look is due, so one that was surprised is looked at soon. A look takes a quarter of a millisecond for
every session, so several of them are not looked at for each surprise of any of them. Of many only one that decodes plainly, and whose
guesses turn out better than it was looked at for, is a surprise: while nobody guesses, looks are seldom, and the others may be as
agreeable. Knows views and what is remembered of sessions. Must not know what a look finds.
"""

from __future__ import annotations

from collections.abc import Callable

from outrider.session.pacing.contract import SessionView, StepView
from outrider.session.pacing.remembered import RememberedSession
from outrider.session.pacing.round_model import Pace

SURPRISE = 0.08  # by which an estimate of acceptance has moved
FIRST_SURPRISE = 0.02  # the same when a session's own guesses were judged for the first time, of one whose drafter runs ahead
# Of the way to its drafter as the newest look knew it: what a first draft took on top stood for whole answers.
NEARER = 0.5
MAX_SESSIONS = 4
EVERY_US = 5_000  # between two looks for a surprise's sake, for each session; one alone is looked at whenever it is surprised


class Surprises:
    """own: what is remembered of a session."""

    def __init__(self, own: Callable[[SessionView], RememberedSession]) -> None:
        self._own = own
        self._looked_us: int | None = None

    def looked(self, now_us: int) -> None:
        """All sessions were looked at."""
        self._looked_us = now_us

    def ask_for_look(self, view: StepView, *, is_sure: bool) -> bool:
        """Whether any session with a drafter is to be looked at now. is_sure: it is known what undisturbed drafting takes."""
        num = len(view.sessions)
        if num > 1 and self._looked_us is not None and view.now_us < self._looked_us + num * EVERY_US:
            return False
        if num > MAX_SESSIONS:
            return any(self._is_agreeable(session) for session in view.sessions if session.has_drafter)
        return any(self._is_surprised(session, num, is_sure=is_sure) for session in view.sessions if session.has_drafter)

    def _is_agreeable(self, session: SessionView) -> bool:
        own = self._own(session)
        return own.course.pace is Pace.PLAIN and session.num_tested > 0 and session.acceptance > own.looked_at + SURPRISE

    def _is_surprised(self, session: SessionView, num_sessions: int, *, is_sure: bool) -> bool:
        own = self._own(session)
        moved = abs(session.acceptance - own.looked_at)
        if moved > SURPRISE or (own.is_usual and num_sessions > 1):  # a course that was chosen by one alone
            return True
        is_first = own.looked_untested and session.num_tested > 0 and not own.is_usual
        if is_first and (moved > FIRST_SURPRISE or own.course.pace is not Pace.AHEAD):
            return True
        if 0.0 < session.link_us < NEARER * own.measured[2]:
            return True
        return session.draft_alone_us > 0.0 and not is_sure
