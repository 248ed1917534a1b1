"""Whatever yields the most tokens per unit of time: no guesses, drafts in turns, or a drafter that runs ahead; and how long each.

Online estimates (drafting time, measured step cost by rows, link, acceptance and pauses by session) go through the round model; what the
model leaves out, above all two processes fighting for the same cores, is learned from the time that each pace's rounds took over the time
expected. Everybody begins in turns, where nothing contends, and what drafting costs is kept apart for drafting in turns and drafting ahead:
the one says nothing of the other on shared cores. A session whose guesses do not pay goes without and is probed now and then. Where the
text itself offers better guesses than the course promises, a round goes by those, and the drafter rests (by_lookup.py).
Source: our own; its parts are Leviathan et al. 2023 (serial), Liu et al. 2025 (running ahead); docs/pacing.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from outrider.session.pacing.adaptive_choice import ExplainsAdaptive
from outrider.session.pacing.by_lookup import ByLookup, marked, with_guesses
from outrider.session.pacing.company_speed import CompanySpeed
from outrider.session.pacing.contract import PLAIN_REPEATS, PacingPlan, SessionView, StepView
from outrider.session.pacing.course_choice import (
    ACCEPTANCE_STEP,
    courses_of,
    drafting_paces,
    hoped_acceptance,
    hoped_continue,
    is_too_far,
    num_left,
)
from outrider.session.pacing.depth_bands import DepthOffsets
from outrider.session.pacing.draft_length import MAX_DRAFT_LEN
from outrider.session.pacing.drafting_times import take_up
from outrider.session.pacing.ended_rounds import EndedRounds, PresentTimes
from outrider.session.pacing.first_lessons import FirstLessons
from outrider.session.pacing.groups import plan_in_groups
from outrider.session.pacing.hedge_worth import HedgeWorth
from outrider.session.pacing.hedging import hedge_budget, is_near
from outrider.session.pacing.lone_rounds import LoneRounds
from outrider.session.pacing.look_times import LOOK_EVERY_US, LookTimes
from outrider.session.pacing.offers import Look, Margins, Offers, drafting_pace, drafts
from outrider.session.pacing.outlooks import FIRST_LEN, LEAVE_BOUNDS, PROBE_LEN, Outlooks
from outrider.session.pacing.pace_memory import PaceMemory
from outrider.session.pacing.pace_rates import PaceRates
from outrider.session.pacing.probing import ProbeBudget
from outrider.session.pacing.promises import note_step, note_turn, note_waits
from outrider.session.pacing.remembered import RememberedSession, RememberedSessions
from outrider.session.pacing.round_model import Course, Pace, RoundRates, plain_course, speed_to_end
from outrider.session.pacing.row_budget import Wanted, share_rows
from outrider.session.pacing.saturation import Saturation
from outrider.session.pacing.side_nodes import SideNodes
from outrider.session.pacing.silence import Silence
from outrider.session.pacing.surprise import Surprises
from outrider.session.pacing.together import plan_together
from outrider.session.pacing.whole_draft import whole_draft

SWITCH_GAIN = 0.04  # a course must promise this much more than the present one to replace it
START_GAIN, KEEP_GAIN = 0.05, -0.02  # over plain decoding, to begin with guesses and to keep to them: only who guesses goes on learning
LONE_KEEP_GAIN = 0.0  # where whole rounds are measured, and its drafter is asked with each session anyway: less than par teaches nothing
FEW_SESSIONS, MANY_STEPS = 8, 4  # of more sessions than that, those share a look that agree to so many times as much
FAR_STEPS = 4.0  # of the target, there and back: asking across more is held against what came of it
FIRST_COURSE = Course(Pace.SERIAL, FIRST_LEN, FIRST_LEN, FIRST_LEN, 0.0, 0.0, 0.0)  # in turns: what is measured then is nobody's contention
UNPROVEN_GAIN = 2.0  # over plain decoding: what a drafter that nothing is known of yet is taken to promise


class AdaptivePacing(ExplainsAdaptive):
    """draft_len: an upper bound for every length; None leaves it to the model."""

    name = "adaptive"
    drafts = True
    looks_up = True
    hedges = True

    def __init__(self, draft_len: int | None = None) -> None:
        self._longest = MAX_DRAFT_LEN if draft_len is None else draft_len
        self._memory = PaceMemory()  # of rounds of one session alone
        self._company_speed = CompanySpeed()
        self._budget = ProbeBudget()
        self._by_lookup = ByLookup(self._longest)
        self._sides = SideNodes()
        self._hedge_worth = HedgeWorth()
        self._silence = Silence()  # watched until anything is measured
        self._sessions = RememberedSessions(FIRST_COURSE)
        self._surprises = Surprises(self._sessions.of)
        self._look_times = LookTimes()
        self._seen_rates: dict[Pace, RoundRates] | None = None  # when last looked at
        self._pace = Pace.SERIAL
        self._taught = False
        self._lessons = FirstLessons()
        self._rates = PaceRates()
        self._outlooks = Outlooks(self._sessions, self._by_lookup, self._rates, self._longest)
        self._lone_rounds = LoneRounds()
        self._ended = EndedRounds(self._sessions, self._memory, self._budget, self._by_lookup, self._lone_rounds)
        self._saturation = Saturation()
        self._paces: tuple[Pace, ...] = (Pace.SERIAL, Pace.AHEAD)
        self._num_sessions = 1
        self._is_timed = False  # one session, and nobody else has a part in its rounds
        self._num_groups = 1  # of sessions that draft in turns
        self._step_us = 0.0  # of one row
        self._shared_us = 0.0  # of one row of each session
        self._contention = 1.0  # how much longer such a step takes while drafters are at work
        self._excess_us = 0.0  # of the newest step, beyond what its courses promise

    # --- the seam ---------------------------------------------------------------------------------------------------------

    def plan(self, view: StepView) -> PacingPlan:
        """Take whoever has the guesses its course asks for."""
        if not view.sessions:
            return PacingPlan((), None, "idle")
        self._num_sessions = len(view.sessions)
        self._is_timed = self._is_lone or (self._num_sessions == 1 and not view.sessions[0].has_drafter)
        self._step_us = view.cost.verify_us(1)
        self._shared_us = view.cost.verify_us(len(view.sessions)) if len(view.sessions) > 1 else self._step_us
        contended_us = view.overlapped_cost.verify_us(1)
        self._contention = contended_us / self._step_us
        self._lone_rounds.are_ahead = view.cost_ahead is not None
        self._outlooks.begin(view, self._step_us, contended_us)
        self._saturation.observe(view)
        self._ended.count(view, self._present_times())
        self._excess_us = 0.0
        is_repriced = self._company_speed.observe(view)
        asks_look = self._taught and (is_repriced or self._surprises.ask_for_look(view, is_sure=self._rates.is_sure))
        is_due = self._look_times.begin(view.now_us) or asks_look
        if is_due and not (self._rates.is_known and self._look_times.may_wait(view, self._sessions.of(view.sessions[0]).course)):
            self._look(view)
        going = self._going_by_lookup(view)
        if all(session.session in going or self._goes_without(session) for session in view.sessions):
            plan = self._at_once(view, going)
            self._company_speed.planned(view, plan, self._course_of)
            return plan
        if not going and (whole := self._whole_draft(view)) is not None:
            return whole
        view = with_guesses(view, going)
        in_groups = self._num_groups > 1 and self._pace is Pace.SERIAL and self._num_sessions > 1
        cost = view.overlapped_cost if in_groups or self._pace is Pace.AHEAD else view.cost
        tokens_per_us = self._tokens_per_us(view)
        if in_groups:
            plan = marked(plan_in_groups(view, self._outlooks.in_group, cost, tokens_per_us, self._num_groups), going)
            cost = cost.shared_by(max(1, len(plan.take)))
        else:
            plan = self._sides.beside(marked(plan_together(view, self._outlooks.of, cost, tokens_per_us), going), view, cost, tokens_per_us)
        if plan.take:
            self._excess_us = note_step(plan, view, cost, self._sessions.known, self._overhead_us)
        else:
            note_waits(plan, view, self._sessions.known)
        self._company_speed.planned(view, plan, self._course_of)
        return plan

    def _whole_draft(self, view: StepView) -> PacingPlan | None:
        first, own = view.sessions[0], self._sessions.known(view.sessions[0].session)
        in_turns = first.takes_turns or (own.course.pace is Pace.SERIAL and not own.probe.is_on)
        plan = whole_draft(view, self._outlooks.bound(first), in_turns=in_turns)
        if plan is not None and first.takes_turns:
            note_turn(own, plan.take[0].max_nodes, None if self._seen_rates is None else self._seen_rates[Pace.SERIAL].turn_us)
        elif plan is not None:
            self._excess_us = note_step(plan, view, view.cost, self._sessions.known, self._overhead_us)
        return plan

    def _present_times(self) -> PresentTimes:
        beside_us, is_far = self._overhead_us, self._is_far_away and self._seen_rates is not None  # before, guesses came in turns
        contended_us = self._step_us * self._contention
        return PresentTimes(self._step_us, beside_us, contended_us, self._excess_us, is_far, self._is_lone, self._is_timed)

    def _at_once(self, view: StepView, going: Mapping[int, int]) -> PacingPlan:
        """Nobody waits for a drafter: there is nothing to weigh, and no time to lose over it. going: guesses from the text by session."""
        wanted = [Wanted(session, going.get(session.session, 0), session.session in going) for session in view.sessions]
        take = share_rows(wanted, view.max_rows, view.prefill)
        by_text = self._by_lookup
        return PacingPlan(take, None, "verify", 0 if going else PLAIN_REPEATS, by_text.least_promise, by_text.may_pay)

    def _goes_without(self, session: SessionView) -> bool:
        """Decodes plainly, or has no drafter or no use for one; no probe is on, and no guess of theirs is at hand."""
        own = self._sessions.known(session.session)
        rests = not own.probe.is_on and (own.course.pace is Pace.PLAIN or not session.has_drafter)
        return (rests or not session.max_draft_len) and not session.depth

    def draft_ahead(self, session: SessionView) -> int:
        """As far as the course goes; nothing for a session that goes without, unless a probe is due."""
        if not session.max_draft_len:
            return 0
        own = self._sessions.of(session)
        begins = not session.num_tested and session.committed_len == own.begin
        is_due = not own.is_met and (begins or self._is_far_away)
        if session.committed_len < own.asked_from or (is_due and self._is_put_off(session)):
            return 0
        if begins and not own.is_met and (self._is_crowded(session) or self._is_anothers_turn(own, session)):  # asked once for each session
            return 0
        if begins:
            own.is_met, own.hopeless = True, own.course.pace is Pace.PLAIN and self._is_hopeless(session)
            return 0 if own.hopeless else self._asked(session, self._outlooks.first_leave(own, session))
        if own.course.pace is Pace.PLAIN:
            self._probe(own, session)
            return self._asked(session, PROBE_LEN) if own.probe.is_on else 0
        if self._num_looked_up(session):
            return 0  # the drafter's cores are better used by the verifier
        own.is_asked = True
        return self._outlooks.leave(own, session)

    def lets_rest(self, session: int, committed_len: int) -> bool:
        """As long as no probe is due, nor the time to ask its drafter."""
        return self._sessions.lets_rest(session, committed_len, self._budget, is_far=self._is_far_away, is_full=self._saturation.is_on)

    def takes_up_text(self, kind: int, shorter_kind: int) -> bool:
        """Where guesses from texts paid sessions of its kind."""
        return self._sessions.takes_up_text(kind, shorter_kind)

    def _is_put_off(self, session: SessionView) -> bool:
        rates, slowdown = self._seen_rates, self._contention if self._is_far_away else None
        return rates is not None and self._sessions.is_put_off(session, plain_course(rates[Pace.PLAIN]), slowdown)

    def _is_crowded(self, session: SessionView) -> bool:
        """A session that begins where steps are full decodes plainly for a while before its drafter is thought of."""
        self._saturation.begun()
        if self._seen_rates is None or not self._saturation.awaits(hoped_acceptance(session), self._overhead_us):
            return False
        self._sessions.put_off(session, plain_course(self._seen_rates[Pace.PLAIN]))
        return True

    def _is_anothers_turn(self, own: RememberedSession, session: SessionView) -> bool:
        """A session that begins without guesses among others that do is asked when probes are due, as they are: alone it would be asked
        while the target reads its prompt, and at no cost; here that takes time from all. Not where its kind lately began well."""
        is_plain = own.course.pace is Pace.PLAIN and self._sessions.kind(session).asking.found_nothing and not self._is_far_away
        waits = is_plain and self._saturation.in_company and not self._budget.take()
        if waits:
            own.asked_from = own.begin + 1  # not while its prompt is read, however often that is asked
        return waits

    def _asked(self, session: SessionView, num_guesses: int) -> int:
        """Leave for so many, to find out."""
        self._sessions.of(session).is_asked = True
        if not self._rates.is_known:
            self._silence.asked(session)
        return min(num_guesses, self._outlooks.bound(session))

    def hedge_nodes(self, session: SessionView) -> int:
        """Side branches where the drafter goes on beside the target, and a mismatch would have to wait for it."""
        own = self._sessions.of(session)
        budget = self._hedge_budget(session) if own.course.pace is Pace.AHEAD and session.max_draft_len else 0
        own.num_hedged = max(own.num_hedged, 0) + 1 if budget else min(own.num_hedged, 0) - 1
        return budget

    def _hedge_budget(self, session: SessionView) -> int:
        near = self._sessions.of(session).hedges_near
        return hedge_budget(session, self._rates.link_us, self._step_us, self._contention, pays_near=near)

    def flush_len(self, session: SessionView) -> int:
        """As its outlook has it."""
        return self._outlooks.flush_len(session)

    # --- guesses from the text itself -------------------------------------------------------------------------------------

    def _going_by_lookup(self, view: StepView) -> dict[int, int]:
        """Guesses of the sessions that go by their own text: they have them, and nothing to wait for."""
        timed = self._lone_rounds.by_text_us(self._step_us, self._rates.overhead_us) if self._is_timed else (self._overhead_us,)
        self._by_lookup.observe(view, *timed)
        going = {session.session: num for session in view.sessions if (num := self._num_looked_up(session))}
        if going:
            self._sessions.look_up(going)
        return going

    def _num_looked_up(self, session: SessionView) -> int:
        """Guesses that it goes by instead of its course, decided once per commit. A probe is not disturbed: who goes by its text alone
        would never find out what its drafter can do."""
        if not session.lookup_rights or (own := self._sessions.of(session)).probe.is_on:
            return 0
        if (decided := self._by_lookup.decided(session)) is not None:
            return decided
        course, plain = own.course, self._by_lookup.plain_speed
        is_opening = own.is_asked and session.committed_len <= own.begin + 1  # decided before its drafter has answered
        promise, drafts = plain, (session.has_drafter or is_opening) and course.pace is not Pace.PLAIN
        if drafts:
            promise = max(plain, self._worth(course), self._brought(own)) if course.tokens_per_us else UNPROVEN_GAIN * plain
        return self._by_lookup.num_guesses(session, promise, plainly=not drafts)

    # --- readiness --------------------------------------------------------------------------------------------------------

    def _tokens_per_us(self, view: StepView) -> float:
        """What all sessions together are expected to get: by their courses, at least as much as without guesses."""
        plain = 1.0 / (self._shared_us + self._overhead_us)
        return sum([max(plain, self._worth(self._sessions.known(session.session).course)) for session in view.sessions])

    def _probe(self, own: RememberedSession, session: SessionView) -> None:
        if own.probe.is_on:
            own.probe.end_if_done(session, self._budget, self._shared_us + self._overhead_us, self._num_sessions)
            own.hopeless = not own.probe.is_on and self._is_hopeless(session)
        else:
            own.probe.begin_if_due(session, self._budget, hopeless=own.hopeless or self._saturation.is_on)

    def _is_hopeless(self, session: SessionView) -> bool:
        return self._seen_rates is not None and is_too_far(self._seen_rates, session, self._longest, PROBE_LEN, START_GAIN)

    # --- looking for a better course --------------------------------------------------------------------------------------

    def _look(self, view: StepView) -> None:
        take_up(view.sessions, self._sessions, self._rates)
        self._taught = self._taught or self._lessons.are_over(view.sessions, lambda session: self._sessions.of(session).begin)
        if not self._rates.is_known:
            self._look_at_silence(view)
        if not self._rates.is_known or not self._taught:
            return
        self._surprises.looked(view.now_us)
        paces = self._paces = drafting_paces(view) or self._paces
        rates = self._seen_rates = self._rates_of(view, paces)
        self._saturation.look([hoped_acceptance(session) for session in view.sessions], self._overhead_us)
        if self._saturation.is_on:
            self._give_way(view, plain_course(rates[Pace.PLAIN]))
        else:
            self._choose_for_all(view, rates, paces)
        courses = self._courses(view)
        self._num_groups = max(course.num_groups for course in courses)
        self._pace = self._pace if drafts(courses) else Pace.PLAIN
        self._sessions.settle(view.sessions)
        self._look_times.looked(view.now_us, len(view.sessions), drafts=drafts(courses))

    def _choose_for_all(self, view: StepView, rates: dict[Pace, RoundRates], paces: Collection[Pace]) -> None:
        looks = self._looks = self._weighed(view, rates, paces)
        margins = Margins(START_GAIN, LONE_KEEP_GAIN if self._is_lone else KEEP_GAIN, SWITCH_GAIN)
        worths = self._worth, self._worth_to_end, self._brought, partial(self._plain_share, hides=view.plain_ahead)
        of_groups = partial(self._rates.of_groups, view) if Pace.AHEAD in paces else None
        offers = Offers(rates, margins, self._longest, self._sessions.known, *worths, of_groups)
        offered = {pace: offers.of(pace, looks) for pace in paces}
        self._pace = drafting_pace(offered, self._pace, self._courses(view), SWITCH_GAIN)
        for (session, _), course in zip(looks, offered[self._pace][0], strict=True):
            if session.committed_len >= self._sessions.known(session.session).asked_from:
                self._choose(session, course)

    def _give_way(self, view: StepView, plain: Course) -> None:
        """Steps are full: nobody guesses, which says nothing of anybody's drafter."""
        self._looks = [(session, {Pace.PLAIN: [plain]}) for session in view.sessions]
        for session in view.sessions:
            if self._sessions.of(session).course.pace is not Pace.PLAIN:
                self._take_up(session, plain)

    def _weighed(self, view: StepView, rates: dict[Pace, RoundRates], paces: Collection[Pace]) -> list[Look]:
        """Each session with what it may choose among. Drafts in turns of several sessions are weighed for all of them at once."""
        found: dict[tuple[tuple[int, ...], DepthOffsets, int, int], dict[Pace, list[Course]]] = {}
        own_paces = paces if len(view.sessions) == 1 else tuple(pace for pace in paces if pace is not Pace.SERIAL)
        looks: list[Look] = []
        step = ACCEPTANCE_STEP if len(view.sessions) <= FEW_SESSIONS else MANY_STEPS * ACCEPTANCE_STEP
        for session in view.sessions:
            self._look_at_hedges(session, rates[Pace.AHEAD])
            hedge_share = session.hedge_hit_share if self._hedge_budget(session) else 0.0
            shares = hoped_acceptance(session, is_far=self._is_far_away), hoped_continue(session), hedge_share
            longest = max(1, min(self._longest, session.max_draft_len)) if session.takes_turns else self._longest
            present = self._sessions.known(session.session).course
            present_len = present.hit_len if present.pace is Pace.SERIAL else 0
            key = tuple(round(share / step) for share in shares), session.depth_offsets, longest, present_len
            if key not in found:
                near = (each * step for each in key[0])
                found[key] = courses_of(rates, own_paces, longest, *near, present_len=present_len, offsets=session.depth_offsets)
            looks.append((session, found[key]))
        return looks

    def _rates_of(self, view: StepView, paces: Collection[Pace]) -> dict[Pace, RoundRates]:
        """What is measured by now, and the leave that drafters have. Where nobody can run ahead there is nothing beside the target."""
        leave_len = LEAVE_BOUNDS * max(1, min(self._longest, max(session.max_draft_len for session in view.sessions)))
        rates = {pace: self._rates.of_rounds(view, pace, leave_len) for pace in paces}
        plain = rates[Pace.SERIAL]
        if self._is_lone:
            turns = rates[Pace.SERIAL] = self._lone_rounds.rates(plain, self._step_us)
            plain = replace(turns, step_us=self._rates.of_rounds(view, Pace.PLAIN).step_us)
        return {Pace.AHEAD: rates[Pace.SERIAL], **rates, Pace.PLAIN: plain}

    def _look_at_silence(self, view: StepView) -> None:
        """Answers that are over before a drafter is heard of: it is at least so far away, and they go without."""
        self._silence.observe(view.sessions)
        if not (least_us := self._silence.least_us):
            return
        rates = self._rates_of(view, (Pace.SERIAL, Pace.AHEAD))
        self._seen_rates = {pace: replace(one, link_us=max(one.link_us, least_us / 2.0)) for pace, one in rates.items()}
        self._look_times.at_us, self._pace = view.now_us + LOOK_EVERY_US, Pace.PLAIN
        self._sessions.settle_all(plain_course(rates[Pace.PLAIN]), view.sessions)

    def _look_at_hedges(self, session: SessionView, rates: RoundRates) -> None:
        """Whether a drafter close by should guess beside its chain."""
        own = self._sessions.of(session)
        if own.course.pace is not Pace.AHEAD or not is_near(self._rates.link_us, self._step_us):
            own.hedges_near = False
            return
        self._hedge_worth.observe(own.num_hedged, session.draft_us_per_token)
        if self._look_times.is_due:  # to weigh them takes longer than all the rest of a look
            own.hedges_near = self._hedge_worth.is_comparable and self._hedge_worth.pays(rates, session, is_on=own.num_hedged > 0)

    def _worth(self, course: Course) -> float:
        kept = self._memory.factor(course.pace)
        return course.tokens_per_us * (self._company_speed.factor(course.pace, kept) if self._num_sessions > 1 else kept)

    def _course_of(self, session: int) -> Course:
        return self._sessions.known(session).course

    def _courses(self, view: StepView) -> list[Course]:
        return [self._course_of(session.session) for session in view.sessions]

    def _brought(self, own: RememberedSession) -> float:
        """Tokens per microsecond that drafts in turns brought a session lately; 0 for one that goes otherwise. (A drafter that runs ahead
        in vain costs each round a little only, and what it brought earlier would hide that for the rest of the answer.)"""
        return own.drafted.speed / self._step_us if own.course.pace is Pace.SERIAL else 0.0

    def _plain_share(self, session: SessionView, *, hides: bool = False) -> float:
        """Of what is expected of plain decoding, what one that is alone has: less, as its kind had lately, or more by its text."""
        return self._sessions.plain_share(session, 1.0 + self._overhead_us / self._step_us, hides=hides)

    @property
    def _is_lone(self) -> bool:
        """One session, whose drafter computes on the target's own thread."""
        return self._num_sessions == 1 and self._paces == (Pace.SERIAL,)

    @property
    def _overhead_us(self) -> float:
        """Of a round, beside its step."""
        measured_us = self._rates.overhead_us
        return self._lone_rounds.overhead_us(self._step_us, measured_us) if self._is_lone else measured_us

    @property
    def _is_far_away(self) -> bool:
        return 2.0 * self._rates.link_us >= FAR_STEPS * self._step_us > 0.0

    def _choose(self, session: SessionView, best: Course) -> None:
        own = self._sessions.known(session.session)
        repays = best.pace is not Pace.PLAIN and self._repays_asking(session, best)
        if session.num_tested and (own.looked_untested or repays):
            self._sessions.kind(session).asking.judged(drafts=repays)
        self._take_up(session, best)

    def _repays_asking(self, session: SessionView, course: Course) -> bool:
        """Whether drafts bring its kind's answers more than it takes a drafter of this thread to read prompts; others do so beside."""
        if not self._is_lone or not (opening_us := self._lone_rounds.openings.us(self._step_us)):
            return True
        plainly = self._plain_share(session) * self._by_lookup.plain_speed
        drafted = self._sessions.kind(session).drafted.speed / self._step_us or self._worth(course)
        return num_left(session) * (1.0 / plainly - 1.0 / drafted) > opening_us

    def _take_up(self, session: SessionView, best: Course) -> None:
        own = self._sessions.known(session.session)
        if (best.pace is Pace.PLAIN) is not (own.course.pace is Pace.PLAIN):
            own.probe.stop(session)
            if best.pace is not Pace.PLAIN:
                self._budget.relax()
        own.comparable = own.comparable and best.pace is own.course.pace
        if best[:3] != own.course[:3]:  # pace and lengths; how far a drafter may run follows from what is measured
            self._look_times.changed()
        own.before, own.course = own.course, best
        own.looked_at, own.looked_untested = session.acceptance, not session.num_tested

    def _worth_to_end(self, session: SessionView, course: Course) -> float:
        """What a course is worth in what is left of the answer. A drafter at work is on its way to be heard of."""
        worth = self._worth(course)
        at_work = session.num_tested and self._sessions.of(session).course.waits_for_none
        if not course.waits_for_none or at_work or session.depth or self._seen_rates is None or not worth:
            return worth
        return speed_to_end(self._seen_rates[Pace.AHEAD], worth, num_left(session))
