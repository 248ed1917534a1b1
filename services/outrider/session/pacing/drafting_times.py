"""What drafting took of sessions that drafted since the last look, told to the rates of the pace that they did it at.

What was learned from earlier sessions serves new ones. Knows views, the course that each session has, and when it was last looked at. Must
not know what is made of the rates.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.pace_rates import PaceRates
from outrider.session.pacing.remembered import RememberedSessions
from outrider.session.pacing.round_model import Pace


def take_up(sessions: Sequence[SessionView], remembered: RememberedSessions, rates: PaceRates) -> None:
    """What is new of them, into the rates; remembered as seen. A first tail that holds the reading of its prompt counts while nothing else
    is known only."""
    fresh: dict[Pace, list[SessionView]] = {}
    alone: list[float] = []
    for session in sessions:
        own = remembered.of(session)
        if rates.is_known and session.holds_reading:
            continue
        measured = session.draft_us_per_token, session.draft_alone_us, session.link_us
        if session.draft_us_per_token and measured != own.measured:
            if session.draft_alone_us != own.measured[1] and not rates.knows_better_than(session):
                alone.append(session.draft_alone_us)
            own.measured = measured
            fresh.setdefault(Pace.AHEAD if own.course.pace is Pace.AHEAD else Pace.SERIAL, []).append(session)
    rates.observe(fresh, alone)
