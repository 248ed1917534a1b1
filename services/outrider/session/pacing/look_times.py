"""When all sessions are looked at for better courses though nothing surprised: soon where courses change, seldom where they do not.

A look costs what half a round of a small target does. What turns a course over is mostly a session's acceptance, and with few sessions
that is a surprise (surprise.py), which is looked at whenever it comes; times and ways drift more slowly. Knows times, and whether a look
changed anything. Must not know what a look weighs, nor of courses more than who waits for a drafter.
"""

from __future__ import annotations

from outrider.session.pacing.contract import StepView
from outrider.session.pacing.round_model import Course, Pace
from outrider.session.pacing.surprise import MAX_SESSIONS

LOOK_EVERY_US = 40_000
PLAIN_LOOKS = 4  # times as seldom while nobody goes with guesses
CALM_LOOKS = 4  # and by and by where one look after another finds what the one before did, of so few that a surprise is looked at
SESSIONS_A_LOOK = 8  # for more of them, looks come less often


def is_read_alone(view: StepView) -> bool:
    """Whether all of a step read their prompts: whatever a look chose would be looked at again behind that step, for which they wait."""
    return all(session.num_uncached > 1 for session in view.sessions)


def is_ready(view: StepView, course: Course) -> bool:
    """Whether a look would hold up the first guesses of a lone session, in turns: behind their step it waits for its drafter anyway, or
    is looked at for what they turn out to be, where its kind goes without. (Later in an answer a look finds more than it costs,
    simulated.)"""
    first = view.sessions[0]
    goes_in_turns = course.pace is Pace.SERIAL or (course.pace is Pace.PLAIN and first.takes_turns)
    return len(view.sessions) == 1 and first.depth > 0 and goes_in_turns and first.num_tested <= 1


class LookTimes:
    """at_us: when the next one is due; None = at once. is_due: the newest plan's look, if it had one, was, and nobody's surprise."""

    def __init__(self) -> None:
        self.at_us: int | None = None
        self.is_due = False
        self._was_put_off = False
        self._num_calm = 0  # looks that changed no course, since one did

    def begin(self, now_us: int) -> bool:
        """A plan begins: whether a look is due."""
        self.is_due = self.at_us is None or now_us >= self.at_us
        return self.is_due

    def may_wait(self, view: StepView, first: Course) -> bool:
        """Whether the look that is due may come with a later plan, where it holds nobody up; while nothing is known of drafters it may
        not, for answers may be over before any is heard of. first: of the first session. Guesses put a look off once."""
        self._was_put_off = is_ready(view, first) and not self._was_put_off
        return self._was_put_off or is_read_alone(view)

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
