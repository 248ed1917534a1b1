"""When the next step begins: one step for all, at the time that yields most, with whatever guesses are there then.

Waiting for guesses is worth what they are expected to add, and costs what all sessions could have decoded meanwhile; a session left out of
a step would wait as long as the step takes, so none is. Nothing waits beyond a deadline, and nobody waits beside a prefill. Knows session
views, the cost of rows and what each session hopes for. Must not know why it hopes for it. Source: the marginal value theorem (Charnov
1976): stay as long as staying yields more than the average of leaving.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionView, StepView
from outrider.session.pacing.row_budget import Wanted, share_rows
from outrider.session.pacing.waiting import must_go
from outrider.types.tree import MAX_TREE_NODES

MAX_TIMES = 6  # times to begin that are compared, besides now
FREE_SHARE = 0.02  # rows that make a step longer by less than this are not weighed
AFTER_WORTH = 0.75  # of a guess that a later step verifies: without it that step would have found the drafter some way into its next tail
NOT_LOST = 0.5  # of a wait for guesses that turn out to be in vain: their drafter hears of it meanwhile, and guesses anew
_ALMOST_ONE = 0.9999


class Outlook(NamedTuple):  # made for every session at every plan: a frozen dataclass takes six times as long
    """What a session hopes for. wanted: guesses it waits for; most: that it verifies if they are there.

    right: chance that a guess is right. to_come: that one more comes and is right. next_us: when the next tail is expected to bring any;
    draft_us: what a guess takes. burst: guesses that come together, in a tail. num_behind: tokens decoded since its drafter started over,
    which its next guesses must have foreseen if any of them is to be of use.
    in_turns_until_us: it wants the drafter to rest while its guesses are verified, and the step not to begin
    before it has what it wants, until then; None = whenever it pays. goes_on: the drafter guesses on while a step runs. anew_us: from a
    commit that makes its drafter start over to the guesses that come first.
    """

    wanted: int
    most: int
    right: float
    to_come: float
    next_us: float
    draft_us: float
    in_turns_until_us: float | None = None
    goes_on: bool = False
    burst: int = 1
    num_behind: int = 0
    anew_us: float = math.inf

    @property
    def stands(self) -> float:
        """Chance that what comes next follows the truth."""
        return self.right**self.num_behind

    def num_come(self, at_us: float) -> int:
        """Guesses that will have come by then."""
        if at_us < self.next_us:
            return 0
        if self.draft_us <= 0.0:
            return self.most
        return self.burst * (1 + int((at_us - self.next_us) / (self.burst * self.draft_us))) - self.num_behind % self.burst

    def eta_us(self, num: int) -> float:
        """When so many will have come."""
        return self.next_us + (-(-(num + self.num_behind % self.burst) // self.burst) - 1) * self.burst * self.draft_us


class _Prospect:
    """One session's guesses and expected tokens, by how many more have come."""

    __slots__ = ("_have", "_lacking", "_reached", "_right", "_sure", "_to_come", "outlook")

    def __init__(self, session: SessionView, outlook: Outlook, lacking: int, most: int) -> None:
        self.outlook = outlook
        self._have = min(session.depth, outlook.most, most)
        self._lacking = lacking
        self._right, self._to_come = min(outlook.right, _ALMOST_ONE), min(outlook.to_come, _ALMOST_ONE)
        self._reached = self._right**self._have
        self._sure = (1.0 - self._reached * self._right) / (1.0 - self._right)  # tokens of a step with what is there

    @property
    def is_waiting(self) -> bool:
        """Whether time brings it anything."""
        return self._lacking > 0

    @property
    def etas_us(self) -> tuple[float, float]:
        """When the next guesses come, and when it has what it wants."""
        return self.outlook.next_us, self.outlook.eta_us(self._lacking)

    def comes_by(self, end_us: float) -> bool:
        """Whether waiting brings anything that a step which ends then would not."""
        return not self.outlook.goes_on or self.outlook.next_us < end_us

    def is_drafted_for(self, at_us: float) -> bool:
        """Whether the drafter, which rests once all that is wanted is there, is still at work then."""
        return self.outlook.num_come(at_us) < self._lacking

    def num_new(self, at_us: float) -> int:
        """Guesses that will have come."""
        return min(self._lacking, self.outlook.num_come(at_us)) if self._lacking else 0

    def rows(self, num_new: int) -> int:
        """Of a step that begins once so many more have come."""
        return 1 + self._have + num_new

    def tokens(self, num_new: int) -> float:
        """Expected of such a step."""
        if not num_new:
            return self._sure
        come = self._to_come * (1.0 - self._to_come**num_new) / (1.0 - self._to_come)
        return float(self._sure + self.outlook.stands * self._reached * come)

    def not_lost(self, wait_us: float) -> float:
        """Of so long a wait, what a drafter that had started over in vain uses to guess anew: it hears of that while it is waited for."""
        return NOT_LOST * (1.0 - self.outlook.stands) * wait_us

    def tokens_after(self, num_new: int, end_us: float, tokens_per_us: float) -> float:
        """What guesses that come while the step runs are expected to add to the next one, if they follow what it finds. Never more than
        it would cost the next one to wait for a drafter that starts over: what is had cheaply then is worth little now."""
        outlook = self.outlook
        if not outlook.goes_on or end_us < outlook.next_us:
            return 0.0
        num_verified = self._have + num_new
        num_left = min(outlook.most, self._have + outlook.num_come(end_us) - num_verified - 1)  # one lies where the step has its own token
        if num_left <= 0:
            return 0.0
        right = self._right
        worth = min(AFTER_WORTH * right * (1.0 - right**num_left) / (1.0 - right), tokens_per_us * outlook.anew_us)
        return float(outlook.stands * right ** (num_verified + 1) * worth)


