"""The drafters of one session: joined, opened, heard, fenced, re-opened, banned, and their guesses as one tree.

Knows links, frames and the bounds of a session. Must not know rounds, the engine or how the truth grows. Frames are untrusted: the worst of
them costs its drafter its part in this session (docs/architecture.md section 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from outrider.errors import ProtocolViolation
from outrider.session.drafter_link import MAX_UNTOLD_TOKENS, DrafterLink, LinkState, TailFate
from outrider.session.drafter_loss import DrafterLossCause
from outrider.session.drafter_tally import DrafterTally
from outrider.session.events import (
    DrafterFrameArrived,
    DrafterFrameMalformed,
    DrafterGivenUp,
    DrafterJoined,
    DrafterLost,
    SendToDrafter,
    VerifierEffect,
)
from outrider.session.merged_tree import NO_GUESSES, MergedTree, merge_trees, placed_rows
from outrider.session.opening import VerifierSpec, opening_frames
from outrider.session.pacing.contract import MAX_HEDGE_NODES, Pacing, SessionView
from outrider.session.prefix import CommittedPrefix
from outrider.session.statistics import DraftInterval, SessionStatistics
from outrider.session.stopwatch import Stopwatch, stopped
from outrider.types.frames import Close, CloseReason, Commit, DrafterFrame, Opened, Refused, Tail, TailEnd
from outrider.types.tree import MAX_TREE_NODES, DraftRow
from outrider.types.value import quickly_made

MAX_DRAFTERS = 8
MAX_REOPENS = 4
_NEVER = (1 << 63, 0)


@quickly_made
@dataclasses.dataclass(frozen=True, slots=True)
class DraftLeave:
    """What drafters may do from a commit on, as in Commit."""

    draft_until: int
    hedge_nodes: int
    flush_nodes: int


@quickly_made
@dataclasses.dataclass(frozen=True, slots=True)
class DraftersView:
    """What pacing may know of all drafters of a session, as in SessionView. renewed: its renewed_us and renewed_len."""

    num_nodes: int
    depth: int
    tail_ended: bool
    has_drafter: bool
    following: bool
    is_drafting: bool
    side_depths: tuple[int, ...] = ()
    takes_turns: bool = False
    renewed: tuple[int, int] = (0, 0)


NO_DRAFTERS = DraftersView(0, 0, tail_ended=True, has_drafter=False, following=False, is_drafting=False)
_RESTING = dataclasses.replace(NO_DRAFTERS, takes_turns=True)


class SessionDrafters:
    """The links of a session by drafter. view: the session's present view, for the policy's credit when a drafter is opened. stopwatch: for
    what reconciling takes (SessionStatistics.reconcile_ns)."""

    def __init__(
        self,
        spec: VerifierSpec,
        prefix: CommittedPrefix,
        pacing: Pacing,
        statistics: SessionStatistics,
        view: Callable[[int], SessionView],
        stopwatch: Stopwatch = stopped,
    ) -> None:
        self._spec = spec
        self._prefix = prefix
        self._pacing = pacing
        self._statistics = statistics
        self._view = view
        self._stopwatch = stopwatch
        self._links: dict[str, DrafterLink] = {}
        self._untouched: DraftersView | None = NO_DRAFTERS  # the view as long as none was opened: of many, most never are

    # --- what the session asks ----------------------------------------------------------------------------------------------

    @property
    def num_open(self) -> int:
        """Drafters that frames go to."""
        return len(self._open_links())

    def tallies(self) -> dict[str, DrafterTally]:
        """What each of them did so far."""
        return {name: link.tally for name, link in self._links.items()}

    @property
    def any_worth_waiting(self) -> bool:
        """Whether one is live and answers in time."""
        return self._untouched is None and any(link.is_worth_waiting for link in self._links.values())

    @property
    def are_at_rest(self) -> bool:
        """Whether none has leave to guess, a guess that stands, or so much to hear that it must be told."""
        if self._untouched is not None:
            return True
        known_len = len(self._prefix)
        return all(link.is_at_rest(known_len) for link in self._links.values())

    def view(self) -> DraftersView:
        """All of them as one."""
        if self._untouched is not None:
            return self._untouched
        num_nodes = depth = 0
        side_depths: tuple[int, ...] = ()
        is_pending = has_drafter = is_following = is_drafting = False
        takes_turns, renewed = True, _NEVER
        known_len, with_rows = len(self._prefix), self._spec.with_rows
        for link in self._links.values():
            if link.num_live and not (num_nodes and with_rows):  # as in _guessing
                num_nodes += link.num_live
                depth = max(depth, link.depth)
                if link.side_depths:
                    side_depths = tuple(sorted((*side_depths, *link.side_depths)))
            takes_turns = takes_turns and link.takes_turns
            may_be_at_work = link.may_be_at_work(known_len)
            is_drafting = is_drafting or may_be_at_work
            if link.is_worth_waiting:
                has_drafter = True
                is_pending = is_pending or may_be_at_work
                is_following = is_following or link.is_following(known_len)
                if may_be_at_work:
                    renewed = min(renewed, (link.leaves.renewed_us, link.leaves.renewed_len))
        renewed = renewed if renewed is not _NEVER else (0, 0)
        return DraftersView(num_nodes, depth, not is_pending, has_drafter, is_following, is_drafting, side_depths, takes_turns, renewed)

    def _open_links(self) -> list[DrafterLink]:
        return [link for link in self._links.values() if link.is_open]

    def at_work(self, names: Collection[str]) -> bool:
        """Whether one of these drafters may be drafting at present."""
        known_len = len(self._prefix)
        return any(link.may_be_at_work(known_len) for name, link in self._links.items() if name in names)

    def _guessing(self) -> list[DrafterLink]:
        """Links whose tree stands at the truth and reaches beyond it; with rows only the first (merged draws would bias rejection)."""
        if self._untouched is not None:
            return []
        guessing = [link for link in self._links.values() if link.num_live]
        return guessing[:1] if self._spec.with_rows else guessing

    def tree_to_verify(self, max_nodes: int, max_side_nodes: int) -> tuple[MergedTree, tuple[DraftRow, ...]]:
        """All guesses as one trie and side nodes beside it, clipped to the session's bounds, and the draft rows of its nodes."""
        guessing = self._guessing()
        if not guessing:
            return NO_GUESSES, ()
        max_depth = min(self._spec.max_draft_len, self._spec.max_len - len(self._prefix) - 1)
        trees = [link.tree for link in guessing if link.tree is not None]
        most = self._spec.max_nodes
        merged = merge_trees(trees, min(max_nodes, most), max_depth, self._spec.stop_token_ids, max_side_nodes, most)
        rows = placed_rows(guessing[0].rows, merged.places, merged.tree) if self._spec.with_rows else ()
        return merged, rows

    def miss_deadline(self) -> None:
        """A round starts after its deadline: count drafters that brought at most a trickle since the commit, and those given up for it."""
        known_len = len(self._prefix)
        for link in self._links.values():
            if link.miss_deadline(known_len):
                self._statistics.num_missed_deadlines += 1
                self._count_loss(DrafterLossCause.LATE, link.is_stalled)  # given up until it does better

    def observe_commit(self, judged_len: int) -> bool:
        """The truth grew; positions before judged_len were judged by a round. False when there is no drafter to tell, or to open."""
        if not self._links:
            return False
        links = self._open_links()
        if links:
            self._move_along(links, judged_len)
        return bool(links) or any(link.state is LinkState.DEFERRED for link in self._links.values())

    def _move_along(self, links: list[DrafterLink], judged_len: int) -> None:
        """Every tree goes where the truth went, or is given up."""
        begin_ns = self._stopwatch()
        for link in links:
            link.observe_commit(self._prefix, judged_len)
        self._statistics.reconcile_ns += self._stopwatch() - begin_ns
        for link in links:
            self._count_judged(link)

    def commit_frames(self, num_accepted: int, verify_us: int, leave: DraftLeave, now_us: int) -> list[VerifierEffect]:
        """What is new for every open drafter. One that may not guess now is told later, in one frame: it would only have to listen; but
        one that had leave is told at once that it is taken back."""
        known_len = len(self._prefix)
        effects: list[VerifierEffect] = []
        for link in self._open_links():
            is_reading = link.state is LinkState.OPENING  # its prompt: leave taken back now would have it say that it is done
            had_leave = link.credit > known_len and not is_reading
            link.credit = max(link.credit, leave.draft_until) if is_reading else leave.draft_until
            if link.credit <= known_len and not had_leave and known_len - link.told_len < MAX_UNTOLD_TOKENS:
                continue
            if link.told_len < self._prefix.newest_begin and not link.num_live:
                link.starts_over_at = known_len  # it was left behind, and guesses again only when it has heard
            tokens = self._prefix.slice(link.told_len, known_len)
            link.hedge_nodes = min(leave.hedge_nodes, link.max_hedge_nodes)
            truth = self._spec.session, link.incarnation, link.told_len, tokens, self._prefix.hash
            commit = Commit(*truth, num_accepted, verify_us, link.credit, link.hedge_nodes, leave.flush_nodes)
            effects.append(SendToDrafter(link.name, commit))
            link.told_len = known_len
            link.leaves.give(link.credit, now_us)
            link.depths.told(known_len, now_us + self._statistics.link_us)
            if leave.draft_until > known_len:
                link.asked.note(known_len, now_us)
        return effects

    def open_deferred(self, now_us: int) -> list[VerifierEffect]:
        """There is leave to guess: those that wait for it are opened."""
        effects: list[VerifierEffect] = []
        for link in self._links.values():
            if link.state is LinkState.DEFERRED:
                effects += self._open(link, now_us)
        return effects

    def close_all(self, reason: CloseReason, detail: str) -> list[VerifierEffect]:
        """The session ends: every open drafter is told."""
        effects: list[VerifierEffect] = []
        for link in self._open_links():
            effects.append(SendToDrafter(link.name, Close(self._spec.session, link.incarnation, reason, detail)))
            link.close(LinkState.CLOSED)
        return effects

    # --- what happens to drafters -------------------------------------------------------------------------------------------

    def on_joined(self, event: DrafterJoined) -> list[VerifierEffect]:
        """Open the session there, unless it broke the protocol before or drafts are off; as long as the policy has no leave for it, later:
        reading the prompt and telling each other so costs both sides something."""
        if self._spec.max_draft_len == 0 or not self._pacing.drafts:
            return []
        link = self._links.get(event.drafter)
        if link is None:
            if len(self._links) == MAX_DRAFTERS:
                return []
            link = DrafterLink(event.drafter, self._spec.incarnation - 1, takes_turns=event.takes_turns)
            self._links[event.drafter] = link
        if link.is_open or link.state is LinkState.BANNED:
            return []
        if self._untouched is not None:
            self._untouched = _RESTING if all(one.takes_turns for one in self._links.values()) else NO_DRAFTERS
        if self._pacing.draft_ahead(self._view(event.now_us)) <= 0:
            link.close(LinkState.DEFERRED)
            return []
        return self._open(link, event.now_us)

    def on_lost(self, event: DrafterLost) -> list[VerifierEffect]:
        """Forget its guesses; it may join again."""
        link = self._links.get(event.drafter)
        if link is not None and link.state is not LinkState.BANNED:
            self._count_loss(DrafterLossCause.GONE, link.is_open)
            link.close(LinkState.CLOSED)
        return []

    def on_given_up(self, event: DrafterGivenUp) -> list[VerifierEffect]:
        """It is told, and does not join again."""
        link = self._links.get(event.drafter)
        if link is None or link.state is LinkState.BANNED:
            return []
        was_open = link.is_open
        link.close(LinkState.BANNED)
        if not was_open:
            return []
        self._count_loss(DrafterLossCause.ACCEPTANCE)
        return [SendToDrafter(link.name, Close(self._spec.session, link.incarnation, CloseReason.FINISHED, event.reason))]

    def on_frame(self, event: DrafterFrameArrived, *, verifying: bool) -> list[VerifierEffect]:
        """Fence and judge a frame. verifying: a round is in flight."""
        link = self._links.get(event.drafter)
        frame = event.frame
        if link is None or not link.is_open or frame.session != self._spec.session or frame.incarnation < link.incarnation:
            self._statistics.num_tails_stale += 1
            return []
        try:
            if frame.incarnation > link.incarnation:
                raise ProtocolViolation(f"incarnation {frame.incarnation} was never opened; the newest is {link.incarnation}")
            return self._on_fenced_frame(link, frame, event.now_us, verifying=verifying)
        except ProtocolViolation as violation:
            self._statistics.num_violations += 1
            return self._ban(link, str(violation))

    def on_malformed(self, event: DrafterFrameMalformed) -> list[VerifierEffect]:
        """A frame that could not be decoded."""
        link = self._links.get(event.drafter)
        if link is None or not link.is_open or event.incarnation < link.incarnation:
            return []
        self._statistics.num_violations += 1
        return self._ban(link, event.problem)

    def _on_fenced_frame(self, link: DrafterLink, frame: DrafterFrame, now_us: int, *, verifying: bool) -> list[VerifierEffect]:
        match frame:
            case Opened():
                if not 0 <= frame.prefilled_to <= len(self._prefix):
                    raise ProtocolViolation(f"opened with {frame.prefilled_to} tokens read of {len(self._prefix)}")
                link.state = LinkState.LIVE
                return []
            case Tail():
                return self._on_tail(link, frame, now_us, verifying=verifying)
            case Close(reason=CloseReason.PROTOCOL):
                return self._reopen(link, now_us)
            case Close() | Refused():
                self._count_loss(DrafterLossCause.CLOSED, isinstance(frame, Close))  # a refusal was never ours to lose
                link.close(LinkState.CLOSED)
                return []

    def _on_tail(self, link: DrafterLink, tail: Tail, now_us: int, *, verifying: bool) -> list[VerifierEffect]:
        stats = self._statistics
        if tail.rows and not self._spec.with_rows:
            raise ProtocolViolation("draft rows were not asked for")
        link.state = LinkState.LIVE  # a tail answers an Open as well as Opened does, should that be late
        begin_ns = self._stopwatch()
        fate = link.take(tail, self._prefix, self._spec.vocab_size)
        stats.reconcile_ns += self._stopwatch() - begin_ns
        self._count_judged(link)
        if fate in (TailFate.STALE, TailFate.REPEATED):
            stats.num_tails_stale += fate is TailFate.STALE
            stats.num_tails_repeated += fate is TailFate.REPEATED
            return []
        interval = DraftInterval(tail.begin_ns // 1000, tail.end_ns // 1000, tail.draft_us + tail.hedge_us)
        num_levels = link.newest_levels if fate is TailFate.JOINED else 0
        is_anew = tail.first_node == 0
        stats.count_drafting(interval, num_levels, verifying=verifying, hedge_us=tail.hedge_us, first_us=tail.first_us, is_anew=is_anew)
        stats.heard_us = now_us if tail.end is TailEnd.MORE else 0
        if fate is TailFate.JOINED and interval.draft_us:
            stats.count_arrival(now_us - interval.end_us, num_levels, paused=tail.end is TailEnd.CONFIDENCE and num_levels > 0)
        asked_us = link.asked.take(tail.base) if fate is TailFate.JOINED and tail.first_node == 0 else None
        if asked_us is not None and tail.draft_us:
            heard_us = asked_us + (now_us - interval.end_us)  # as long on the way as the tail
            stats.count_answer(now_us - asked_us - tail.draft_us, interval.begin_us - heard_us)
        if fate is TailFate.FOREIGN:
            return self._reopen(link, now_us)
        if fate is TailFate.GAP:
            stats.num_tails_gapped += 1
            return []
        stats.num_tails_joined += 1
        stats.num_guessed += len(tail.tokens)
        if self._spec.with_rows and tail.end is TailEnd.CONFIDENCE:
            link.discard_tree()  # its size depends on the tokens drawn: rejection acceptance would be biased
        return []

    def _open(self, link: DrafterLink, now_us: int) -> list[VerifierEffect]:
        self._untouched = None
        link.reopen(len(self._prefix), self._max_hedge_nodes())
        view = self._view(now_us)
        link.credit = min(len(self._prefix) + max(0, self._pacing.draft_ahead(view)), self._spec.max_len - 1)
        link.leaves.give(link.credit, now_us)
        limits = dataclasses.replace(self._spec.limits, flush_nodes=self._pacing.flush_len(view), hedge_nodes=link.max_hedge_nodes)
        if self._spec.with_rows:  # a tail's size must not depend on the tokens drawn
            limits = dataclasses.replace(limits, stop_below=0.0, svip_threshold=0.0)
        frames = opening_frames(self._spec, limits, self._prefix, link.incarnation, link.credit)
        return [SendToDrafter(link.name, frame) for frame in frames]

    def _max_hedge_nodes(self) -> int:
        """Room for side branches: of chains only (a tree's siblings are hedges already), and not where guesses come with their rows."""
        limits = self._spec.limits
        if not self._pacing.hedges or self._spec.with_rows or limits.tree_width > 1:
            return 0
        return max(0, min(MAX_HEDGE_NODES, MAX_TREE_NODES // 2 - limits.max_nodes))

    def _count_judged(self, link: DrafterLink) -> None:
        """What the truth said of its guesses."""
        if outcomes := link.take_outcomes():
            self._statistics.count_overtaken(outcomes)
        if counts_by_depth := link.depths.take():
            self._statistics.count_depths(counts_by_depth)
        counts = link.take_mismatches()
        if link.hedge_nodes:
            self._statistics.count_hedges(*counts)

    def _count_loss(self, cause: DrafterLossCause, num: int = 1) -> None:
        if num:
            self._statistics.drafter_losses[cause] += num

    def _reopen(self, link: DrafterLink, now_us: int) -> list[VerifierEffect]:
        """Start over at the present prefix; a drafter that needs it too often is not worth it."""
        self._statistics.num_reopens += 1
        link.num_reopens += 1
        if link.num_reopens > MAX_REOPENS:
            return self._ban(link, f"the session was re-opened {MAX_REOPENS} times")
        return self._open(link, now_us)

    def _ban(self, link: DrafterLink, detail: str) -> list[VerifierEffect]:
        self._count_loss(DrafterLossCause.PROTOCOL)
        link.close(LinkState.BANNED)
        return [SendToDrafter(link.name, Close(self._spec.session, link.incarnation, CloseReason.PROTOCOL, detail))]
