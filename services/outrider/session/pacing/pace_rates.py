"""What drafting, the link and a round's rest cost, as measured: drafting in turns apart from drafting beside the target.

On shared cores the two differ by a factor; taken together, the one in use would hide what the other could do. Knows session views. Must
not know courses or who chose a pace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from outrider.session.pacing.contract import SessionView, StepView
from outrider.session.pacing.round_model import MAX_LEAVE_LEN, Pace, RoundRates, measured_rates

# Between looks; sessions smooth what they measure. Whatever disturbs a measurement makes it longer (a process that was just started,
# another that wants the same core). So a shorter one is believed at once, a longer one slowly; what always disturbs shows in the time of
# rounds.
DOWN_RATE, UP_RATE = 1.0, 1 / 8
HOPED_RATIO = 2.0  # of drafting beside the target to drafting alone, while only the former was seen: else nobody would find out
MAX_HOPES = 2  # measurements for which that is believed: clocks that disagree may never show an undisturbed one
# Of what drafting beside the target was seen to take more than in turns, what is still believed after a look at drafts of which none was
# made so: another drafter, or the same in a quieter hour, would never be found out. A hope in vain halves how fast the next one grows.
KEEP_UNSEEN = 0.97
MAX_VAIN = 3
VAIN = 1.25  # times what was hoped, or of what was seen before one that came true


class PaceRates:
    """Running estimates in microseconds. link_us: one way. overhead_us: of a round, beside the target's step. start_us: of a draft, before
    its first token.

    Drafting beside the target is kept as how many times longer it takes than in turns: what makes the drafter quicker or slower, its first
    rounds above all, does so at either pace, and only the one in use is measured. So while nobody runs ahead, what was seen of that is
    believed less and less, until somebody tries; a try shows at once whether it is as it was.
    """

    def __init__(self) -> None:
        self.link_us = self.overhead_us = self.start_us = 0.0
        self._alone_us = 0.0  # of a token, while the target rests
        self.is_sure = False  # drafting was measured while no step ran beside it
        self._beside_us = 0.0  # of a token, while that was not sure
        self._num_unsure = 0  # times that it was measured so
        self._ahead_ratio = 1.0  # of a token while the target may be at work, to that
        self._believed = 1.0  # of what that is above 1
        self._num_vain = 0  # hopes in a row

    @property
    def is_known(self) -> bool:
        """Whether anything was measured."""
        return self._alone_us > 0.0

    def draft_us(self, pace: Pace) -> float:
        """Drafting time of a token at this pace, or at another while this one was never tried; 0 when nothing is known."""
        return self._alone_us * self._hoped_ratio if pace is Pace.AHEAD else self._alone_us

    @property
    def _hoped_ratio(self) -> float:
        return 1.0 + self._believed * (self._ahead_ratio - 1.0)

    def observe(self, fresh: Mapping[Pace, Sequence[SessionView]], alone: Sequence[float] = ()) -> None:
        """Sessions that drafted lately, by the pace they did it at. alone: what a token took those of them of which a draft was lately
        undisturbed."""
        if self.is_sure and fresh and Pace.AHEAD not in fresh:
            self._believed *= KEEP_UNSEEN ** (0.5**self._num_vain)
        if alone:
            self._follow_alone(alone)
        for pace, sessions in fresh.items():
            if not self.is_sure and (pace is not Pace.AHEAD or not self._alone_us):
                self._hope([session.draft_us_per_token for session in sessions])
            elif pace is Pace.AHEAD:
                self._follow_ahead([session.draft_us_per_token for session in sessions])
        known = [session for sessions in fresh.values() for session in sessions]
        if known:
            self.link_us = _followed(self.link_us, [session.link_us for session in known if session.link_us])
            self.overhead_us = _followed(self.overhead_us, [session.step_overhead_us for session in known])
            self.start_us = _followed(self.start_us, [start_us for session in known if (start_us := self._start_us(session))])

    def knows_better_than(self, session: SessionView) -> bool:
        """Whether what a token takes is known better than from this session: each of its drafts began anew and was of one token, so that
        what beginning takes counts as that token's. After prose, whose drafts are such, a token was thought to take five times as long as
        it does, and arithmetic was decoded plainly."""
        return self.is_sure and session.takes_turns and not session.tells_start

    def _start_us(self, session: SessionView) -> float:
        """0 when not known."""
        if not self.knows_better_than(session):
            return session.draft_start_us
        return max(0.0, session.draft_start_us + session.draft_us_per_token - self._alone_us)

    def _follow_alone(self, alone: Sequence[float]) -> None:
        if self.is_sure:
            self._alone_us = _followed(self._alone_us, alone)
            return
        beside_us = self._alone_us * self._ahead_ratio
        self._alone_us, self.is_sure = _followed(0.0, alone), True
        self._ahead_ratio = max(1.0, beside_us / self._alone_us)

    def _hope(self, measured: Sequence[float]) -> None:
        """Drafts in turns begin while the target rests, but a session's first ones go on beside the reading of its prompt: only those were
        seen as yet."""
        self._beside_us = _followed(self._beside_us, measured)
        self._num_unsure += 1
        self._ahead_ratio = HOPED_RATIO if self._num_unsure <= MAX_HOPES else 1.0
        self._alone_us = self._beside_us / self._ahead_ratio

    def _follow_ahead(self, measured: Sequence[float]) -> None:
        ratios = [token_us / self._alone_us for token_us in measured]
        if self._believed < 1.0:
            self._try(sum(ratios) / len(ratios))
        self._ahead_ratio = _followed(self._ahead_ratio, ratios)
        if self._ahead_ratio < 1.0:  # never quicker than undisturbed: it is that estimate which has grown old
            self._alone_us, self._ahead_ratio = self._alone_us * self._ahead_ratio, 1.0

    def _try(self, ratio: float) -> None:
        """Somebody drafts beside the target again."""
        found = max(1.0, min(ratio, self._ahead_ratio))  # never worse than it was: what disturbs a measurement makes it longer
        if found > VAIN * self._hoped_ratio:
            self._num_vain = min(MAX_VAIN, self._num_vain + 1)
        elif VAIN * found < self._ahead_ratio:  # it came true; a try that hoped for little says nothing
            self._num_vain = 0
        self._ahead_ratio, self._believed = found, 1.0

    def of_groups(self, view: StepView, num_sessions: int) -> RoundRates:
        """For drafts in turns of groups, of which so many sessions are in a step while the drafters of the others are at work."""
        cost, draft_us = view.overlapped_cost.shared_by(num_sessions), self.draft_us(Pace.AHEAD)
        rates = measured_rates(cost, num_sessions, draft_us, self.link_us, self.overhead_us, self.start_us)
        return _in_company(rates, view)

    def of_rounds(self, view: StepView, pace: Pace, leave_len: int = MAX_LEAVE_LEN) -> RoundRates:
        """For the model of rounds, with all sessions of the view in each step."""
        cost = {Pace.PLAIN: view.cost, Pace.SERIAL: view.turn_cost, Pace.AHEAD: view.overlapped_cost}[pace]
        measured = self.draft_us(pace), self.link_us, self.overhead_us, self.start_us
        rates = measured_rates(cost, len(view.sessions), *measured, leave_len=leave_len)
        if len(view.sessions) > 1:
            rates = _in_company(rates, view)
        if pace is not Pace.AHEAD:
            return rates
        alone_us = view.cost.verify_us(len(view.sessions))
        return replace(rates, toll_us=rates.draft_us * max(0.0, 1.0 - alone_us / float(rates.step_us[1])))


def _in_company(rates: RoundRates, view: StepView) -> RoundRates:
    num = rates.num_sessions
    return replace(rates, others_us=(num - 1) * view.guess_us, most_len=view.max_rows / num - 1.0)


def _followed(estimate: float, measured: Sequence[float]) -> float:
    """measured: without what is not known, and possibly nothing."""
    if not measured:
        return estimate
    mean = sum(measured) / len(measured)
    return estimate + (UP_RATE if mean > estimate else DOWN_RATE) * (mean - estimate) if estimate else mean
