"""The pacing seam: who takes part in the next step, with how many nodes, who waits, and how far each drafter may run.

A policy is pure: the same view gives the same plan; it drives the verifier service and the simulator alike. It must not know
engines, streams or clocks (the view carries the time). Times in microseconds on one monotonic clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.session.pacing.depth_bands import DepthOffsets
from outrider.session.pacing.explanation import PlanExplanation
from outrider.types.value import quickly_made

MAX_HEDGE_NODES = 32  # of side branches of one session, beside its guesses
MAX_SIDE_NODES = 8  # of side branches of one session in one step
FIRST_HOPE = 0.8  # acceptance to hope for before any session was seen
PLAIN_REPEATS = 15  # steps without guesses that policies let pass unasked


@quickly_made
@dataclass(frozen=True, slots=True)
class CostCurve:
    """Measured verify time as a function of rows: (rows, us) points ascending, of one sequence; linear between. Beyond the last, a row
    costs what it does between the last two points, or between the first and the last if that is more: points follow what steps take one
    by one, so that two of them may lie as if rows cost nothing.

    sequence_us: what each further sequence of a step adds to that, whatever its rows (it has a cache, a pick and an account of its own);
    num_sequences: that share the steps asked about, of which those with fewer rows hold as many as they have rows.
    """

    points: tuple[tuple[int, float], ...]
    sequence_us: float = 0.0
    num_sequences: int = 1

    def shared_by(self, num_sequences: int) -> CostCurve:
        """The same for steps of so many sequences."""
        if num_sequences == self.num_sequences or not self.sequence_us:
            return self
        return CostCurve(self.points, self.sequence_us, num_sequences)

    def verify_us_of(self, num_rows: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """verify_us of many row counts at once."""
        rows, times = (np.array(axis, np.float64) for axis in zip(*self.points, strict=True))
        found = np.interp(num_rows, rows, times)
        if len(rows) > 1:
            found += np.maximum(0.0, num_rows - rows[-1]) * self._slope
        if self.sequence_us:
            found += self.sequence_us * (np.clip(np.asarray(num_rows, np.float64), 1.0, self.num_sequences) - 1.0)
        return np.asarray(found, np.float64)

    def verify_us(self, num_rows: int) -> float:
        """Expected duration of a step of this many rows."""
        points = self.points
        if num_rows <= points[0][0] or len(points) == 1:  # a plan asks a dozen times, and for a row or two above all
            rows_us = points[0][1]
        elif num_rows <= points[-1][0]:
            at = bisect_left(points, (num_rows,))
            (rows_a, us_a), (rows_b, us_b) = points[at - 1], points[at]
            rows_us = us_a + (us_b - us_a) * (num_rows - rows_a) / (rows_b - rows_a)
        else:
            rows_us = points[-1][1] + self._slope * (num_rows - points[-1][0])
        if self.sequence_us and num_rows > 1:
            return rows_us + self.sequence_us * (min(num_rows, self.num_sequences) - 1)
        return rows_us

    @property
    def _slope(self) -> float:
        """Of a row beyond the last point; there are two points."""
        (rows_0, us_0), (rows_a, us_a), (rows_b, us_b) = self.points[0], *self.points[-2:]
        return max((us_b - us_a) / (rows_b - rows_a), (us_b - us_0) / (rows_b - rows_0))


# Of these four nobody changes one. Frozen, each would take more than twice as long to make, and a round makes half a dozen.
@dataclass(slots=True)
class SessionView:
    """What a policy may know of one session.

    num_uncached: committed tokens not yet fed to the target (1 = only the newest: ready to verify; more = prefill left).
    num_nodes, depth: live guessed nodes beyond the truth and their levels. tail_ended: no live drafter is expected to send more unasked.
    has_drafter: at least one drafter is live for this session and answers in time. following: False when every drafter is known to
    start over at the newest commit (it contradicted the tree, or the session was just opened there), so that nothing sent before can
    follow; True also while it is not known yet whether the newest commit was guessed. waiting_since_us: when the session last became
    ready (its commit, or its prefill's end). draft_deadline_us: past this the session must not wait for drafts any longer.
    max_draft_len: the request's own bound (0 = off). remaining: tokens it may still emit; expected_left: of them, as many as
    earlier answers suggest, 0 when unknown.
    draft_us_per_token: measured per token of depth (siblings come in one pass), 0 when unknown. draft_start_us: measured, what a draft that
    begins anew takes beside its tokens, 0 when unknown or nothing.
    draft_alone_us: as draft_us_per_token, of tails that were drafted while no step of the session ran; 0 = there were none.
    overhead_us: measured, what a round takes beside drafting and the target's step (messages, planning), 0 when unknown.
    acceptance: running estimate per drafted token in [0, 1]. committed_len: absolute.
    num_tested: guesses found right or wrong so far; is_flawless: none was wrong, and the drafter never paused. continue_prob: chance that
    the drafter goes on after one more token rather than pause for want of confidence. link_us: measured one-way time of a tail, 0 when
    unknown. step_overhead_us: measured, of a round on this side.
    hope: acceptance to hope for in a session that was hardly tested.
    is_drafting: a drafter may be at work for it, whether or not its guesses are waited for.
    lookup_rights: for each guess at hand from the text itself, the chance that it is right if all before it are; lookup_us: measured, what
    keeping the text for them took so far, 0 where it is not kept.
    num_hedge_tests: mismatches while side branches were allowed; hedge_hit_share: running estimate of those that found one, in [0, 1].
    side_depths: for each live node on a side branch, in the order they would be verified, the levels of guesses before it; they are not
    among num_nodes. heard_us: when the newest tail arrived, of a drafter that went on to the next guess then; 0 = it paused, or
    nothing is known. takes_turns: its drafters compute only while the target rests, so that none can run ahead. holds_reading:
    draft_us_per_token is all of a first tail, the reading of the prompt included. tells_start: it and draft_start_us were told apart by
    tails of several tokens; else only their sum is known. kind: sessions whose prompts began alike are of one,
    0 = like no earlier prompt; shorter_kind: that of prompts which have only a part of that beginning. depth_offsets: where acceptance
    clearly differs with how far a guess is from what its drafter knew, the difference of its log odds for each band of depth
    (depth_bands.py); () = it does not. renewed_us: when leave went out to drafters that had used up theirs, from which on they guess
    again; 0 = they had not, or were heard of since; renewed_len: the text's length, with guesses, at which they had stopped.
    """

    session: int
    committed_len: int
    num_uncached: int
    num_nodes: int
    depth: int
    tail_ended: bool
    has_drafter: bool
    following: bool
    waiting_since_us: int
    draft_deadline_us: int
    max_draft_len: int
    remaining: int
    draft_us_per_token: float
    acceptance: float
    overhead_us: float = 0.0
    num_tested: int = 0
    is_flawless: bool = False
    continue_prob: float = 1.0
    link_us: float = 0.0
    step_overhead_us: float = 0.0
    is_drafting: bool = False
    lookup_rights: tuple[float, ...] = ()
    num_hedge_tests: int = 0
    hedge_hit_share: float = 0.0
    draft_start_us: float = 0.0
    side_depths: tuple[int, ...] = ()
    expected_left: float = 0.0
    hope: float = FIRST_HOPE
    heard_us: int = 0
    takes_turns: bool = False
    holds_reading: bool = False
    tells_start: bool = True
    draft_alone_us: float = 0.0
    kind: int = 0
    shorter_kind: int = 0
    depth_offsets: DepthOffsets = ()
    renewed_us: int = 0
    renewed_len: int = 0
    lookup_us: float = 0.0


class PrefillRoom(Protocol):
    """What prompts may have of a step in which others decode."""

    def num_rows(self, num_own: int, max_rows: int) -> int:
        """Rows for prompts beside num_own rows of sessions that decode, at most max_rows."""
        ...

    def added_us(self, num_read: int, num_own: int) -> float:
        """What so many rows of prompts are expected to add to a step of num_own rows of sessions that decode."""
        ...


@dataclass(slots=True)
class StepView:
    """All live sessions, the measured cost curve, rows a step may hold, and the present time.

    cost: of steps while drafters rest. cost_drafting: of steps while they may be at work, longer on shared cores; None = as cost.
    cost_ahead: of steps over a draft in turns that are computed ahead (engine/round_ahead.py); None = there was none.
    prefill: bounds what prompts take of the step; None = nothing but its rows does, for nobody decodes beside them.
    guess_us: measured, what the verifier does for one session's guesses in a round, beside the step; 0 = unknown. All wait for it.
    plain_ahead: plain steps of a session that is alone are computed before they are asked for, so that what passes beside them is hidden.
    """

    sessions: tuple[SessionView, ...]
    cost: CostCurve
    max_rows: int
    now_us: int
    cost_drafting: CostCurve | None = None
    prefill: PrefillRoom | None = None
    cost_ahead: CostCurve | None = None
    guess_us: float = 0.0
    plain_ahead: bool = False

    @property
    def turn_cost(self) -> CostCurve:
        """What to expect of a step over drafts in turns: of a session alone with a drafter of the target's thread, one computed ahead."""
        if self.cost_ahead is None or len(self.sessions) != 1 or not self.sessions[0].takes_turns:
            return self.cost
        return self.cost_ahead

    @property
    def overlapped_cost(self) -> CostCurve:
        """What to expect of a step during which drafters go on."""
        return self.cost_drafting or self.cost

    @property
    def is_drafting(self) -> bool:
        """Whether a drafter may go on during a step that begins now."""
        return any(session.is_drafting for session in self.sessions)


@dataclass(slots=True, unsafe_hash=True)
class SessionPlan:
    """A session's part in the step: at most max_feed committed tokens (a prefill chunk, or 1) and max_nodes guessed nodes.

    from_lookup: guesses from the text itself instead of the drafters'. side_nodes: at most so many more rows for nodes of side branches,
    the shallowest first, beside guesses that are verified: where the guess is wrong and a branch right, the round goes on along it. 0 = a
    chain only, and a mismatch finds its branch when the round is over.
    """

    session: int
    max_feed: int
    max_nodes: int
    from_lookup: bool = False
    side_nodes: int = 0

    @property
    def num_rows(self) -> int:
        """Of the step, at most."""
        return self.max_feed + self.max_nodes + self.side_nodes


@dataclass(slots=True)
class PacingPlan:
    """take: sessions of the step, empty = wait. wake_us: when to plan again at the latest if nothing arrives (None: only on events).

    reason: one word per plan for traces (`tree`: somebody verifies side branches beside a chain).
    repeats: so many more steps may be planned alike without asking, while every session does nothing but grow (no drafter's guess, leave,
    drafter or session comes or goes) and has no guesses from texts that promise more than least_promise tokens; 0 = ask each time.
    may_pay: of the chances of guesses that do promise more, whether any number of them could be worth a plan; None = always.
    """

    take: tuple[SessionPlan, ...]
    wake_us: int | None
    reason: str
    repeats: int = 0
    least_promise: float = 0.0
    may_pay: Callable[[tuple[float, ...]], bool] | None = field(default=None, compare=False)

    def is_upset_by(self, promise: float, rights: tuple[float, ...]) -> bool:
        """Whether guesses from a text could be worth another plan. promise: tokens that they are expected to add; rights: their chances."""
        return promise > self.least_promise and (self.may_pay is None or self.may_pay(rights))


class Pacing(Protocol):
    """A registered policy. drafts: False when it never uses a drafter's guesses, so that its sessions open none. looks_up: it may plan
    rounds of guesses from the text itself. hedges: whether it ever asks for side branches, so that drafters keep room for them.

    The only memory a policy may keep is that of smoothing (a draft length with hysteresis).
    """

    name: str
    drafts: bool
    looks_up: bool
    hedges: bool

    def plan(self, view: StepView) -> PacingPlan:
        """Decide the next step. Must make progress: a prefill and a ready session past its deadline are taken, every wait has an end."""
        ...

    def explain(self, view: StepView, plan: PacingPlan) -> PlanExplanation:
        """Why the newest plan, which was made of this view, is what it is. Asked only by who wants to know, right after `plan`; changes
        nothing, so that plans are the same whether anybody asks or not."""
        ...

    def draft_ahead(self, session: SessionView) -> int:
        """Tokens beyond the commit that the drafter may draft (draft_until = committed_len + this); 0 = do not draft."""
        ...

    def lets_rest(self, session: int, committed_len: int) -> bool:
        """Whether drafters of this session that rest would have no leave at this length, so that nobody need make a view to ask
        `draft_ahead`; False where that is not clear without one. Asked at commits, of many sessions: must be cheap."""
        ...

    def takes_up_text(self, kind: int, shorter_kind: int) -> bool:
        """Whether a session of this kind, which begins, keeps its text for guesses from it; asked once of each, where looks_up. One that
        does not does so all the same from when its text repeats itself."""
        ...

    def hedge_nodes(self, session: SessionView) -> int:
        """Live nodes of side branches the drafter may hold from this commit on, at most MAX_HEDGE_NODES; 0 = none."""
        ...

    def flush_len(self, session: SessionView) -> int:
        """New nodes after which a drafter sends a tail although it goes on (0 = it sends only when it pauses), from this commit on."""
        ...