def plan_together(view: StepView, outlook_of: Callable[[SessionView], Outlook], cost: CostCurve, tokens_per_us: float) -> PacingPlan:
    """Wait, or take everybody. cost: of the step. tokens_per_us: what all sessions together are expected to get from now on."""
    if not view.sessions:
        return PacingPlan((), None, "idle")
    outlooks = [outlook_of(session) for session in view.sessions]
    most = paying_len(view.sessions, outlooks, cost, tokens_per_us)
    lacking = [num_lacking(session, outlook, view.now_us) for session, outlook in zip(view.sessions, outlooks, strict=True)]
    if any(lacking) and not any(session.num_uncached > 1 or view.now_us >= session.draft_deadline_us for session in view.sessions):
        if all(outlook.in_turns_until_us is not None for outlook in outlooks):
            begin_us = max([outlook.in_turns_until_us or 0.0 for outlook, num in zip(outlooks, lacking, strict=True) if num])
        else:
            prospects = [_Prospect(*one, most) for one in zip(view.sessions, outlooks, lacking, strict=True)]
            begin_us = _best_time(prospects, (cost, view.overlapped_cost), tokens_per_us, view.now_us)
        if begin_us > view.now_us:
            return PacingPlan((), min(int(begin_us) + 1, *[session.draft_deadline_us for session in view.sessions]), "draft")
    wanted = [
        Wanted(session, nodes_within(session, min(outlook.most, most))) for session, outlook in zip(view.sessions, outlooks, strict=True)
    ]
    return PacingPlan(share_rows(wanted, view.max_rows, view.prefill), None, "verify")


def num_lacking(session: SessionView, outlook: Outlook, now_us: int) -> int:
    """Guesses that it waits for and may wait for."""
    return outlook.wanted - session.depth if session.depth < outlook.wanted and not must_go(session, now_us) else 0


def paying_len(sessions: Sequence[SessionView], outlooks: Sequence[Outlook], cost: CostCurve, tokens_per_us: float) -> int:
    """The most guesses of a session that a step of all is worth making longer for: all that are there, or a half, a quarter, ..."""
    there = [min(session.depth, outlook.most) for session, outlook in zip(sessions, outlooks, strict=True)]
    longest = max(there)
    if not longest:
        return MAX_TREE_NODES
    least_us = cost.verify_us(len(there))
    if cost.verify_us(len(there) + sum(there)) <= (1.0 + FREE_SHARE) * least_us:
        return MAX_TREE_NODES
    rights = [min(outlook.right, _ALMOST_ONE) for outlook in outlooks]

    def worth(most: int) -> float:
        tokens, num_rows = 0.0, len(there)
        for right, have in zip(rights, there, strict=True):
            num = min(have, most)
            tokens, num_rows = tokens + (1.0 - right ** (num + 1)) / (1.0 - right), num_rows + num
        return tokens - tokens_per_us * cost.verify_us(num_rows)

    return max([longest >> halvings for halvings in range(longest.bit_length() + 1)], key=worth)


def nodes_within(session: SessionView, length: int) -> int:
    if session.depth <= length:
        return session.num_nodes
    return session.num_nodes * length // session.depth


def _best_time(prospects: Sequence[_Prospect], costs: tuple[CostCurve, CostCurve], tokens_per_us: float, now_us: int) -> float:
    """Of now and some of the times at which a session has what it wants: where the tokens of the step are worth most. costs: of the step,
    and of one that begins while drafters are at work which would rest a little later: on shared cores that is no saving."""

    resting = [one for one in prospects if one.is_waiting and not one.outlook.goes_on] if costs[0] is not costs[1] else []

    def worth(at_us: float) -> float:
        cost = costs[any(one.is_drafted_for(at_us) for one in resting)]
        new = [prospect.num_new(at_us) for prospect in prospects]
        end_us = at_us + cost.verify_us(sum([prospect.rows(num) for prospect, num in zip(prospects, new, strict=True)]))
        tokens = not_lost_us = 0.0
        for prospect, num in zip(prospects, new, strict=True):
            tokens += prospect.tokens(num) + prospect.tokens_after(num, end_us, own_per_us)
            not_lost_us += prospect.not_lost(at_us - now_us)
        return tokens - tokens_per_us * (end_us - now_us - not_lost_us / len(prospects))

    own_per_us = tokens_per_us / len(prospects)  # who waits for guesses waits with all the others, mostly for theirs too
    # A step that is over before the next guess comes delays nothing, and finds out sooner whether the drafter follows.
    over_us = now_us + costs[0].verify_us(sum([prospect.rows(prospect.num_new(now_us)) for prospect in prospects]))
    waiting = [prospect for prospect in prospects if prospect.is_waiting and prospect.comes_by(over_us)]
    etas = sorted({eta_us for prospect in waiting for eta_us in prospect.etas_us if eta_us > now_us})
    if not etas:
        return float(now_us)
    every = -(-len(etas) // MAX_TIMES) or 1
    return max((float(now_us), *etas[every - 1 :: every]), key=worth)
