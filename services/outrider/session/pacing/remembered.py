"""What `adaptive` remembers of each session from plan to plan, and the course that new ones begin with.

Views are all that a policy is given, so whatever needs a before and an after is kept here, of as many sessions as are remembered at most.
Must not know how a course is chosen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outrider.session.pacing.achieved_speed import AchievedSpeed
from outrider.session.pacing.asking_record import AskingRecord
from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.first_asking import LATER, FirstAsking
from outrider.session.pacing.probing import Probe, ProbeBudget
from outrider.session.pacing.resting import Reach
from outrider.session.pacing.round_model import Course, Pace
from outrider.session.pacing.text_taking import TextTaking

MAX_REMEMBERED = 4096
MAX_KINDS = 256
FAR_LATER = 1024  # tokens of a session, decoded plainly before a drafter far away is asked that is not asked at once
SEEN_PLAIN = 24  # tokens after which that is settled: by then it is known what steps take at present without a drafter at work


@dataclass(slots=True)
class RememberedSession:
    """What is remembered of one session. begin: committed length when first seen. looked_at: its acceptance when its course was chosen;
    looked_untested: no guess of its own had been judged by then. before: the course that it had then, None = it was not looked at yet."""

    course: Course
    probe: Probe
    drafted: AchievedSpeed  # of its rounds, and those of its kind before
    texted: AchievedSpeed  # of what rounds without its drafter offered, its text's guesses included, in plain rounds
    begin: int
    committed_len: int
    ready_us: int = 0  # of its newest commit
    is_opening: bool = False  # no guess of its resident drafter was judged before the round under way
    is_return: bool = False  # the round before it went by the text
    comparable: bool = False  # the round under way is an ordinary one; a resident drafter reads the prompt in the first with guesses
    expected_us: float = 0.0  # what its course promises of the round under way, by whether its drafter follows; 0 = nothing
    chosen_wait_us: float = 0.0  # since its newest commit, as chosen first; 0 = it has not waited
    turn_len: int = 0  # guesses of the round under way, if it verifies a whole draft and is timed as a whole (lone_rounds.py)
    was_plain: bool = False  # no guesses were wanted when the round under way began
    falls_short: bool = False  # it verifies fewer guesses than its course promises: that it is quick is no merit of the course
    lookup_us: float = 0.0  # that keeping its text had taken
    looked_up: int = 0  # guesses of the newest round from the text itself: the drafter has yet to hear what it found
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
    is_asked: bool = False  # its drafter had leave to guess
    reach: Reach = field(default_factory=Reach)  # how far its drafter is thought to have come, while it runs ahead alone and close by

    @property
    def is_usual(self) -> bool:
        """It was not looked at: it goes as the newest of its kind went alone, whose drafts paid, and is held to the acceptance of that."""
        return self.before is None and self.looked_at >= 0.0


@dataclass(slots=True)
class RememberedKind:
    """What is remembered of sessions whose prompts began alike. usual: the course that a new one begins with; usual_at: acceptance
    that it was chosen for by a session that was alone, -1 = there was none since. asking: when its drafter is asked; far: the same of one
    far away. drafted: what rounds with its guesses bring; plain: what those without do, while its drafter rests and nobody shares the step;
    texted: what these could, with guesses from the text; texts: whether their texts are kept for such guesses."""

    usual: Course
    asking: FirstAsking
    far: AskingRecord
    drafted: AchievedSpeed
    plain: AchievedSpeed
    texted: AchievedSpeed
    texts: TextTaking
    usual_at: float = -1.0

    def asked_later(self, *, is_far: bool) -> int:
        """Tokens that a session which begins decodes before its drafter is asked; 0: it is asked at once. is_far: as in FirstAsking."""
        return LATER if self.asking.is_later(is_far=is_far) else 0

    def asked_far_later(self, slowdown: float, *, begins: bool) -> int:
        """The same of a drafter far away; or, once so many tokens were decoded, how many more. slowdown: as in AskingRecord."""
        if self.far.asks(slowdown):
            return 0
        return SEEN_PLAIN if begins else FAR_LATER


class RememberedSessions:
    """By session id, and by kind; those not asked for the longest are forgotten first. usual: the course of sessions that nothing is known
    of, nor of their kind."""

    def __init__(self, usual: Course) -> None:
        self._usual = usual
        self._newest = -1  # the session that was asked for last
        self._sessions: OrderedDict[int, RememberedSession] = OrderedDict()
        self._kinds: OrderedDict[int, RememberedKind] = OrderedDict()

    def kind(self, session: SessionView) -> RememberedKind:
        """Of its kind, from the first time on that it is asked for."""
        return self._kind(session.kind, session.shorter_kind)

    def takes_up_text(self, kind: int, shorter_kind: int) -> bool:
        """See Pacing."""
        return self._kind(kind, shorter_kind).texts.begins()

    def _kind(self, number: int, shorter: int) -> RememberedKind:
        kind = self._kinds.get(number)
        if kind is None:
            kind = self._kinds[number] = self._new_kind(number, shorter)
            if len(self._kinds) > MAX_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(number)
        return kind

    def _new_kind(self, number: int, shorter: int) -> RememberedKind:
        """Begins with what is known of the kind that its sessions were of before; the first of all with the usual course."""
        before = self._kinds.get(shorter) if number else None
        if before is None:
            speeds = AchievedSpeed(), AchievedSpeed(), AchievedSpeed()
            return RememberedKind(self._usual, FirstAsking(alike=number > 0), AskingRecord(), *speeds, TextTaking())
        asking = before.asking if shorter else None  # the count of prompts like none before says nothing of any kind
        speeds = AchievedSpeed(before.drafted), AchievedSpeed(before.plain), AchievedSpeed(before.texted)
        known = FirstAsking(asking, alike=True), AskingRecord(before.far)
        return RememberedKind(before.usual, *known, *speeds, TextTaking(before.texts))

    def settle(self, sessions: Sequence[SessionView]) -> None:
        """New sessions of their kinds, and of those not seen yet, begin with the courses that these have now; with guesses where some go
        with them and some without. Whoever is not to be asked yet has no course to speak of."""
        asked = (session for session in sessions if session.committed_len >= self.known(session.session).asked_from)
        drafts_last = sorted(asked, key=lambda session: self.known(session.session).course.pace is not Pace.PLAIN)
        for session in drafts_last:
            own, kind = self.known(session.session), self.kind(session)
            self._usual = kind.usual = own.course
            kind.usual_at = own.looked_at if len(sessions) == 1 else -1.0

    def settle_all(self, usual: Course, sessions: Sequence[SessionView] = ()) -> None:
        """Every new session begins with this course, of whatever kind; and these go on with it."""
        self._usual = usual
        self._kinds.clear()
        for session in sessions:
            self.of(session).course = usual

    def of(self, session: SessionView) -> RememberedSession:
        """From the first time on that it is asked for."""
        if session.session == self._newest:  # asked many times a round, of sessions that are mostly alone
            return self._sessions[session.session]
        own = self._sessions.get(session.session)
        if own is None:
            at, kind = session.committed_len, self.kind(session)
            drafted, texted = AchievedSpeed(kind.drafted), AchievedSpeed(kind.texted)
            own = RememberedSession(kind.usual, Probe(at), drafted, texted, begin=at, committed_len=at)
            if kind.usual.pace is not Pace.PLAIN and kind.usual_at >= 0.0 and not kind.asking.found_nothing:
                own.looked_at = kind.usual_at
            self._sessions[session.session] = own
            while len(self._sessions) > MAX_REMEMBERED:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(session.session)
        self._newest = session.session
        return own

    def lets_rest(self, session: int, committed_len: int, budget: ProbeBudget, *, is_far: bool, is_full: bool) -> bool:
        """Whether there is no leave for its drafters at this length, of a session that decodes plainly. is_far: whether to ask one that was
        put off is looked at again when that is over, probe or no probe. is_full: steps are, and probes as seldom as where drafters are too
        far away."""
        own = self._sessions.get(session)
        if own is None or own.course.pace is not Pace.PLAIN or own.probe.is_on:
            return False
        if committed_len < own.asked_from:
            return True
        if is_far and not own.is_met:
            return False
        return not own.probe.is_due(committed_len, budget, hopeless=own.hopeless or is_full)

    def look_up(self, guesses: Mapping[int, int]) -> None:
        """The rounds of these sessions go by their texts, with so many guesses: that says nothing of their courses."""
        for session, num in guesses.items():
            own = self.known(session)
            own.comparable, own.looked_up = False, num

    def is_put_off(self, session: SessionView, plain: Course, slowdown: float | None) -> bool:
        """Whether its drafter is asked later, if at all: it decodes plainly until then. Asked as a session begins, and of one far away once
        more when that is over; who is not put off any longer begins as its kind does. slowdown: as in AskingRecord, None = close by."""
        own, kind = self.of(session), self.kind(session)
        begins = session.committed_len == own.begin
        later = 0 if slowdown is None else kind.asked_far_later(slowdown, begins=begins)
        if begins and not later:  # whatever drafts from afar bring those that go with them: who finds nothing in them pays for asking
            later = kind.asked_later(is_far=slowdown is not None)
        if later:
            own.asked_from, own.course = session.committed_len + later, plain
        elif not begins:
            own.is_met, own.course = True, kind.usual
        return later > 0

    def confirm_plain(self, session: SessionView) -> None:
        """Guesses of one that goes without were judged, and are right less often than it was looked at for: so it goes on, and nothing is
        to be looked for. Not in turns, where the first round is also the first to show what drafting takes."""
        own = self.known(session.session)
        is_plain = own.course.pace is Pace.PLAIN and session.num_tested > 0 and not session.takes_turns
        if not is_plain or session.acceptance >= own.looked_at:
            return
        if own.looked_untested:
            own.looked_untested = False
            self.kind(session).asking.judged(drafts=False)
        own.looked_at = session.acceptance

    def put_off(self, session: SessionView, plain: Course) -> None:
        """Its drafter is not asked before it has decoded a while plainly."""
        own = self.of(session)
        own.asked_from, own.course = session.committed_len + LATER, plain

    def count_drafted(self, session: SessionView, num_steps: float) -> None:
        """An ordinary round of a drafting course that took the time of so many steps of one row."""
        own = self.known(session.session)
        num_tokens = session.committed_len - own.committed_len
        own.drafted.count(num_tokens, num_steps)
        self.kind(session).drafted.count(num_tokens, num_steps)

    def plain_share(self, session: SessionView, round_steps: float, *, hides: bool = False) -> float:
        """Of what is expected of plain decoding, what sessions of this kind had lately that went without a drafter: at most all, or as much
        as this one's text offers. round_steps: what a plain round is expected to take, in steps of one row. hides: its steps are computed
        before they are asked for, of which rounds with guesses of a drafter elsewhere tell nothing: it may have more, and while nothing was
        seen of it, what passes beside a step is taken to be hidden."""
        offered, speed = max(1.0, self.known(session.session).texted.speed), self.kind(session).plain.speed
        if hides and not session.takes_turns:
            return speed * round_steps if speed else max(offered, round_steps)
        return min(offered, speed * round_steps) if speed else offered

    def count_texted(self, session: SessionView, num_tokens: float, num_rounds: float) -> None:
        """A round without its drafter would bring so many tokens in the time of so many plain ones."""
        self.known(session.session).texted.count(num_tokens, num_rounds)
        self.kind(session).texted.count(num_tokens, num_rounds)

    def count_asking(self, session: SessionView, round_us: float, drafted_round_us: float) -> None:
        """A round of a session whose drafter is far away, its reading left out. One that was asked and goes without by now decodes plainly,
        and what it has of its time is no fault of asking. round_us, drafted_round_us: of the target without guesses at present, while
        drafters rest and beside one at work."""
        own = self.of(session)
        if own.committed_len == own.begin or session.num_uncached > 1:
            return
        is_asked = own.is_asked and (own.course.pace is not Pace.PLAIN or own.probe.is_on)
        num_rounds = (session.waiting_since_us - own.ready_us) / (drafted_round_us if is_asked else round_us)
        self.kind(session).far.count(session.committed_len - own.committed_len, num_rounds, asked=is_asked)

    def known(self, session: int) -> RememberedSession:
        """Of one that was asked for before."""
        return self._sessions[session]
