"""When all sessions are looked at for better courses though nothing surprised: soon where courses change, seldom where they do not.

A look costs what half a round of a small target does. What turns a course over is mostly a session's acceptance, and with few sessions
that is a surprise (surprise.py), which is looked at whenever it comes; times and ways drift more slowly. Knows times, and whether a look
changed anything. Must not know courses, or what a look weighs.
"""

from __future__ import annotations

from outrider.session.pacing.contract import StepView
from outrider.session.pacing.surprise import MAX_SESSIONS

LOOK_EVERY_US = 40_000
PLAIN_LOOKS = 4  # times as seldom while nobody goes with guesses
CALM_LOOKS = 4  # and by and by where one look after another finds what the one before did, of so few that a surprise is looked at
SESSIONS_A_LOOK = 8  # for more of them, looks come less often
MAX_PUT_OFF = 1  # plans in a row: with good guesses there may be no wait for long


def is_read_alone(view: StepView) -> bool:
    """Whether all of a step read their prompts."""
    return all(session.num_uncached > 1 for session in view.sessions)


class LookTimes:
    """at_us: when the next one is due; None = at once. is_due: the newest plan's look, if it had one, was, and nobody's surprise."""

    def __init__(self) -> None:
        self.at_us: int | None = None
        self.is_due = False
        self._num_calm = 0  # looks that changed no course, since one did
        self._num_put_off = 0  # plans in a row in which a look was wanted

    def begin(self, now_us: int) -> bool:
        """A plan begins: whether a look is due."""
        self.is_due = self.at_us is None or now_us >= self.at_us
        return self.is_due

    def puts_off(self, view: StepView) -> bool:
        """Whether a look that is wanted had better come behind the coming step, which waits for it. What it chose beside prompts that are
        read would be looked at again behind them. One session whose guesses are at hand, of a drafter elsewhere, soon waits for more of
        them: a look takes nothing from it then; not where looks find something new, for which rounds would wait. (While nothing is known of
        drafters, looks are not put off: answers may be over before any is heard of.)"""
        if is_read_alone(view):
            return True
        first, has_room = view.sessions[0], self._num_calm > 0 and self._num_put_off < MAX_PUT_OFF
        waits_soon = has_room and len(view.sessions) == 1 and first.depth > 0 and not first.takes_turns
        self._num_put_off = self._num_put_off + 1 if waits_soon else 0
        return waits_soon

    def changed(self) -> None:
        """The look under way changed a course."""
        self._num_calm = -1

    def looked(self, now_us: int, num_sessions: int, *, drafts: bool) -> None:
        """The look is over. drafts: somebody goes with guesses; whatever is news to those that go without is a surprise, the rest only
        fades."""
        self._num_calm += 1
        if num_sessions > MAX_SESSIONS:
            times = max(1, num_sessions // SESSIONS_A_LOOK) + (0 if drafts else PLAIN_LOOKS - 1)
        else:
            times = min(CALM_LOOKS, 1 + self._num_calm) if drafts else PLAIN_LOOKS
        self.at_us = now_us + LOOK_EVERY_US * times
