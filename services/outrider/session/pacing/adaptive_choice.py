"""What `adaptive` weighed for a session, in words and numbers: its course, the best of every other pace, and why it has the one it has.

Reads what the policy keeps anyway: the courses of its newest look, what it remembers of the session and what was achieved. Must not change
any of it, nor choose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider.session.pacing.by_lookup import ByLookup
from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionView, StepView
from outrider.session.pacing.course_choice import hoped_acceptance, hoped_continue
from outrider.session.pacing.explaining import explain_plan
from outrider.session.pacing.explanation import Choice, Estimates, PlanExplanation, Promise, Way, Why
from outrider.session.pacing.pace_rates import PaceRates
from outrider.session.pacing.remembered import RememberedSession, RememberedSessions
from outrider.session.pacing.round_model import Course, Pace

# Of the sessions of one look: the courses that each chose among, by pace.
Looks = Sequence[tuple[SessionView, Mapping[Pace, Sequence[Course]]]]
WAYS: Mapping[Pace, Way] = {Pace.PLAIN: Way.PLAIN, Pace.SERIAL: Way.IN_TURNS, Pace.AHEAD: Way.AHEAD}


@dataclass(frozen=True, slots=True)
class Weighing:
    """looks: the newest. worth: of a course in what is left of an answer, tokens per microsecond, corrected by what was achieved."""

    looks: Looks
    sessions: RememberedSessions
    rates: PaceRates
    by_lookup: ByLookup
    worth: Callable[[SessionView, Course], float]

    def explain(self, policy: str, view: StepView, plan: PacingPlan, cost: CostCurve) -> PlanExplanation:
        """The newest plan, of this view."""
        return explain_plan(policy, view, plan, cost, self.choice_of, self.estimates_of)

    def choice_of(self, session: SessionView) -> Choice:
        """Its course, or the guesses from the text that it goes by instead."""
        own = self.sessions.known(session.session)
        chosen, weighed = self._promise(session, own.course), self._others(session, own.course)
        others, looked_up = [self._promise(session, one) for one in weighed], self._looked_up(session)
        if _wants_drafter(session, own):  # whatever its course
            chosen, weighed, others = Promise(Way.PLAIN, 0, 0, self.by_lookup.plain_speed or None), [], []
        if self.by_lookup.goes(session) and looked_up is not None:
            return Choice(looked_up, tuple(sorted((chosen, *others), key=_speed, reverse=True)), Why.MOST)
        better = [one for one in weighed if self.worth(session, one) > self.worth(session, own.course)]
        rejected = sorted(others if looked_up is None else (*others, looked_up), key=_speed, reverse=True)
        kept = bool(better) and own.before is not None and own.before.pace is own.course.pace
        # Guesses from the text must promise a good deal more than the course to be begun with.
        kept = kept or (looked_up is not None and chosen.tokens_per_us is not None and _speed(looked_up) > chosen.tokens_per_us)
        return Choice(chosen, tuple(rejected), self._why(session, own, better, kept=kept), kept)

    def estimates_of(self, session: SessionView) -> Estimates:
        """Those that its courses were weighed by."""
        pace = self.sessions.known(session.session).course.pace
        draft_us = self.rates.draft_us(pace) or None
        return Estimates(hoped_acceptance(session), hoped_continue(session), 2.0 * self.rates.link_us or None, draft_us)

    def _why(self, session: SessionView, own: RememberedSession, better: Sequence[Course], *, kept: bool) -> Why:
        if not session.max_draft_len or _wants_drafter(session, own):
            return Why.ONLY
        if own.probe.is_on:
            return Why.PROBE
        if not self.rates.is_known:
            return Why.UNHEARD if own.course.pace is Pace.PLAIN else Why.UNMEASURED
        if not own.course.tokens_per_us:
            return Why.UNMEASURED
        if own.before is None:
            return Why.INHERITED
        if own.course.pace is not Pace.PLAIN and len(self.looks) > 1 and any(_drafts_otherwise(one, own.course) for one in better):
            return Why.SHARED
        return Why.KEPT if kept else Why.MOST

    def _others(self, session: SessionView, course: Course) -> list[Course]:
        """The best course of each pace, its own left out; nothing for a session that was not looked at."""
        weighed = next((courses for looked_at, courses in self.looks if looked_at.session == session.session), {})
        best = (max(courses, key=lambda one: one.tokens_per_us) for courses in weighed.values())
        return [one for one in best if (one.pace, one.miss_len, one.hit_len) != (course.pace, course.miss_len, course.hit_len)]

    def _promise(self, session: SessionView, course: Course) -> Promise:
        speed = self.worth(session, course) if course.tokens_per_us else None
        return Promise(WAYS[course.pace], course.hit_len, course.miss_len, speed)

    def _looked_up(self, session: SessionView) -> Promise | None:
        """None: the text offers nothing that pays."""
        num, speed = self.by_lookup.offer(session)
        return Promise(Way.LOOKUP, num, num, speed) if num else None


class ExplainsAdaptive(ABC):
    """What `adaptive` inherits to be asked why; the rest of it, as far as an explanation reads it, is declared here."""

    name: str
    _looks: Looks = ()
    _sessions: RememberedSessions
    _rates: PaceRates
    _by_lookup: ByLookup
    _pace: Pace
    _num_groups: int

    def explain(self, view: StepView, plan: PacingPlan) -> PlanExplanation:
        """By what was weighed at the newest look; looks at nothing anew."""
        drafted = any(part.max_nodes and not part.from_lookup for part in plan.take)
        beside = self._pace is Pace.AHEAD or (self._num_groups > 1 and self._pace is Pace.SERIAL)
        cost = view.overlapped_cost if beside else view.turn_cost if drafted else view.cost
        cost = cost.shared_by(max(1, len(plan.take)))  # of groups not everybody is in the step
        weighing = Weighing(self._looks, self._sessions, self._rates, self._by_lookup, self._worth_to_end)
        return weighing.explain(self.name, view, plan, cost)

    @abstractmethod
    def _worth_to_end(self, session: SessionView, course: Course) -> float:
        """As Weighing.worth."""


def _wants_drafter(session: SessionView, own: RememberedSession) -> bool:
    """There is nobody to draft, and nothing left of anybody who did."""
    return not session.has_drafter and not session.depth and not own.probe.is_on


def _drafts_otherwise(one: Course, course: Course) -> bool:
    return one.pace is not Pace.PLAIN and one.pace is not course.pace


def _speed(promise: Promise) -> float:
    return promise.tokens_per_us or 0.0
