"""How many tokens to draft per round: fixed, or found from measured times and kept until a better one is clearly better.

Knows expected costs only. Must not know sessions beyond their measured rates. Sources: PEARL chooses gamma = T_target / T_draft (ALGORITHMS
A.1); serial speculation maximises (1 - alpha^(gamma+1)) / (1 - alpha) / (gamma * T_draft + T_target(gamma + 1)) (ALGORITHMS 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.session.pacing.contract import CostCurve, SessionView, StepView
from outrider.session.pacing.explanation import Choice, Promise, Way, Why
from outrider.types.value import quickly_made

MAX_DRAFT_LEN = 32
DEFAULT_DRAFT_LEN = 4
KEEP_WITHIN = 0.03
MEMORY_RATE = 1 / 8  # of times that sessions bring with them, in those that are kept from session to session
# Rates change little within so short a time, and looking for the best length takes tens of microseconds of the engine thread.
LOOK_EVERY_US = 20_000
SURPRISE = 0.08  # by which an estimate of acceptance has moved since
_ALMOST_ONE = 0.999


@quickly_made
@dataclass(frozen=True, slots=True)
class Rates:
    """Measured: verify time by rows, drafting time per token (us, > 0), acceptance per drafted token, what else a round takes (us).

    draft_start_us: of a draft, beside its tokens.
    num_sessions: that share a step and a draft step; the drafting time is theirs together.
    """

    cost: CostCurve
    draft_us_per_token: float
    acceptance: float
    overhead_us: float = 0.0
    num_sessions: int = 1
    draft_start_us: float = 0.0

    def verify_us(self, rows_each: int) -> float:
        """Time of a step in which every session has this many rows."""
        return self.cost.verify_us(rows_each * self.num_sessions)


def tokens_per_serial_round(acceptance: float, draft_len: int) -> float:
    """Expected tokens of a round with draft_len guesses: (1 - alpha^(gamma+1)) / (1 - alpha)."""
    alpha = min(acceptance, _ALMOST_ONE)
    return float((1.0 - alpha ** (draft_len + 1)) / (1.0 - alpha))


def serial_tokens_per_us(rates: Rates, draft_len: int) -> float:
    """Throughput of drafting draft_len tokens, then verifying them; what a round costs anyway makes longer drafts pay."""
    round_us = rates.draft_start_us + draft_len * rates.draft_us_per_token + rates.verify_us(draft_len + 1) + rates.overhead_us
    return tokens_per_serial_round(rates.acceptance, draft_len) / round_us


def pearl_tokens_per_us(rates: Rates, draft_len: int) -> float:
    """Throughput of PEARL's rounds of max(draft_len * T_draft, T_target), by the model of ALGORITHMS A.1."""
    alpha = min(rates.acceptance, _ALMOST_ONE)
    whole: float = alpha**draft_len
    post_share = alpha / (alpha + 1.0 - whole)
    emitted = (1.0 - whole) / (1.0 - alpha)  # A.1's sum of (n + 1) alpha^n (1 - alpha), and gamma * alpha^gamma
    draft_us = rates.draft_start_us + draft_len * rates.draft_us_per_token
    post_us = max(draft_us, rates.verify_us(draft_len))
    pre_us = max(draft_us, rates.verify_us(1))
    round_us = (1.0 - post_share) * pre_us + post_share * post_us + rates.overhead_us
    return ((1.0 - post_share) + post_share * emitted) / round_us


