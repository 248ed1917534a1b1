"""Rounds that take their guesses from the text itself: how many of them pay, and who goes that way instead of its policy's.

Looked-up guesses cost nothing but their rows in the step, and are there at once: a session goes by them when they promise more tokens per
unit of time than its course does, decided once per commit, before any drafter is asked. Knows views, the cost of rows and a promise in
tokens per microsecond. Must not know courses, paces or texts.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionView, StepView
from outrider.types.value import quickly_made

# Over the promise, to begin with guesses from the text and to go on with them; who is alone and decodes plainly begins each time, for a
# round with guesses slows the plain ones behind it. Rows cost more in company than measured alone, and a text that offers little keeps a
# drafter from showing what it can do: where lookup is worth it, it is worth much more.
BEGIN_GAIN = 0.2
KEEP_GAIN = 0.05
MAX_REMEMBERED = 4096


@quickly_made
@dataclass(frozen=True, slots=True)
class StepRest:
    """What a step holds besides one session's guesses. num_rows: of all, its own included; tokens: expected of them. overhead_us: of a
    round, beside its step; guessing_us: of one with guesses from the text, beside that, with what it makes the next one take."""

    cost: CostCurve
    num_rows: int
    tokens: float
    overhead_us: float
    guessing_us: float = 0.0


def paying_len(rights: Iterable[float], rest: StepRest) -> tuple[int, float]:
    """How many guesses give the whole step the most tokens per microsecond, and the tokens they are expected to add."""
    best, best_speed = (0, 0.0), rest.tokens / (rest.cost.verify_us(rest.num_rows) + rest.overhead_us)
    added = 0.0
    for num, reached in enumerate(itertools.accumulate(rights, lambda before, right: before * right), 1):
        added += reached
        speed = (rest.tokens + added) / (rest.cost.verify_us(rest.num_rows + num) + rest.overhead_us + rest.guessing_us)
        if speed > best_speed:
            best, best_speed = (num, added), speed
    return best


def least_paying(rest: StepRest, gain: float = 0.0) -> float:
    """Tokens that guesses in this step, in which all go without, must be expected to add for any number of them to pay. gain: over one
    session's share of the step, by which they must be better."""
    plain_us = rest.cost.verify_us(rest.num_rows) + rest.overhead_us
    guessing_us = rest.cost.verify_us(rest.num_rows + 1) + rest.overhead_us + rest.guessing_us
    return (rest.tokens + gain) * guessing_us / plain_us - rest.tokens


def usable_rights(session: SessionView, longest: int) -> tuple[float, ...]:
    """Of the guesses that a round of this session may verify; none while the target reads the prompt."""
    if session.num_uncached > 1:
        return ()
    return session.lookup_rights[: max(0, min(longest, session.max_draft_len, session.remaining - 1))]


def as_guessed(session: SessionView, num_guesses: int) -> SessionView:
    """The same session as if a drafter that has paused had made these guesses: nothing more is to come."""
    return replace(session, num_nodes=num_guesses, depth=num_guesses, has_drafter=False, tail_ended=True)


def with_guesses(view: StepView, going: Mapping[int, int]) -> StepView:
    """The step with what the text offers in place of what drafters made, for these sessions. going: guesses by session."""
    if not going:
        return view
    return replace(view, sessions=tuple(as_guessed(one, going[one.session]) if one.session in going else one for one in view.sessions))


def marked(plan: PacingPlan, going: Container[int]) -> PacingPlan:
    """The plan with `from_lookup` for these sessions."""
    if not going:
        return plan
    return replace(plan, take=tuple(replace(part, from_lookup=True) if part.session in going else part for part in plan.take))


@quickly_made
@dataclass(frozen=True, slots=True)
class _Decision:
    """For the round after this commit: 0 guesses = not by lookup. tokens: that they are expected to add. offered: tokens of the best round
    that there was, one without guesses or not, and the time it takes in plain rounds. saved_us: by the guesses, of what is promised
    without."""

    committed_len: int
    num_guesses: int
    tokens: float
    offered: tuple[float, float] = (1.0, 1.0)
    saved_us: float = 0.0


