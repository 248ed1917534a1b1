"""Whatever yields the most tokens per unit of time: no guesses, drafts in turns, or a drafter that runs ahead; and how long each.

Online estimates (drafting time, measured step cost by rows, link, acceptance and pauses by session) go through the round model; what the
model leaves out, above all two processes fighting for the same cores, is learned as achieved over expected throughput by pace. A session
whose guesses do not pay goes without and is probed now and then. Loses to a well-chosen fixed policy by its probes and first windows only.
Source: our own; its parts are Leviathan et al. 2023 (serial), Liu et al. 2025 (running ahead), docs/architecture.md section 3.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from outrider.session.pacing.contract import PacingPlan, SessionView, StepView
from outrider.session.pacing.draft_length import MAX_DRAFT_LEN
from outrider.session.pacing.pace_memory import PaceMemory
from outrider.session.pacing.round_model import Course, Pace, RoundRates, best_ahead_course, measured_rates, plain_course, serial_courses
from outrider.session.pacing.waiting import plan_or_wait

LOOK_EVERY_US = 40_000
SWITCH_GAIN = 0.04  # a course must promise this much more than the present one to replace it
ACCEPTANCE_STEP = 1 / 64  # sessions that agree to this share one look at the model
PROBE_AFTER = 48  # tokens without guesses before the first probe; doubles with each that fails
MAX_PROBE_AFTER = 768
PROBE_TESTS = 4  # guesses judged before a probe is over
PROBE_LEN = 4
FIRST_COURSE = Course(Pace.SERIAL, 4, 4, 4, 0.0)  # until drafting time is known
MAX_REMEMBERED = 4096
DRAFT_TIME_RATE = 1 / 8


@dataclass(slots=True)
class _Session:
    """What is remembered of one session. plain_since: committed length at which it went without guesses."""

    course: Course = FIRST_COURSE
    plain_since: int = 0
    probe_after: int = PROBE_AFTER
    probe_until: int | None = None  # num_tested at which the probe under way is over
    committed_len: int = 0


class AdaptivePacing:
    """draft_len: an upper bound for every length; None leaves it to the model."""

    name = "adaptive"
    drafts = True

    def __init__(self, draft_len: int | None = None) -> None:
        self._longest = MAX_DRAFT_LEN if draft_len is None else draft_len
        self._memory = PaceMemory()
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._look_at_us: int | None = None
        self._counted_us: int | None = None
        self._members: frozenset[int] = frozenset()
        self._pace = Pace.SERIAL
        self._draft_us = self._link_us = self._overhead_us = 0.0

    # --- the seam ---------------------------------------------------------------------------------------------------------

    def plan(self, view: StepView) -> PacingPlan:
        """Take whoever has the guesses its course asks for."""
        self._count(view)
        if self._look_at_us is None or view.now_us >= self._look_at_us:
            self._look(view)
        return plan_or_wait(view, self._is_ready)

    def draft_ahead(self, session: SessionView) -> int:
        """As far as the course goes; nothing for a session that goes without, unless a probe is due."""
        if not session.max_draft_len:
            return 0
        own = self._remember(session)
        if own.course.pace is Pace.PLAIN:
            return min(PROBE_LEN, self._bound(session)) if self._is_probing(own, session) else 0
        return min(own.course.ahead_len, 2 * self._bound(session))

    def flush_len(self, session: SessionView) -> int:
        """Small tails: a round may begin at any length."""
        return PROBE_LEN

    # --- readiness --------------------------------------------------------------------------------------------------------

    def _is_ready(self, session: SessionView) -> bool:
        own = self._remember(session)
        course = own.course
        if course.pace is Pace.PLAIN:
            return own.probe_until is None or session.depth >= min(PROBE_LEN, self._bound(session))
        wanted = course.hit_len if session.following or session.depth else course.miss_len
        return session.depth >= min(wanted, self._bound(session))

    def _bound(self, session: SessionView) -> int:
        return max(1, min(self._longest, session.max_draft_len, session.remaining - 1))

    def _is_probing(self, own: _Session, session: SessionView) -> bool:
        """Begins a probe when one is due, ends it when enough guesses were judged."""
        if own.probe_until is None:
            if session.committed_len - own.plain_since >= own.probe_after:
                own.probe_until = session.num_tested + PROBE_TESTS
        elif session.num_tested >= own.probe_until:
            own.probe_until = None
            own.plain_since = session.committed_len
            own.probe_after = min(2 * own.probe_after, MAX_PROBE_AFTER)
        return own.probe_until is not None

    # --- what was achieved ------------------------------------------------------------------------------------------------

    def _count(self, view: StepView) -> None:
        members = frozenset(session.session for session in view.sessions)
        steady = members == self._members and all(session.num_uncached == 1 for session in view.sessions)
        num_tokens, per_us = 0, 0.0
        for session in view.sessions:
            own = self._remember(session)
            num_tokens += session.committed_len - own.committed_len
            own.committed_len = session.committed_len
            per_us += own.course.tokens_per_us
            steady &= own.course.tokens_per_us > 0.0 and (session.has_drafter or own.course.pace is Pace.PLAIN)
        if not steady or self._counted_us is None:
            self._memory.interrupt()
        elif num_tokens:
            self._memory.count(self._pace, num_tokens, per_us * (view.now_us - self._counted_us))
        if num_tokens or not steady:
            self._counted_us, self._members = view.now_us, members

    def _remember(self, session: SessionView) -> _Session:
        own = self._sessions.get(session.session)
        if own is None:
            own = self._sessions[session.session] = _Session(committed_len=session.committed_len)
            while len(self._sessions) > MAX_REMEMBERED:
                self._sessions.popitem(last=False)
        return own

    # --- looking for a better course --------------------------------------------------------------------------------------

    def _look(self, view: StepView) -> None:
        self._measure(view)
        if not self._draft_us:
            return
        self._look_at_us = view.now_us + LOOK_EVERY_US
        rates = measured_rates(view.cost, len(view.sessions), self._draft_us, self._link_us, self._overhead_us)
        found: dict[tuple[int, int], dict[Pace, list[Course]]] = {}
        gains = dict.fromkeys((Pace.SERIAL, Pace.AHEAD), 0.0)
        looks: list[tuple[SessionView, dict[Pace, list[Course]]]] = []
        for session in view.sessions:
            key = round(session.acceptance / ACCEPTANCE_STEP), round(session.continue_prob / ACCEPTANCE_STEP)
            if key not in found:
                found[key] = _courses(rates, key[0] * ACCEPTANCE_STEP, key[1] * ACCEPTANCE_STEP, self._longest)
            looks.append((session, found[key]))
            for pace in gains:
                gains[pace] += max(self._worth(course) for course in (*found[key][pace], *found[key][Pace.PLAIN]))
        drafting = self._drafting_pace(gains)
        for session, courses in looks:
            self._choose(session, courses, drafting)
        self._pace = Pace.PLAIN if all(self._sessions[s.session].course.pace is Pace.PLAIN for s in view.sessions) else drafting

    def _measure(self, view: StepView) -> None:
        """Means over the sessions that know; what was learned from earlier sessions serves new ones."""
        known = [session for session in view.sessions if session.draft_us_per_token > 0.0]
        if not known:
            return
        rate = DRAFT_TIME_RATE if self._draft_us else 1.0
        self._draft_us += rate * (sum(session.draft_us_per_token for session in known) / len(known) - self._draft_us)
        self._link_us += rate * (sum(session.link_us for session in known) / len(known) - self._link_us)
        self._overhead_us += rate * (sum(session.step_overhead_us for session in known) / len(known) - self._overhead_us)

    def _worth(self, course: Course) -> float:
        return course.tokens_per_us * self._memory.factor(course.pace)

    def _drafting_pace(self, gains: dict[Pace, float]) -> Pace:
        """One drafting pace for all: they share the drafter and its cores."""
        best = max(gains, key=lambda pace: gains[pace])
        present = self._pace if self._pace in gains else best
        return best if gains[best] > (1.0 + SWITCH_GAIN) * gains[present] else present

    def _choose(self, session: SessionView, courses: dict[Pace, list[Course]], drafting: Pace) -> None:
        own = self._sessions[session.session]
        best = max((*courses[drafting], *courses[Pace.PLAIN]), key=self._worth)
        present = _same(own.course, courses[own.course.pace]) if own.course.pace in (drafting, Pace.PLAIN) else None
        if present is not None and self._worth(best) <= (1.0 + SWITCH_GAIN) * self._worth(present):
            best = present
        if best.pace is Pace.PLAIN and own.course.pace is not Pace.PLAIN:
            own.plain_since = session.committed_len
            own.probe_until = None
        if best.pace is not Pace.PLAIN:
            own.probe_after, own.probe_until = PROBE_AFTER, None
        own.course = best


def _courses(rates: RoundRates, acceptance: float, continue_prob: float, longest: int) -> dict[Pace, list[Course]]:
    return {
        Pace.PLAIN: [plain_course(rates)],
        Pace.SERIAL: serial_courses(rates, acceptance, continue_prob)[:longest],
        Pace.AHEAD: [best_ahead_course(rates, acceptance, continue_prob)],
    }


def _same(course: Course, among: list[Course]) -> Course | None:
    """The same course under present rates; None when it is not among them."""
    for one in among:
        if course.pace is Pace.PLAIN or (one.miss_len, one.hit_len) == (course.miss_len, course.hit_len):
            return one
    return None
