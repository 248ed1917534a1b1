"""What speculation did for one session: counts, times, the running estimates that pacing reads, and the overlap of the two processes.

Knows rounds and drafting intervals in times that are handed in. Must not know frames or policies. Overlap compares a tail's drafting
interval (already on the verifier's clock) with the intervals in which a round of this session was being verified.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.session.acceptance_shift import AcceptanceShift
from outrider.session.alike_sessions import FIRST_TESTS, LEAST_TESTS, NO_SESSIONS, AlikeSessions
from outrider.session.depth_record import NO_DEPTHS, DepthPriors, DepthRecord
from outrider.session.drafter_loss import DrafterLossCause
from outrider.session.guess_depths import DepthCounts
from outrider.session.pacing.contract import FIRST_HOPE
from outrider.types.statistics import DraftStatistics
from outrider.types.value import quickly_made

ACCEPTANCE_RATE = 1 / 32
PRIOR_PAUSES = 4  # levels that the prior of pauses counts for: the first outcomes move the estimate faster
SETTLED_TESTS = 28  # guesses that an estimate rests on before a change is looked for: until then it is quick, and the prior no evidence
PAUSE_RATE = 1 / 32
TESTS_TO_REMEMBER = 16  # guesses judged: a session with fewer says that much less about the next
MEMORY = 1 / 4
TESTS_TO_DOUBT = 4  # guesses judged: a session with fewer takes that much less hope from the next
FALL_OF_HOPE = 1 / 8
LINK_RATE = 1 / 8
HEDGE_PRIOR = 0.5
PRIOR_HEDGES = 4  # mismatches that the prior counts for
DRAFT_TIME_RATE = 1 / 8
MIN_LEVEL_SHARE = 0.25  # of what a draft took that no longer one tells the start of: its levels cost at least this
LEAST_LEVEL_US = 0.01  # of a draft, whatever its drafter says: 0 stands for not known, and policies divide by it
OVERHEAD_RATE = 1 / 8
ALONE_SHARE = 0.1  # of a tail's drafting beside a step of its session, up to which it counts as undisturbed: two clocks never agree exactly
MAX_RECENT_INTERVALS = 16
MAX_PENDING_TAILS = 64
MAX_TAIL_DRAFT_US = 60_000_000
NS_PER_US = 1_000


@dataclass(frozen=True)
class DraftPriors:
    """Where a session's estimates begin: acceptance, of a drafted token, in [0, 1]; continue_prob and draft_start_us, as in
    SessionStatistics. hope: acceptance of the agreeable ones among the sessions before. depths: how it differs with depth. alike: how
    much is to be made of a session's first outcomes. Without draft_start_us, a session whose drafts are of one guess each takes their start
    for the time of a guess."""

    acceptance: float = 0.7
    continue_prob: float = 1.0
    draft_start_us: float = 0.0
    hope: float = FIRST_HOPE
    depths: DepthPriors = NO_DEPTHS
    alike: AlikeSessions = NO_SESSIONS


FIRST_PRIORS = DraftPriors()


@quickly_made
@dataclass(frozen=True, slots=True)
class DraftInterval:
    """Drafting that took `draft_us` of work between two instants of the verifier's clock, in microseconds."""

    begin_us: int
    end_us: int
    draft_us: int

    def share_within(self, begin_us: int, end_us: int) -> float:
        """The part of draft_us that ran within [begin_us, end_us)."""
        span = self.end_us - self.begin_us
        if span <= 0:
            return float(self.draft_us) if begin_us <= self.begin_us < end_us else 0.0
        common = min(self.end_us, end_us) - max(self.begin_us, begin_us)
        return self.draft_us * max(common, 0) / span


