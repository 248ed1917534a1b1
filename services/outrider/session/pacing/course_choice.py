"""The courses that a session chooses among, and the acceptance it chooses by.

Must not know what was achieved, nor what is remembered of sessions.
"""

from __future__ import annotations

from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.round_model import Course, Pace, RoundRates, best_ahead_course, plain_course, serial_courses

# A session that was hardly tested is hoped to be an agreeable one: only who guesses learns.
HOPEFUL_TESTS = 4


def hoped_acceptance(session: SessionView) -> float:
    """Acceptance to choose a course by."""
    if not session.has_drafter or not session.max_draft_len:
        return session.acceptance  # nobody whose guesses could be tested
    share = max(0.0, 1.0 - session.num_tested / HOPEFUL_TESTS)
    return max(session.acceptance, session.acceptance + share * (session.hope - session.acceptance))


def courses_of(
    rates: dict[Pace, RoundRates], longest: int, acceptance: float, continue_prob: float, hedge_share: float
) -> dict[Pace, list[Course]]:
    """Of each pace, those worth comparing. continue_prob, hedge_share: as in SessionView."""
    return {
        Pace.PLAIN: [plain_course(rates[Pace.PLAIN])],
        Pace.SERIAL: serial_courses(rates[Pace.SERIAL], acceptance, continue_prob)[:longest],
        Pace.AHEAD: [best_ahead_course(rates[Pace.AHEAD], acceptance, continue_prob, hedge_share)],
    }


def same_course(course: Course, among: list[Course]) -> Course | None:
    """The same course under present rates; None when it is not among them."""
    return next((one for one in among if (one.miss_len, one.hit_len) == (course.miss_len, course.hit_len)), None)


def num_left(session: SessionView) -> float:
    """Tokens to expect of the rest of an answer, at least one."""
    return max(1.0, session.expected_left or session.remaining)
