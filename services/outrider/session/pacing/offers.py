"""What each drafting pace offers all sessions of a step together: a course for each of them, and what all of them get.

Sessions share the step, the drafter and, maybe, its cores, so none chooses for itself. In turns they have one round, as long as the longest
draft (company.py). Beside a drafter that runs ahead those who go without are slowed as well as those who guess. Knows courses, what they
are worth and what is remembered of sessions. Must not know how a worth comes about, nor change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from outrider.session.pacing.company import Present, company_courses, splits_of
from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.course_choice import ACCEPTANCE_STEP, hoped_acceptance, hoped_continue, same_course
from outrider.session.pacing.remembered import RememberedSession
from outrider.session.pacing.round_model import Course, Pace, RoundRates, plain_course

Look = tuple[SessionView, dict[Pace, list[Course]]]  # what a session may choose among
Offer = tuple[list[Course], float]  # a course for each session; tokens per microsecond of all
# By which drafters of several sessions that run ahead must promise more than drafts in turns, for each session: what they draft in vain is
# sent, taken in and dropped again, and a step that reads somebody's prompt finds them halfway.
IN_VAIN = 0.0015
LAST_GAIN = 0.01  # by which the other pace must promise more than going without, of one that gives up guesses: a drafter is not free
speed_of = attrgetter("tokens_per_us")  # among courses of one pace as good as their worth


@dataclass(frozen=True, slots=True)
class Margins:
    """Shares by which a course must promise more: than plain decoding, to begin with guesses (start) or to keep to them (keep); than the
    present one, to replace it (switch)."""

    start: float
    keep: float
    switch: float


@dataclass(frozen=True, slots=True)
class Offers:
    """Of one look. worth: of a course, corrected by what was achieved; worth_to_end: in what is left of an answer. own: what is
    remembered of a session. longest: guesses of a session at most. brought: what drafts in turns brought a session lately that goes
    by them, tokens per microsecond: who stops for a low promise alone would stop at every run of wrong ones. plain_share: of what plain
    decoding is worth, what one has that is alone, as its kind had lately."""

    rates: Mapping[Pace, RoundRates]
    margins: Margins
    longest: int
    own: Callable[[int], RememberedSession]
    worth: Callable[[Course], float]
    worth_to_end: Callable[[SessionView, Course], float]
    brought: Callable[[RememberedSession], float]
    plain_share: Callable[[SessionView], float]
    of_groups: Callable[[int], RoundRates] | None = None

    def of(self, pace: Pace, looks: list[Look]) -> Offer:
        """Of drafts in turns, or of running ahead. The courses in turns of several sessions are added to the looks."""
        if pace is Pace.AHEAD:
            return self._ahead(looks)
        return self._alone_in_turns(*looks[0]) if len(looks) == 1 else self._in_turns(looks)

    def _alone_in_turns(self, session: SessionView, courses: dict[Pace, list[Course]]) -> Offer:
        own, plain = self.own(session.session), courses[Pace.PLAIN][0]
        drafted = self._best_drafted(own, courses[Pace.SERIAL], Pace.SERIAL)
        worth = max(self.worth(drafted), self.brought(own))
        plainly = self.plain_share(session) * self.worth(plain)
        chosen = drafted if worth > self._least(own) * plainly else plain
        return [chosen], max(worth, self.worth(max(courses[Pace.SERIAL], key=speed_of)), plainly)

    def _in_turns(self, looks: list[Look]) -> Offer:
        """All of them as much as pays for all, or none anything."""
        plain = [courses[Pace.PLAIN][0] for _, courses in looks]
        shares = [_shares(session) if self._may_draft(session) else None for session, _ in looks]
        if not any(shares):
            return plain, self._total(plain)
        present = [self.own(session.session).course for session, _ in looks]
        now = max(Present(course.hit_len, course.num_groups) if course.pace is Pace.SERIAL else Present() for course in present)
        splits = splits_of(self.rates[Pace.SERIAL], self.of_groups, len(shares), len(shares) - shares.count(None))
        together = company_courses(splits, shares, self.longest, now, [session.depth_offsets for session, _ in looks])
        for at, ((session, courses), course) in enumerate(zip(looks, together, strict=True)):
            if course.pace is Pace.SERIAL:
                looks[at] = session, {**courses, Pace.SERIAL: [course]}
        gain = self.margins.keep if drafts(present) else self.margins.start
        chosen = together if self._total(together) > (1.0 + gain) * self._total(plain) else plain
        return chosen, self._total(chosen)

    def _ahead(self, looks: list[Look]) -> Offer:
        """What those who go without lose where cores are shared is held against what the others win. Who runs ahead must promise more than
        is expected of plain decoding, for rounds without guesses are its own, too; but who goes without is worth as much as in turns."""
        slowed = plain_course(self.rates[Pace.AHEAD])
        chosen: list[Course] = []
        won = total = 0.0
        share = self.plain_share(looks[0][0]) if len(looks) == 1 else 1.0
        more = max(1.0, share)
        for session, courses in looks:
            own, plain = self.own(session.session), courses[Pace.PLAIN][0]
            beside = min(plain, slowed, key=speed_of)
            drafted = self._best_drafted(own, courses[Pace.AHEAD], Pace.AHEAD)
            worth, least = self.worth_to_end(session, drafted), self._least(own) * more
            pays = worth > least * self.worth(beside) and self._may_draft(session)
            chosen.append(drafted if pays else beside)
            won += worth - least * self.worth(plain) if pays else self.worth(beside) - self.worth(plain)
            total += worth if pays else self.worth(beside)
        if won > 0.0:
            return chosen, total
        all_plain = [courses[Pace.PLAIN][0] for _, courses in looks]
        return all_plain, share * self._total(all_plain)

    def _may_draft(self, session: SessionView) -> bool:
        return session.max_draft_len > 0 and session.committed_len >= self.own(session.session).asked_from

    def _total(self, courses: list[Course]) -> float:
        return sum(self.worth(course) for course in courses)

    def _least(self, own: RememberedSession) -> float:
        """How many times plain decoding guesses must promise."""
        return 1.0 + (self.margins.start if own.course.pace is Pace.PLAIN else self.margins.keep)

    def _best_drafted(self, own: RememberedSession, courses: list[Course], drafting: Pace) -> Course:
        best = max(courses, key=speed_of)
        present = same_course(own.course, courses) if own.course.pace is drafting else None
        return best if present is None or self.worth(best) > (1.0 + self.margins.switch) * self.worth(present) else present


def drafts(courses: Iterable[Course]) -> bool:
    """Whether anybody goes with guesses."""
    return any(course.pace is not Pace.PLAIN for course in courses)


def drafting_pace(offered: Mapping[Pace, Offer], present: Pace, going: Sequence[Course], switch: float) -> Pace:
    """One for all: they share the drafter and its cores. going: everybody's course until now. switch: share by which another pace must
    promise more than the present one. Less of a session that is alone and would go without guesses otherwise: to give them up is a switch
    as well, and of one that does nobody learns when its text becomes another."""
    gains = {pace: gain for pace, (_, gain) in offered.items()}
    if len(going) > 1 and Pace.AHEAD in gains:
        gains[Pace.AHEAD] /= 1.0 + IN_VAIN * len(going)
    best = max(gains, key=lambda pace: gains[pace])
    kept = present if present in gains else best
    gives_up = len(going) == 1 and drafts(going) and not drafts(offered[kept][0])
    return best if gains[best] > (1.0 + (LAST_GAIN if gives_up else switch)) * gains[kept] else kept


def _shares(session: SessionView) -> tuple[float, float]:
    acceptance, goes_on = (
        round(share / ACCEPTANCE_STEP) * ACCEPTANCE_STEP for share in (hoped_acceptance(session), hoped_continue(session))
    )
    return acceptance, goes_on
