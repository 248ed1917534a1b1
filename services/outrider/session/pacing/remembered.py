"""What `adaptive` remembers of each session from plan to plan, and the course that new ones begin with.

Views are all that a policy is given, so whatever needs a before and an after is kept here, of as many sessions as are remembered at most.
Must not know how a course is chosen.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.probing import Probe
from outrider.session.pacing.round_model import Course

MAX_REMEMBERED = 4096


@dataclass(slots=True)
class RememberedSession:
    """What is remembered of one session. begin: committed length when first seen. looked_at: its acceptance when its course was chosen;
    looked_untested: no guess of its own had been judged by then. before: the course that it had then, None = it was not looked at yet."""

    course: Course
    probe: Probe
    begin: int
    committed_len: int
    ready_us: int = 0  # of its newest commit
    comparable: bool = False  # the round under way is an ordinary one
    expected_us: float = 0.0  # what its course promises of the round under way, by whether its drafter follows; 0 = nothing
    chosen_wait_us: float = 0.0  # since its newest commit, as chosen first; 0 = it has not waited
    falls_short: bool = False  # it verifies fewer guesses than its course promises: that it is quick is no merit of the course
    looked_up: bool = False  # the newest round's guesses were from the text itself: the drafter has yet to hear what it found
    measured: tuple[float, float, float] = (0.0, 0.0, 0.0)  # drafting times and way when last looked at: the same if nothing came since
    restart_us: int = 0  # the newest commit that its drafter is known to have started over at, and the text's length then
    restart_len: int = 0
    looked_at: float = -1.0
    looked_untested: bool = True
    is_met: bool = False  # its drafter was asked as it began
    asked_from: int = 0  # committed length from which its drafter is asked
    before: Course | None = None
    num_hedged: int = 0  # commits in a row with leave for side branches; negative: without
    hedges_near: bool = False  # side branches pay though its drafter is close by
    hopeless: bool = False  # its drafter is too far away for any guess to pay


class RememberedSessions:
    """By session id; those not asked for the longest are forgotten first. usual: the course of sessions that nothing is known of."""

    def __init__(self, usual: Course) -> None:
        self.usual = usual
        self._sessions: OrderedDict[int, RememberedSession] = OrderedDict()

    def of(self, session: SessionView) -> RememberedSession:
        """From the first time on that it is asked for."""
        own = self._sessions.get(session.session)
        if own is None:
            at = session.committed_len
            own = self._sessions[session.session] = RememberedSession(self.usual, Probe(at), begin=at, committed_len=at)
            while len(self._sessions) > MAX_REMEMBERED:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(session.session)
        return own

    def known(self, session: int) -> RememberedSession:
        """Of one that was asked for before."""
        return self._sessions[session]