class ByLookup:
    """Decisions by session. longest: bound of every chain."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._decisions: OrderedDict[int, _Decision] = OrderedDict()
        self._cost: CostCurve | None = None
        self._live: tuple[SessionView, ...] = ()
        self._guessing: dict[int, _Decision] | None = None  # of those that share the step and go by lookup, once somebody asks
        self._overhead_us = self._guessing_us = self._drafting_us = 0.0

    def observe(self, view: StepView, overhead_us: float, guessing_us: float = 0.0, drafting_us: float = 0.0) -> None:
        """Before each plan: who shares the step, and what it costs. overhead_us, guessing_us: as in StepRest, where rounds without guesses
        follow; drafting_us: the same where one goes back to drafts."""
        self._cost, self._overhead_us, self._guessing_us, self._drafting_us = view.cost, overhead_us, guessing_us, drafting_us
        self._live, self._guessing = view.sessions, None

    @property
    def plain_speed(self) -> float:
        """Tokens per microsecond of a session without guesses; 0 before the first plan."""
        return self._steps_per_us(len(self._live) or 1)

    @property
    def least_promise(self) -> float:
        """Tokens that one session's guesses must be expected to add for any number of them to pay, where all go without; 0 before the
        first plan."""
        if self._cost is None:
            return 0.0
        return least_paying(self._all_plain(self._cost), BEGIN_GAIN)

    def may_pay(self, rights: tuple[float, ...]) -> bool:
        """Whether a session that decodes plainly would go by guesses of these chances, where all others go without."""
        if self._cost is None:
            return True
        rest = self._all_plain(self._cost)
        num, added = paying_len(rights[: self._longest], rest)
        return num > 0 and self._speed(rest, num, added) > (rest.tokens + BEGIN_GAIN) * self._steps_per_us(rest.num_rows)

    def _all_plain(self, cost: CostCurve) -> StepRest:
        num = max(1, len(self._live))
        return StepRest(cost, num, float(num), self._overhead_us, self._guessing_us)

    def num_guesses(self, session: SessionView, promise: float, *, plainly: bool = False) -> int:
        """Guesses to verify in the round after the newest commit; 0: not this way. promise: tokens per microsecond of its course. plainly:
        that is one without guesses, so that nothing but this round is at stake."""
        if (decided := self.decided(session)) is not None:
            return decided
        known = self._decisions.get(session.session)
        rights = usable_rights(session, self._longest)
        if not rights or (rest := self._rest(session)) is None:  # who shares the step is asked of each session: only where it matters
            return 0
        num, added = paying_len(rights, rest)
        plain, guessing = self._steps_per_us(rest.num_rows), self._steps_per_us(rest.num_rows + num, rest.guessing_us)
        offered = (1.0 + added, plain / guessing) if num else (1.0, 1.0)
        goes_on = known is not None and known.num_guesses > 0 and not (plainly and len(self._live) == 1)
        gain = KEEP_GAIN if goes_on else BEGIN_GAIN
        if not plainly and self._drafting_us != self._guessing_us:
            rest = StepRest(rest.cost, rest.num_rows, rest.tokens, rest.overhead_us, self._drafting_us)
            num, added = paying_len(rights, rest)
        others, speed = (rest.tokens - 1.0) * plain, self._speed(rest, num, added)
        if not num or speed <= others + (1.0 + gain) * promise:
            self._remember(session.session, _Decision(session.committed_len, 0, 0.0, offered))
            return 0
        saved_us = (rest.tokens + added) * (1.0 / (others + max(plain, promise)) - 1.0 / speed)
        self._remember(session.session, _Decision(session.committed_len, num, added, offered, saved_us))
        return num

    def offered(self, session: int, committed_len: int) -> tuple[float, float]:
        """Tokens of the best round that there was at this commit for one without drafts, and its time in plain rounds; a plain one, if
        nothing was to be decided."""
        known = self._decisions.get(session)
        return known.offered if known is not None and known.committed_len == committed_len else (1.0, 1.0)

    def saved_us(self, session: int, committed_len: int) -> float:
        """By guesses from the text in the round behind this commit, of what was promised without; 0 where it had none."""
        known = self._decisions.get(session)
        return known.saved_us if known is not None and known.committed_len == committed_len else 0.0

    def _rest(self, session: SessionView) -> StepRest | None:
        """Of the step that this session would go by lookup in; None before the first plan."""
        if self._cost is None:
            return None
        num_rows = num_sessions = max(1, len(self._live))
        tokens = float(num_sessions)
        for one, other in self._who_guesses().items():
            if one != session.session:
                num_rows, tokens = num_rows + other.num_guesses, tokens + other.tokens
        return StepRest(self._cost, num_rows, tokens, self._overhead_us, self._guessing_us)

    def _who_guesses(self) -> dict[int, _Decision]:
        """Found out when somebody with guesses asks: most sessions have none, plan after plan."""
        if self._guessing is None:
            decided = ((one.session, self._decisions.get(one.session)) for one in self._live)
            self._guessing = {one: known for one, known in decided if known is not None and known.num_guesses}
        return self._guessing

    def offer(self, session: SessionView) -> tuple[int, float]:
        """What the text offers, taken or not: guesses, and the session's tokens per microsecond with them; (0, 0.0): nothing that pays."""
        rest = self._rest(session)
        num, added = (0, 0.0) if rest is None else paying_len(usable_rights(session, self._longest), rest)
        if rest is None or not num:
            return 0, 0.0
        return num, (1.0 + added) * self._steps_per_us(rest.num_rows + num, self._guessing_us)

    def _speed(self, rest: StepRest, num_guesses: int, added: float) -> float:
        """Tokens per microsecond of the whole step with so many guesses, which add so many."""
        return (rest.tokens + added) * self._steps_per_us(rest.num_rows + num_guesses, rest.guessing_us)

    def _steps_per_us(self, num_rows: int, guessing_us: float = 0.0) -> float:
        return 1.0 / (self._cost.verify_us(num_rows) + self._overhead_us + guessing_us) if self._cost is not None else 0.0

    def goes(self, session: SessionView) -> int:
        """What was decided for the newest commit; 0 also while nothing was."""
        return self.decided(session) or 0

    def decided(self, session: SessionView) -> int | None:
        """What was decided for the newest commit, 0 for not this way; None: nothing yet."""
        known = self._decisions.get(session.session)
        return known.num_guesses if known is not None and known.committed_len == session.committed_len else None

    def _remember(self, session: int, decision: _Decision) -> None:
        self._decisions[session] = decision
        self._decisions.move_to_end(session)
        if self._guessing is not None:
            self._guessing.pop(session, None)
            if decision.num_guesses and any(one.session == session for one in self._live):
                self._guessing[session] = decision
        while len(self._decisions) > MAX_REMEMBERED:
            self._decisions.popitem(last=False)
