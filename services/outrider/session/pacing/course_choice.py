"""The courses that a session chooses among, and the acceptance it chooses by.

Must not know what was achieved, nor what is remembered of sessions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from outrider.session.pacing.contract import SessionView, StepView
from outrider.session.pacing.depth_bands import DepthOffsets
from outrider.session.pacing.round_model import (
    Course,
    Pace,
    RoundRates,
    SerialRounds,
    best_ahead_course,
    plain_course,
    serial_speed,
    speed_to_end,
)

# A session that was hardly tested is hoped to be an agreeable one: only who guesses learns.
HOPEFUL_TESTS = 4
# Tests of a session in which nothing went wrong: from so many on it is taken for one whose text suits its drafter, whatever the sessions
# before it were like, until so many are known that its own estimates say so. Four in a row are seldom those of another text.
FLAWLESS_TESTS = range(4, 17)
FLAWLESS = 0.97  # acceptance, and chance to go on without a pause, of such a text
ACCEPTANCE_STEP = 1 / 64  # sessions that agree to this share one look at the model
HOPELESS = 0.85  # acceptance at which a drafter must pay, if its guesses cost nothing, to be asked at all


def hoped_acceptance(session: SessionView, *, is_far: bool = False) -> float:
    """Acceptance to choose a course by. is_far: its drafter is so far away that whoever goes without hardly hears of it again; of one that
    was never wrong as much is hoped as before it was tested."""
    if not session.has_drafter or not session.max_draft_len:
        return session.acceptance  # nobody whose guesses could be tested
    if _suits(session):
        return max(session.acceptance, FLAWLESS)
    if is_far and session.is_flawless and session.num_tested < FLAWLESS_TESTS.stop:
        return max(session.acceptance, session.hope)
    share = max(0.0, 1.0 - session.num_tested / HOPEFUL_TESTS)
    return max(session.acceptance, session.acceptance + share * (session.hope - session.acceptance))


def hoped_continue(session: SessionView) -> float:
    """Chance to go on after one more token, to choose a course by."""
    return max(session.continue_prob, FLAWLESS) if _suits(session) else session.continue_prob


def _suits(session: SessionView) -> bool:
    """Whether its text is taken to suit its drafter. Only of one that is of the target's own thread: what is tried in vain elsewhere takes
    cores, and in company time, from others."""
    return session.takes_turns and session.is_flawless and session.num_tested in FLAWLESS_TESTS


def drafting_paces(view: StepView) -> tuple[Pace, ...]:
    """Those that the drafters of these sessions can keep: nobody runs ahead who computes only while the target rests. Empty where nobody
    has a drafter, as while they are opened: then it is not known."""
    drafted = [session for session in view.sessions if session.has_drafter]
    if not drafted:
        return ()
    return (Pace.SERIAL,) if all(session.takes_turns for session in drafted) else (Pace.SERIAL, Pace.AHEAD)


def courses_of(
    rates: dict[Pace, RoundRates],
    drafting: Collection[Pace],
    longest: int,
    acceptance: float,
    continue_prob: float,
    hedge_share: float,
    *,
    present_len: int = 0,
    offsets: DepthOffsets = (),
) -> dict[Pace, list[Course]]:
    """Of plain decoding and of each drafting pace, those worth comparing: in turns the best of at most `longest` guesses, and the one of
    present_len, if there is one. continue_prob, hedge_share, offsets: as in SessionView."""
    courses = {Pace.PLAIN: [plain_course(rates[Pace.PLAIN])]}
    if Pace.SERIAL in drafting:
        rounds = SerialRounds.of(rates[Pace.SERIAL], acceptance, continue_prob, offsets)
        lengths = {rounds.best_len(longest), present_len} if 0 < present_len <= longest else (rounds.best_len(longest),)
        courses[Pace.SERIAL] = [rounds.course(length) for length in lengths]
    if Pace.AHEAD in drafting:
        courses[Pace.AHEAD] = [best_ahead_course(rates[Pace.AHEAD], acceptance, continue_prob, hedge_share, offsets)]
    return courses


def same_course(course: Course, among: list[Course]) -> Course | None:
    """The same course under present rates; None when it is not among them."""
    return next((one for one in among if (one.miss_len, one.hit_len) == (course.miss_len, course.hit_len)), None)


def num_left(session: SessionView) -> float:
    """Tokens to expect of the rest of an answer, at least one."""
    return max(1.0, session.expected_left or session.remaining)


def is_too_far(rates: dict[Pace, RoundRates], session: SessionView, longest: int, probe_len: int, least_gain: float) -> bool:
    """Guesses come from so far that they would not pay if they cost nothing, on a text that suits the drafter. What drafts took and how
    often they were right before is no reason: the next text may be another kind, and who is not asked is not measured."""
    quick = {pace: replace(one, draft_us=1.0, start_us=0.0) for pace, one in rates.items()}
    right, least = max(HOPELESS, session.hope, session.acceptance), (1.0 + least_gain) * plain_course(quick[Pace.PLAIN]).tokens_per_us
    if serial_speed(quick[Pace.SERIAL], right, min(probe_len, longest)) > least:
        return False  # one way that pays is enough, and most drafters are near
    courses = courses_of(quick, (Pace.SERIAL,) if session.takes_turns else (Pace.SERIAL, Pace.AHEAD), longest, right, 1.0, 0.0)
    speeds = [course.tokens_per_us for course in courses[Pace.SERIAL]]
    for ahead in courses.get(Pace.AHEAD, ()):
        speed = ahead.tokens_per_us
        speeds.append(speed_to_end(quick[Pace.AHEAD], speed, num_left(session)) if ahead.waits_for_none else speed)
    return max(speeds) <= least
