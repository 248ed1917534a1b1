"""The verifier's half of one request: what is true, what is guessed, and what each round makes of it.

`step(event) -> list[Effect]`, without I/O, clock or engine; times come with the events. Invariant: drafters and verifier agree on the first
N committed tokens, and only this machine makes N grow while it decodes (docs/architecture.md sections 1 and 3). Frames of drafters are
untrusted: the worst of them costs that drafter its part in this session. Must not know streams, torch or other sessions.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from outrider.errors import ProtocolViolation
from outrider.session.drafter_link import DrafterLink, LinkState, TailFate
from outrider.session.events import (
    CancelRequested,
    DrafterFrameArrived,
    DrafterFrameMalformed,
    DrafterJoined,
    DrafterLost,
    Emit,
    Finish,
    FinishReason,
    Keep,
    RoundPlanned,
    RoundVerified,
    SendToDrafter,
    TokensAppended,
    VerifierEffect,
    VerifierEvent,
    Verify,
)
from outrider.session.merged_tree import merge_trees, placed_rows, tree_depth
from outrider.session.opening import VerifierSpec, opening_frames
from outrider.session.pacing.contract import Pacing, SessionView
from outrider.session.prefix import CommittedPrefix
from outrider.session.statistics import DraftInterval, SessionStatistics
from outrider.types.frames import Close, CloseReason, Commit, DrafterFrame, Opened, Refused, Tail, TailEnd
from outrider.types.tree import DraftRow, DraftTree, TokenOrigin, Verdict

MAX_DRAFTERS = 8
MAX_REOPENS = 4
DEADLINE_FACTOR = 4.0
DEADLINE_FLOOR_US = 50_000
DEADLINE_CEILING_US = 2_000_000
UNMEASURED_DEADLINE_US = 250_000


@dataclass(frozen=True, slots=True)
class _Round:
    """The round in flight: committed tokens fed, the tree, whether it picks, and when it began."""

    num_fed: int
    tree: DraftTree
    wanted: bool
    begin_us: int


class VerifierSession:
    """State machine of one session; see the module's docstring. `statistics` may be read at any time."""

    def __init__(self, spec: VerifierSpec, pacing: Pacing, now_us: int) -> None:
        self.spec = spec
        self.statistics = SessionStatistics()
        self.prefix = CommittedPrefix(spec.prefix)
        self.cached_len = 0
        self.finished: Finish | None = None
        self._pacing = pacing
        self._links: dict[str, DrafterLink] = {}
        self._round: _Round | None = None
        self._ready_since_us = now_us
        self._deadline_us = now_us + UNMEASURED_DEADLINE_US

    # --- what others may ask ----------------------------------------------------------------------------------------------

    @property
    def committed_len(self) -> int:
        """Tokens of the truth."""
        return len(self.prefix)

    @property
    def is_ready(self) -> bool:
        """Whether a round may be planned: alive and none in flight."""
        return self.finished is None and self._round is None

    @property
    def num_open_drafters(self) -> int:
        """Drafter sessions that hold something for this session."""
        return sum(link.is_open for link in self._links.values())

    def view(self, now_us: int) -> SessionView:
        """What pacing may know at this instant; now_us bounds nothing here but keeps a future deadline honest."""
        worthy = [link for link in self._links.values() if link.is_worth_waiting]
        guessing = self._guessing()
        stats = self.statistics
        return SessionView(
            session=self.spec.session,
            committed_len=self.committed_len,
            num_uncached=self.committed_len - self.cached_len,
            num_nodes=sum(link.num_live for link in guessing),
            depth=max((link.depth for link in guessing), default=0),
            tail_ended=not any(link.is_pending(self.prefix) for link in worthy),
            has_drafter=bool(worthy),
            following=any(link.is_following(self.prefix) for link in worthy),
            waiting_since_us=min(self._ready_since_us, now_us),
            draft_deadline_us=self._deadline_us,
            max_draft_len=self.spec.max_draft_len,
            remaining=self.spec.max_len - self.committed_len,
            draft_us_per_token=stats.draft_us_per_token,
            acceptance=stats.acceptance,
        )

    # --- events -----------------------------------------------------------------------------------------------------------

    def step(self, event: VerifierEvent) -> list[VerifierEffect]:
        """Apply one event; after the end nothing has an effect."""
        if self.finished is not None:
            return []
        match event:
            case DrafterFrameArrived():
                return self._on_frame(event)
            case DrafterFrameMalformed():
                return self._on_malformed(event)
            case RoundPlanned():
                return self._on_planned(event)
            case RoundVerified():
                return self._on_verified(event)
            case DrafterJoined():
                return self._on_joined(event)
            case DrafterLost():
                return self._on_lost(event)
            case TokensAppended():
                return self._on_appended(event)
            case CancelRequested():
                return self._finish(Finish(FinishReason.CANCELLED, event.detail), CloseReason.CANCELLED)

    def _on_joined(self, event: DrafterJoined) -> list[VerifierEffect]:
        if self.spec.max_draft_len == 0 or not self._pacing.drafts:
            return []
        link = self._links.get(event.drafter)
        if link is None:
            if len(self._links) == MAX_DRAFTERS:
                return []
            link = self._links[event.drafter] = DrafterLink(event.drafter, self.spec.incarnation - 1)
        if link.is_open or link.state is LinkState.BANNED:
            return []
        return self._open(link, event.now_us)

    def _on_lost(self, event: DrafterLost) -> list[VerifierEffect]:
        link = self._links.get(event.drafter)
        if link is not None and link.is_open:
            link.close(LinkState.CLOSED)
            self.statistics.num_drafter_losses += 1
        return []

    def _on_frame(self, event: DrafterFrameArrived) -> list[VerifierEffect]:
        link = self._links.get(event.drafter)
        frame = event.frame
        if link is None or not link.is_open or frame.session != self.spec.session or frame.incarnation < link.incarnation:
            self.statistics.num_tails_stale += 1
            return []
        try:
            if frame.incarnation > link.incarnation:
                raise ProtocolViolation(f"incarnation {frame.incarnation} was never opened; the newest is {link.incarnation}")
            return self._on_fenced_frame(link, frame, event.now_us)
        except ProtocolViolation as violation:
            self.statistics.num_violations += 1
            return self._ban(link, str(violation))

    def _on_malformed(self, event: DrafterFrameMalformed) -> list[VerifierEffect]:
        link = self._links.get(event.drafter)
        if link is None or not link.is_open or event.incarnation < link.incarnation:
            return []
        self.statistics.num_violations += 1
        return self._ban(link, event.problem)

    def _on_fenced_frame(self, link: DrafterLink, frame: DrafterFrame, now_us: int) -> list[VerifierEffect]:
        match frame:
            case Opened():
                if not 0 <= frame.prefilled_to <= self.committed_len:
                    raise ProtocolViolation(f"opened with {frame.prefilled_to} tokens read of {self.committed_len}")
                link.state = LinkState.LIVE
                return []
            case Tail():
                return self._on_tail(link, frame, now_us)
            case Close(reason=CloseReason.PROTOCOL):
                return self._reopen(link, now_us)
            case Close() | Refused():
                link.close(LinkState.CLOSED)
                return []

    def _on_tail(self, link: DrafterLink, tail: Tail, now_us: int) -> list[VerifierEffect]:
        stats = self.statistics
        if tail.rows and not self.spec.with_rows:
            raise ProtocolViolation("draft rows were not asked for")
        link.state = LinkState.LIVE  # a tail answers an Open as well as Opened does, should that be late
        fate = link.take(tail, self.prefix, self.spec.vocab_size)
        if fate in (TailFate.STALE, TailFate.REPEATED):
            stats.num_tails_stale += fate is TailFate.STALE
            stats.num_tails_repeated += fate is TailFate.REPEATED
            return []
        interval = DraftInterval(tail.begin_ns // 1000, tail.end_ns // 1000, tail.draft_us)
        stats.count_drafting(interval, len(tail.tokens), verifying=self._round is not None)
        if fate is TailFate.FOREIGN:
            return self._reopen(link, now_us)
        if fate is TailFate.GAP:
            stats.num_tails_gapped += 1
            return []
        stats.num_tails_joined += 1
        if self.spec.with_rows and tail.end is TailEnd.CONFIDENCE:
            link.discard_tree()  # its size depends on the tokens drawn: rejection acceptance would be biased
        return []

    def _on_planned(self, event: RoundPlanned) -> list[VerifierEffect]:
        assert self._round is None, "a round is in flight"
        num_uncached = self.committed_len - self.cached_len
        num_fed = min(max(1, event.max_feed), num_uncached)
        wanted = num_fed == num_uncached
        tree, rows = self._tree_to_verify(event.max_nodes) if wanted else (DraftTree.empty(), ())
        if wanted:
            self._count_wait(event.now_us)
        self._round = _Round(num_fed, tree, wanted, event.now_us)
        return [Verify(self.prefix.slice(self.cached_len, self.cached_len + num_fed), tree, wanted, rows)]

    def _count_wait(self, now_us: int) -> None:
        self.statistics.draft_wait_us += max(0, now_us - self._ready_since_us)
        if now_us >= self._deadline_us:
            for link in self._links.values():
                if link.miss_deadline(self.prefix):
                    self.statistics.num_missed_deadlines += 1
                    self.statistics.num_drafter_losses += link.is_stalled  # given up until it answers again

    def _on_verified(self, event: RoundVerified) -> list[VerifierEffect]:
        verified = self._round
        assert verified is not None, "no round is in flight"
        self._round = None
        self.statistics.count_verifying(verified.begin_us, event.now_us)
        self.cached_len += verified.num_fed
        if not verified.wanted:
            self._ready_since_us = event.now_us
            return []
        verdict = event.verdict
        assert verdict is not None, "the round picked"
        tokens = [int(verified.tree.tokens[node]) for node in verdict.path] + [int(verdict.emitted)]
        num_kept = self._num_within_answer(tokens)
        tokens = tokens[:num_kept]
        path = verdict.path[: num_kept - 1]  # all but the newest committed token stay cached
        self.cached_len += len(path)
        origins = self._origins(verdict, num_kept)
        num_accepted = origins.count(TokenOrigin.ACCEPTED)
        depth = tree_depth(verified.tree)
        corrected = not verdict.bonus and num_kept > len(verdict.path)
        self.statistics.count_round(verified.tree.num_nodes, depth, num_accepted, num_kept, corrected=corrected)
        effects: list[VerifierEffect] = [Keep(path)] if verified.tree.num_nodes else []
        effects.append(Emit(tuple(tokens), origins))
        return effects + self._commit(tokens, num_accepted, event.verify_us, event.now_us)

    def _on_appended(self, event: TokensAppended) -> list[VerifierEffect]:
        tokens = [int(token) for token in event.tokens]
        if self._round is not None or self._num_within_answer(tokens) < len(tokens):
            return self._finish(Finish(FinishReason.FAILED, "appended tokens do not fit here"), CloseReason.FAILED)
        return self._commit(tokens, 0, 0, event.now_us) if tokens else []

    # --- the truth grows --------------------------------------------------------------------------------------------------

    def _num_within_answer(self, tokens: list[int]) -> int:
        """How many of the tokens belong to the answer: up to a stop token, at most what remains."""
        tokens = tokens[: self.spec.max_len - self.committed_len]
        for at, token in enumerate(tokens):
            if token in self.spec.stop_token_ids:
                return at + 1
        return len(tokens)

    def _origins(self, verdict: Verdict, num_kept: int) -> tuple[TokenOrigin, ...]:
        last = TokenOrigin.BONUS if verdict.bonus else TokenOrigin.CORRECTED
        return (*[TokenOrigin.ACCEPTED] * len(verdict.path), last)[:num_kept]

    def _commit(self, tokens: list[int], num_accepted: int, verify_us: int, now_us: int) -> list[VerifierEffect]:
        """Extend the truth, tell every drafter, or end the answer."""
        begin = self.committed_len
        self.prefix.append(tokens)
        self._ready_since_us = now_us
        if tokens[-1] in self.spec.stop_token_ids:
            return self._finish(Finish(FinishReason.STOP), CloseReason.FINISHED)
        if self.committed_len == self.spec.max_len:
            return self._finish(Finish(FinishReason.LENGTH), CloseReason.FINISHED)
        links = self._open_links()
        if not links:
            return []
        for link in links:
            link.observe_commit(self.prefix)
        until = self._grant_credit(now_us)
        committed = self.prefix.slice(begin, self.committed_len)
        effects: list[VerifierEffect] = []
        for link in links:
            link.credit = max(link.credit, until)
            frame = Commit(self.spec.session, link.incarnation, begin, committed, self.prefix.hash, num_accepted, verify_us, link.credit)
            effects.append(SendToDrafter(link.name, frame))
        return effects

    def _grant_credit(self, now_us: int) -> int:
        """draft_until for this commit, and the deadline that follows from it."""
        view = self.view(now_us)
        # The last position of an answer is the target's own: a guess there could save nothing.
        until = min(self.committed_len + max(0, self._pacing.draft_ahead(view)), self.spec.max_len - 1)
        expected = DEADLINE_FACTOR * view.draft_us_per_token * max(1, until - self.committed_len - view.depth)
        wait_us = round(min(DEADLINE_CEILING_US, max(DEADLINE_FLOOR_US, expected))) if expected else UNMEASURED_DEADLINE_US
        self._deadline_us = now_us + wait_us
        return until

    def fail(self, detail: str) -> list[VerifierEffect]:
        """End the session because of an error on this side."""
        return [] if self.finished else self._finish(Finish(FinishReason.FAILED, detail), CloseReason.FAILED)

    def _finish(self, finish: Finish, reason: CloseReason) -> list[VerifierEffect]:
        """End the session: every open drafter is told, nothing is kept."""
        self.finished = finish
        self._round = None
        effects: list[VerifierEffect] = []
        for link in self._open_links():
            effects.append(SendToDrafter(link.name, Close(self.spec.session, link.incarnation, reason, finish.detail)))
            link.close(LinkState.CLOSED)
        return [*effects, finish]

    # --- drafters ---------------------------------------------------------------------------------------------------------

    def _open_links(self) -> list[DrafterLink]:
        return [link for link in self._links.values() if link.is_open]

    def _guessing(self) -> list[DrafterLink]:
        """Links whose tree stands at the truth and reaches beyond it; with rows only the first (merged draws would bias rejection)."""
        guessing = [link for link in self._links.values() if link.num_live]
        return guessing[:1] if self.spec.with_rows else guessing

    def _tree_to_verify(self, max_nodes: int) -> tuple[DraftTree, tuple[DraftRow, ...]]:
        guessing = self._guessing()
        max_depth = min(self.spec.max_draft_len, self.spec.max_len - self.committed_len - 1)
        max_nodes = min(max_nodes, self.spec.max_nodes)
        trees = [link.tree for link in guessing if link.tree is not None]
        tree, places = merge_trees(trees, max_nodes, max_depth, self.spec.stop_token_ids)
        rows = placed_rows(guessing[0].rows, places, tree) if guessing and self.spec.with_rows else ()
        return tree, rows

    def _open(self, link: DrafterLink, now_us: int) -> list[VerifierEffect]:
        link.reopen(self.committed_len)
        view = self.view(now_us)
        link.credit = min(self.committed_len + max(0, self._pacing.draft_ahead(view)), self.spec.max_len - 1)
        limits = dataclasses.replace(self.spec.limits, flush_nodes=self._pacing.flush_len(view))
        if self.spec.with_rows:  # a tail's size must not depend on the tokens drawn
            limits = dataclasses.replace(limits, stop_below=0.0, svip_threshold=0.0)
        frames = opening_frames(self.spec, limits, self.prefix, link.incarnation, link.credit)
        return [SendToDrafter(link.name, frame) for frame in frames]

    def _reopen(self, link: DrafterLink, now_us: int) -> list[VerifierEffect]:
        """Start over at the present prefix; a drafter that needs it too often is not worth it."""
        self.statistics.num_reopens += 1
        link.num_reopens += 1
        if link.num_reopens > MAX_REOPENS:
            return self._ban(link, f"the session was re-opened {MAX_REOPENS} times")
        return self._open(link, now_us)

    def _ban(self, link: DrafterLink, detail: str) -> list[VerifierEffect]:
        link.close(LinkState.BANNED)
        return [SendToDrafter(link.name, Close(self.spec.session, link.incarnation, CloseReason.PROTOCOL, detail))]