class DraftLength:
    """The draft length of a policy. With a fixed length nothing is ever recomputed.

    Otherwise the length with the best expected throughput under the mean rates of all sessions, looked for at most every LOOK_EVERY_US and
    when a session that is alone turns out otherwise, and changed only when it is more than KEEP_WITHIN better than the present one
    (hysteresis). overlaps: drafters go on during steps.
    least: the shortest length that the policy can do anything with, whatever is wished.
    """

    def __init__(self, fixed: int | None, throughput: Callable[[Rates, int], float], *, overlaps: bool = False, least: int = 1) -> None:
        assert fixed is None or 1 <= fixed <= MAX_DRAFT_LEN
        self._fixed = fixed is not None
        self._throughput = throughput
        self._overlaps = overlaps
        self._least = least
        self._look_at_us: int | None = None
        self._looked_at: int | None = None  # the first of the sessions then
        self._draft_us = self._overhead_us = 0.0
        self._seen: Rates | None = None  # when last looked at
        self.value = DEFAULT_DRAFT_LEN if fixed is None else max(least, fixed)

    def update(self, view: StepView) -> None:
        """Look at what was measured since."""
        if self._fixed:
            return
        if self._look_at_us is not None and view.now_us < self._look_at_us and not self._is_surprised(view):
            return
        known = [session for session in view.sessions if session.draft_us_per_token > 0.0]
        if not known:
            return
        self._look_at_us, self._looked_at = view.now_us + LOOK_EVERY_US, view.sessions[0].session
        acceptance = sum(session.acceptance for session in known) / len(known)
        # What a round costs anyway is not known of a session that has just begun, and taken for nothing it would make drafts short.
        if overheads := [session.overhead_us for session in known if session.overhead_us > 0.0]:
            measured_us = sum(overheads) / len(overheads)
            # A stalled machine is no part of a round, and long ones are hit by it as often: less is believed at once, more slowly.
            self._overhead_us = min(measured_us, _followed(self._overhead_us, measured_us))
        # A session's first tail holds its prompt's prefill too: smoothed, it does not shorten everybody's drafts.
        if telling := [session.draft_us_per_token for session in known if self._tells_token(session)]:
            self._draft_us = _followed(self._draft_us, sum(telling) / len(telling))
        # A token takes no longer than a draft of one: believed to take as long as a first draft, which read the prompt, it would stay so.
        self._draft_us = min((self._draft_us, *(session.draft_us_per_token for session in known if not self._tells_token(session))))
        cost = view.overlapped_cost if self._overlaps else view.turn_cost
        start_us = sum(self._start_us(session) for session in known) / len(known)
        rates = self._seen = Rates(cost, self._draft_us, acceptance, self._overhead_us, len(view.sessions), start_us)
        best = max(range(self._least, MAX_DRAFT_LEN + 1), key=lambda length: self._throughput(rates, length))
        if self._throughput(rates, best) > (1.0 + KEEP_WITHIN) * self._throughput(rates, self.value):
            self.value = best

    def _is_surprised(self, view: StepView) -> bool:
        """One session alone, whose answer may be over before the next look is due, is another than was looked at last, or its guesses turn
        out otherwise."""
        if len(view.sessions) != 1 or self._seen is None:  # none: everybody waits
            return False
        (session,) = view.sessions
        return session.session != self._looked_at or abs(session.acceptance - self._seen.acceptance) > SURPRISE

    def _tells_token(self, session: SessionView) -> bool:
        """Whether what it measured of a drafted token says more than what is known: of drafts of one guess each, of a drafter that rests
        between them, start and token are one. Taken for tokens, prose's drafts made those of the sums behind it a third as long."""
        return session.tells_start or not session.takes_turns or not self._draft_us

    def _start_us(self, session: SessionView) -> float:
        """Of a draft, beside its tokens."""
        if self._tells_token(session):
            return session.draft_start_us
        return max(0.0, session.draft_start_us + session.draft_us_per_token - self._draft_us)

    def of(self, session: SessionView) -> int:
        """The length for one session: bounded by its own wish and by what it may still emit; never below the least."""
        return max(self._least, min(self.value, session.max_draft_len, session.remaining - 1))

    def choice(self, session: SessionView, way: Way) -> Choice:
        """The length for one session beside the best of the others, as promised when it was last looked for. way: of the policy."""
        if not session.max_draft_len:
            return Choice(Promise(Way.PLAIN, 0, 0, None), (), Why.ONLY)
        chosen, rates = self.of(session), self._seen
        if rates is None:
            return Choice(Promise(way, chosen, chosen, None), (), Why.ONLY if self._fixed else Why.UNMEASURED)
        speeds = {length: self._throughput(rates, length) for length in range(self._least, MAX_DRAFT_LEN + 1)}
        other = max((length for length in speeds if length != chosen), key=speeds.__getitem__)
        kept = chosen == self.value and speeds[other] > speeds[chosen]
        why = Why.KEPT if kept else Why.MOST if chosen == self.value else Why.ONLY
        return Choice(Promise(way, chosen, chosen, speeds[chosen]), (Promise(way, other, other, speeds[other]),), why, kept)


def _followed(known: float, measured: float) -> float:
    """A running mean that begins at the first value; 0 = nothing known yet."""
    return known + (MEMORY_RATE if known else 1.0) * (measured - known)