@dataclass(slots=True)
class SessionStatistics:
    """Counters of one session; units in the names. `*_by_depth[d]` counts rounds in which depth d was guessed / accepted.

    draft_us_per_token: per level of a tree, which is a token of the answer. draft_start_us: of a draft, before its first level.
    draft_alone_us: the same of tails that were drafted while no step of this session ran, 0 = there were none.
    holds_reading: all that is known of the former is a first tail of one level, in which the prompt was read. tells_start: a tail of
    several levels has told a draft's start from its levels.
    prior_tests: guesses that the acceptance it began with counts for.
    num_tested: guesses found right or wrong; is_flawless: none was wrong, and their drafter never paused. continue_prob: chance that a
    drafter that guessed one more token goes on without a pause for confidence. link_us: one way between the two; half of what passes from
    a commit that makes a drafter start over to its first guesses, less their drafting and a token that was under way, and until that was
    measured from the end of drafting to the arrival.
    heard_us: when the newest tail arrived, if its drafter went on; else 0.
    step_overhead_us: what this side spends on a round beside the target's step. num_looked_up: of num_drafted, from the text itself.
    step_ns: spent in the session's own steps; reconcile_ns: of it, on aligning tails and moving the trees of guesses along the truth;
    lookup_ns: on keeping the text for guesses from it.
    plan_ns: its share of what planning steps takes, which whoever plans them counts. num_guessed: nodes of joined tails.
    num_hedge_tests: mismatches while side branches were allowed; num_hedge_hits: of them those that found one. by_depth: how acceptance
    differs with what a drafter knew when it guessed.
    """

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_emitted: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    verify_us: int = 0
    draft_us: int = 0
    reconcile_ns: int = 0  # summed before it is rounded, as step_ns is: an event takes a few microseconds
    step_ns: int = 0
    lookup_ns: int = 0
    plan_ns: int = 0
    draft_wait_us: int = 0
    drafter_losses: Counter[DrafterLossCause] = field(default_factory=Counter)
    num_cached_prompt: int = 0
    num_looked_up: int = 0
    num_looked_up_accepted: int = 0
    num_violations: int = 0
    num_reopens: int = 0
    num_missed_deadlines: int = 0
    num_tails_joined: int = 0
    num_tails_stale: int = 0
    num_tails_repeated: int = 0
    num_tails_gapped: int = 0
    acceptance: float = DraftPriors.acceptance
    prior_tests: float = LEAST_TESTS
    draft_us_per_token: float = 0.0
    draft_start_us: float = 0.0
    draft_alone_us: float = 0.0
    holds_reading: bool = False
    tells_start: bool = False
    overhead_us: float = 0.0
    num_tested: int = 0
    is_flawless: bool = True
    continue_prob: float = DraftPriors.continue_prob
    link_us: float = 0.0
    step_overhead_us: float = 0.0
    heard_us: int = 0
    num_hedge_tests: int = 0
    num_hedge_hits: int = 0
    num_guessed: int = 0
    _num_alike: int = 0  # guesses judged since their acceptance last changed
    _num_first_right: int = 0  # of the first FIRST_TESTS that were judged
    by_depth: DepthRecord = field(default_factory=DepthRecord)
    _shift: AcceptanceShift = field(default_factory=AcceptanceShift)
    _num_answers: int = 0
    _num_draft_times: int = 0
    _num_pause_tests: int = 0
    _draft_us_before_round: int = 0
    _overlapped_us: float = 0.0
    _verify_intervals: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MAX_RECENT_INTERVALS))
    _pending_tails: deque[DraftInterval] = field(default_factory=lambda: deque(maxlen=MAX_PENDING_TAILS))

    def totals(self, pacing: str) -> DraftStatistics:
        """What clients see."""
        return DraftStatistics(
            num_rounds=self.num_rounds,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
            num_emitted=self.num_emitted,
            drafted_by_depth=tuple(self.drafted_by_depth),
            accepted_by_depth=tuple(self.accepted_by_depth),
            verify_us=self.verify_us,
            draft_us=self.draft_us,
            overlapped_draft_us=min(self.overlapped_draft_us, self.draft_us),
            reconcile_us=self.reconcile_ns // NS_PER_US,
            session_us=(self.step_ns - self.reconcile_ns) // NS_PER_US,
            plan_us=self.plan_ns // NS_PER_US,
            draft_wait_us=self.draft_wait_us,
            pacing=pacing,
            num_drafter_losses=self.num_drafter_losses,
            drafter_losses=tuple(sorted((str(cause), num) for cause, num in self.drafter_losses.items())),
            num_cached_prompt=self.num_cached_prompt,
            num_looked_up=self.num_looked_up,
            num_looked_up_accepted=self.num_looked_up_accepted,
            num_hedge_tests=self.num_hedge_tests,
            num_hedge_hits=self.num_hedge_hits,
            num_guessed=self.num_guessed,
        )

    @property
    def num_drafter_losses(self) -> int:
        """Of all causes."""
        return self.drafter_losses.total()

    @property
    def overlapped_draft_us(self) -> int:
        """Of draft_us, what ran while a round of this session was being verified."""
        return round(self._overlapped_us)

    @property
    def overlap_share(self) -> float:
        """overlapped_draft_us / draft_us in [0, 1]; 0 when nothing was drafted."""
        return min(1.0, self._overlapped_us / self.draft_us) if self.draft_us else 0.0

    def count_drafting(
        self, interval: DraftInterval, num_levels: int, *, verifying: bool, hedge_us: int = 0, first_us: int = 0, is_anew: bool = True
    ) -> None:
        """Add a tail's work. num_levels: of the tree that it added to (a chain's tokens); siblings come in one pass.

        verifying: a round is in flight, so that the tail may still overlap with it when it ends. hedge_us: of the interval's work, what
        went into side branches: it costs, but says nothing of how fast guesses come. first_us: to the first level; 0: not known. is_anew:
        a draft begins with it, and does not go on from guesses that were sent before.
        """
        self.draft_us += interval.draft_us
        beside_us = 0.0
        for begin, end in reversed(self._verify_intervals):  # one after another, so that what ended before is followed by no other
            if end <= interval.begin_us:
                break
            beside_us += interval.share_within(begin, end)
        self._overlapped_us += beside_us
        if verifying:
            self._pending_tails.append(interval)
        if num_levels and (interval.draft_us > hedge_us or not hedge_us):
            share = -1.0 if verifying else beside_us / max(1, interval.draft_us)
            self._count_draft_time(interval.draft_us - hedge_us, num_levels, first_us if is_anew else None, share)

    def _count_draft_time(self, draft_us: int, num_levels: int, first_us: int | None, beside_share: float) -> None:
        """What the first level takes beyond one of the others is the start of a draft, unless a step ran beside a part of them only. None:
        the draft goes on and has none. (Taken for one all the same, a level alone counted as a quarter of what it took, which was believed
        at once.) beside_share: of the work, beside a step of this session; negative: not known yet."""
        if not draft_us:
            self._num_draft_times += 1
            return
        is_alone = 0.0 <= beside_share <= ALONE_SHARE
        is_even = is_alone or beside_share >= 1.0 - ALONE_SHARE
        tells, told = first_us is None or (num_levels > 1 and first_us > 0), self.tells_start
        if first_us is None:
            measured = draft_us / num_levels
        elif tells:
            measured = (draft_us - first_us) / (num_levels - 1)
            if self._num_draft_times and is_even:
                self.draft_start_us = _followed(self.draft_start_us, max(0.0, first_us - measured), DRAFT_TIME_RATE)
        else:
            measured = max(draft_us - self.draft_start_us, MIN_LEVEL_SHARE * draft_us) / num_levels
        measured = max(LEAST_LEVEL_US, measured)
        # The first tail holds the reading of the prompt too: unless its levels tell the two apart it serves until there is a second, and
        # no longer. And what a single level took serves until levels tell its start from the rest.
        is_first_told = tells and not told
        known = 0.0 if self.holds_reading or is_first_told else self.draft_us_per_token
        self.draft_us_per_token = _followed(known, measured, DRAFT_TIME_RATE)
        self.holds_reading = not self._num_draft_times and not tells
        if is_alone and not self.holds_reading:
            self.draft_alone_us = _followed(0.0 if is_first_told else self.draft_alone_us, measured, DRAFT_TIME_RATE)
        self.tells_start = told or tells
        self._num_draft_times += 1

    def count_arrival(self, link_us: int, num_levels: int, *, paused: bool) -> None:
        """A tail of num_levels new levels arrived link_us after it was drafted; paused: its drafter stopped there, unsure."""
        if not self._num_answers:
            self.link_us = _followed(self.link_us, float(max(0, link_us)), LINK_RATE)
        self.is_flawless = self.is_flawless and not paused
        continue_prob, num_tests = self.continue_prob, self._num_pause_tests
        for goes_on in [1.0] * num_levels + [0.0] * paused:
            num_tests += 1
            rate = 1.0 / (PRIOR_PAUSES + num_tests)
            continue_prob += (rate if rate > PAUSE_RATE else PAUSE_RATE) * (goes_on - continue_prob)
        self.continue_prob, self._num_pause_tests = continue_prob, num_tests

    def count_answer(self, away_us: int, busy_us: int = 0) -> None:
        """A drafter that started over answered away_us after the commit that told it, its drafting left out: both ways and all hand-overs.
        Unlike one way by two clocks, this is what a round that waits for it waits for. busy_us: of it, until it began to guess anew; what
        a token takes of that was one under way, which is no distance: another time it is less. With its first guesses a drafter also opens
        the session and reads its prompt, which is no distance either."""
        if self._num_draft_times <= 1:
            return
        one_way_us = max(0.0, away_us - min(max(0.0, busy_us), self.draft_us_per_token)) / 2.0
        self.link_us = _followed(self.link_us, one_way_us, LINK_RATE) if self._num_answers else one_way_us
        self._num_answers += 1

    def count_verifying(self, begin_us: int, end_us: int) -> None:
        """A step that held this session ran in [begin_us, end_us)."""
        self.verify_us += max(0, end_us - begin_us)
        self._verify_intervals.append((begin_us, end_us))
        if self._pending_tails:
            self._overlapped_us += sum([tail.share_within(begin_us, end_us) for tail in self._pending_tails])
            self._pending_tails.clear()

    def count_overhead(self, wait_us: int, span_us: int, step_us: int) -> None:
        """A round with guesses waited wait_us after its commit and took span_us, of which the target's step was step_us.

        What of the wait was drafting is not overhead; drafting that overlapped with the last step was not waited for. The first round of
        a session waits for its drafter to be opened, which is no part of a round: half of the next ones' estimate would be that.
        """
        if self._num_draft_times <= 1:
            return
        drafted_us = self.draft_us - self._draft_us_before_round
        measured = float(max(0, wait_us - drafted_us) + max(0, span_us - step_us))
        self.overhead_us = _followed(self.overhead_us, measured, OVERHEAD_RATE)

    def count_step(self, span_us: int, step_us: int) -> None:
        """A round took span_us from its plan to its commit, of which the target's step was step_us."""
        self.step_overhead_us = _followed(self.step_overhead_us, float(max(0, span_us - step_us)), OVERHEAD_RATE)

    def count_commit(self) -> None:
        """The truth grew: drafting from now on belongs to the next round."""
        self._draft_us_before_round = self.draft_us

    def count_round(
        self,
        num_nodes: int,
        depth: int,
        num_accepted: int,
        num_emitted: int,
        *,
        corrected: bool,
        looked_up: bool = False,
        side_at: int | None = None,
    ) -> None:
        """A round verified num_nodes guesses of `depth` levels, accepted some and emitted num_emitted tokens.

        corrected: a guess at the next depth was wrong (False when the path ended at a leaf: nothing was tested there). looked_up: they came
        from the text itself, and say nothing of how often a drafter is right. side_at: which of the accepted ones began a side branch:
        there the drafter's guess was wrong, and another of its was right.
        """
        self.num_rounds += 1
        self.num_drafted += num_nodes
        self.num_accepted += num_accepted
        self.num_emitted += num_emitted
        _count_depths(self.drafted_by_depth, depth)
        _count_depths(self.accepted_by_depth, num_accepted)
        if looked_up:
            self.num_looked_up += num_nodes
            self.num_looked_up_accepted += num_accepted
            return
        if num_accepted or corrected:
            outcomes = [1.0] * num_accepted + [0.0] * corrected
            if side_at is not None:
                outcomes[side_at] = 0.0
            self._count_tests(outcomes)

    def count_plain_round(self, num_emitted: int) -> None:
        """A round without guesses emitted num_emitted tokens."""
        self.num_rounds += 1
        self.num_emitted += num_emitted

    def count_overtaken(self, outcomes: Sequence[bool]) -> None:
        """Guesses that came too late for a round to verify, and what the truth says of them."""
        self._count_tests([float(right) for right in outcomes])

    def count_depths(self, counts: DepthCounts) -> None:
        """Guesses that the truth judged, verified or overtaken, after they were counted without their depth."""
        self.by_depth.count(counts, self.acceptance)

    def count_hedges(self, num_mismatches: int, num_hedged: int) -> None:
        """Mismatches while side branches were allowed, and of them those that found one."""
        self.num_hedge_tests += num_mismatches
        self.num_hedge_hits += num_hedged

    @property
    def hedge_hit_share(self) -> float:
        """Estimated share of mismatches that find a side branch, in [0, 1]."""
        return min(1.0, (HEDGE_PRIOR * PRIOR_HEDGES + self.num_hedge_hits) / (PRIOR_HEDGES + self.num_hedge_tests))

    def remembered(self, known: DraftPriors) -> DraftPriors:
        """What to expect of the next session's drafts, after this one and those before it."""
        acceptance = known.acceptance + _weight(self.num_tested) * (self.acceptance - known.acceptance)
        continue_prob = known.continue_prob + _weight(self._num_pause_tests) * (self.continue_prob - known.continue_prob)
        hope, depths = self._hope_after(known.hope), self.by_depth.remembered()
        alike = known.alike.after(min(FIRST_TESTS, self.num_tested), self._num_first_right)
        return DraftPriors(alike.rate_after(acceptance), continue_prob, self.draft_start_us, hope, depths, alike)

    def _hope_after(self, hope: float) -> float:
        """One agreeable session is reason to hope for another; that there is none takes several others. One that was hardly tested, and
        never wrong, is no reason to doubt: its acceptance is below the hope because nothing more was asked of it."""
        if self.acceptance > hope:
            return hope + min(1.0, self.num_tested / TESTS_TO_REMEMBER) * (self.acceptance - hope)
        if self.is_flawless:
            return hope
        return hope + FALL_OF_HOPE * min(1.0, self.num_tested / TESTS_TO_DOUBT) * (self.acceptance - hope)

    def _count_tests(self, outcomes: list[float]) -> None:
        acceptance, num_alike = self.acceptance, self._num_alike
        if self.num_tested < FIRST_TESTS:
            self._num_first_right += int(sum(outcomes[: FIRST_TESTS - self.num_tested]))
        for outcome in outcomes:
            num_alike += 1
            known, before = self.prior_tests + num_alike, acceptance
            rate = 1.0 / known
            acceptance += (rate if rate > ACCEPTANCE_RATE else ACCEPTANCE_RATE) * (outcome - acceptance)
            if known > SETTLED_TESTS and (changed := self._shift.rate_after(before, right=outcome > 0.0)) is not None:
                (acceptance, num_alike), self.prior_tests = changed, LEAST_TESTS  # what was before is no evidence any more
        self.acceptance, self._num_alike = acceptance, num_alike
        self.num_tested += len(outcomes)
        self.is_flawless = self.is_flawless and min(outcomes, default=1.0) > 0.0


def _weight(num_tests: int) -> float:
    return MEMORY * min(1.0, num_tests / TESTS_TO_REMEMBER)


def _count_depths(counts: list[int], depth: int) -> None:
    if not depth:
        return
    if depth > len(counts):
        counts.extend([0] * (depth - len(counts)))
    for level in range(depth):
        counts[level] += 1


def _followed(known: float, measured: float, rate: float) -> float:
    """A running mean that begins at the first value; 0 = nothing known yet."""
    return measured if known == 0.0 else known + rate * (measured - known)
