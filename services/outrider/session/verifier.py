"""The verifier's half of one request: what is true, what is guessed, and what each round makes of it.

`step(event) -> list[Effect]`, without I/O, clock or engine; times come with the events, and what a step itself takes is read from a
stopwatch that is handed in, for the statistics alone. Invariant: drafters and verifier agree on the first
N committed tokens, and only this machine makes N grow while it decodes (docs/architecture.md sections 1 and 3). Frames of drafters are
untrusted: the worst of them costs that drafter its part in this session. Must not know streams, torch or other sessions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from outrider.session.depth_record import DepthRecord
from outrider.session.drafter_tally import DrafterTally
from outrider.session.events import (
    CancelRequested,
    DrafterFrameArrived,
    DrafterFrameMalformed,
    DrafterGivenUp,
    DrafterJoined,
    DrafterLost,
    Emit,
    Finish,
    FinishReason,
    Keep,
    RoundPlanned,
    RoundVerified,
    TokensAppended,
    VerifierEffect,
    VerifierEvent,
    Verify,
)
from outrider.session.lookup_guesses import LookupGuesses
from outrider.session.merged_tree import NO_GUESSES, MergedTree
from outrider.session.opening import VerifierSpec
from outrider.session.pacing.contract import Pacing, SessionView
from outrider.session.prefix import CommittedPrefix
from outrider.session.session_drafters import DraftLeave, SessionDrafters
from outrider.session.shared_lookup import NO_TEXTS, SharedTexts
from outrider.session.statistics import NS_PER_US, SessionStatistics
from outrider.session.stopwatch import Stopwatch, stopped
from outrider.session.text_watch import TextWatch, repeats_itself
from outrider.types.frames import CloseReason
from outrider.types.tree import DraftRow, DraftTree, TokenOrigin, Verdict
from outrider.types.value import quickly_made

DEADLINE_FACTOR = 4.0
LINK_FACTOR = 2.0
MAX_LINK_US = 100_000  # one way, as far as a deadline allows for it: what a stopped drafter sends later seems to come from afar
DEADLINE_FLOOR_US = 50_000
DEADLINE_CEILING_US = 2_000_000
UNMEASURED_DEADLINE_US = 250_000
# Commits of plain rounds while every drafter rests: after so many in a row, leave is thought about again at every LEAVE_EVERY-th only, and
# then where the policy does not let the session rest. Building a view, asking the policy and walking the links cost such a round a tenth of
# a step of a small target.
REST_AFTER, LEAVE_EVERY = 1, 4


@quickly_made
@dataclass(frozen=True, slots=True)
class _Round:
    """The round in flight: committed tokens fed, the guesses, whether it picks, how long it waited for drafts and when it began.

    overdue: it began past the deadline, so that the wait tells how long the deadline was and nothing else. looked_up: its guesses are from
    the text itself, so that it tells nothing of drafters.
    """

    num_fed: int
    guesses: MergedTree
    wanted: bool
    wait_us: int
    begin_us: int
    overdue: bool
    looked_up: bool

    @property
    def tree(self) -> DraftTree:
        """What is verified."""
        return self.guesses.tree


class VerifierSession:
    """State machine of one session; see the module's docstring. `statistics` may be read at any time. texts: other answers, for guesses.
    stopwatch: in nanoseconds; without one no time is counted."""

    def __init__(
        self, spec: VerifierSpec, pacing: Pacing, now_us: int, texts: SharedTexts = NO_TEXTS, stopwatch: Stopwatch = stopped
    ) -> None:
        self.spec = spec
        known = spec.draft_priors
        self.statistics = SessionStatistics(
            acceptance=known.acceptance,
            prior_tests=known.alike.prior_tests,
            continue_prob=known.continue_prob,
            draft_start_us=known.draft_start_us,
            by_depth=DepthRecord(known.depths, known.acceptance),
        )
        self.prefix = CommittedPrefix(spec.prefix)
        self.cached_len = 0
        self.found_len = 0
        self.finished: Finish | None = None
        self._pacing = pacing
        self._stopwatch = stopwatch
        self._looks_up = spec.lookup and pacing.looks_up and spec.max_draft_len > 0 and not spec.with_rows
        # What other answers say may have to be fetched, while the prompt is read; to take up the prompt itself would hold its reading up.
        self._lookup = LookupGuesses(spec, texts) if self._looks_up and texts is not NO_TEXTS else None
        self._watch: TextWatch | None = None  # of a text that is not taken up
        self._drafters = SessionDrafters(spec, self.prefix, pacing, self.statistics, self.view, stopwatch)
        self._round: _Round | None = None
        self._ready_since_us = now_us
        self._deadline_us = now_us + UNMEASURED_DEADLINE_US
        self._num_rested = 0  # plain commits in a row without leave for any drafter

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
    def grows_quietly(self) -> bool:
        """Whether its newest commits brought tokens and nothing else, no drafter may guess, and nothing came since: a plan for it still
        holds, but for guesses from texts."""
        return self._num_rested > REST_AFTER and self.is_ready

    @property
    def lookup_promise(self) -> float:
        """Tokens that the guesses at hand from texts are expected to add to a round."""
        return 0.0 if self._lookup is None else self._lookup.promise

    @property
    def num_open_drafters(self) -> int:
        """Drafter sessions that hold something for this session."""
        return self._drafters.num_open

    @property
    def may_draft(self) -> bool:
        """Whether its policy and its request have any use for drafters."""
        return self._pacing.drafts and self.spec.max_draft_len > 0

    def drafter_tallies(self) -> dict[str, DrafterTally]:
        """What each of its drafters did so far."""
        return self._drafters.tallies()

    def is_drafted_for_by(self, drafters: Collection[str]) -> bool:
        """Whether one of these may be at work for it now, but for reading the prompt while the target does."""
        return self.finished is None and not self.is_reading and self._drafters.at_work(drafters)

    @property
    def lookup_rights(self) -> tuple[float, ...]:
        """Chance of each guess at hand from the text itself, or from other answers; () without any, and while the prompt is read."""
        if len(self.prefix) - self.cached_len > 1:
            return ()
        if self._lookup is None and self._looks_up and self._watch is None:
            self._take_up(())
        return () if self._lookup is None else self._lookup.rights

    def _take_up(self, tokens: Sequence[int]) -> None:
        """The text, and that it grew by these; only watch it where its policy says that it does not pay, until it repeats itself."""
        begin_ns = self._stopwatch()
        if self._lookup is not None:
            self._lookup.observe_commit(tokens)
        elif self._is_worth_taking_up():
            self._lookup = LookupGuesses(self.spec)
            self._lookup.observe_commit(self.prefix.tokens_from(self.prefix.start))
        if self._lookup is not None:
            self.statistics.lookup_ns += self._stopwatch() - begin_ns

    def _is_worth_taking_up(self) -> bool:
        if self._watch is not None:
            return self._watch.is_due(len(self.prefix)) and repeats_itself(self.prefix.tokens_from(0))
        if self._pacing.takes_up_text(self.spec.kind, self.spec.shorter_kind):
            return True
        self._watch = TextWatch(len(self.prefix))
        return False

    def lookup_priors(self, known: tuple[float, ...]) -> tuple[float, ...]:
        """What to expect of guesses from the next session's text, given what was known before this one."""
        return known if self._lookup is None else self._lookup.odds.remembered(known)

    def shared_priors(self, known: tuple[float, ...]) -> tuple[float, ...]:
        """The same of guesses from other answers."""
        return known if self._lookup is None else self._lookup.shared_odds.remembered(known)

    @property
    def num_shared(self) -> tuple[int, int]:
        """Guesses from other answers that were verified, and those accepted."""
        return (0, 0) if self._lookup is None else (self._lookup.num_shared, self._lookup.num_shared_accepted)

    def view(self, now_us: int) -> SessionView:
        """What pacing may know at this instant; now_us bounds nothing here but keeps a future deadline honest."""
        drafters, spec, stats, committed_len = self._drafters.view(), self.spec, self.statistics, len(self.prefix)
        return SessionView(
            session=spec.session,
            committed_len=committed_len,
            num_uncached=committed_len - self.cached_len,
            num_nodes=drafters.num_nodes,
            depth=drafters.depth,
            tail_ended=drafters.tail_ended,
            has_drafter=drafters.has_drafter,
            following=drafters.following,
            waiting_since_us=min(self._ready_since_us, now_us),
            draft_deadline_us=self._deadline_us,
            max_draft_len=spec.max_draft_len,
            remaining=spec.max_len - committed_len,
            expected_left=spec.answer_ends.expected_left(committed_len - spec.num_prompt, spec.max_len - committed_len),
            draft_us_per_token=stats.draft_us_per_token,
            draft_start_us=stats.draft_start_us,
            draft_alone_us=stats.draft_alone_us,
            heard_us=stats.heard_us,
            acceptance=stats.acceptance,
            overhead_us=stats.overhead_us,
            num_tested=stats.num_tested,
            is_flawless=stats.is_flawless,
            continue_prob=stats.continue_prob,
            link_us=stats.link_us,
            step_overhead_us=stats.step_overhead_us,
            is_drafting=drafters.is_drafting,
            takes_turns=drafters.takes_turns,
            renewed_us=drafters.renewed[0],
            renewed_len=drafters.renewed[1],
            holds_reading=stats.holds_reading,
            tells_start=stats.tells_start,
            side_depths=drafters.side_depths,
            lookup_rights=self.lookup_rights,
            lookup_us=stats.lookup_ns / NS_PER_US,
            num_hedge_tests=stats.num_hedge_tests,
            hedge_hit_share=stats.hedge_hit_share,
            hope=spec.draft_priors.hope,
            kind=spec.kind,
            shorter_kind=spec.shorter_kind,
            depth_offsets=stats.by_depth.offsets_from(stats.acceptance),
        )

    @property
    def is_reading(self) -> bool:
        """Whether the target has not read the prefix to its end."""
        return self.cached_len < self.prefix.start

    def skip(self, found_len: int) -> None:
        """The engine holds the KV of the first found_len committed tokens already: reading begins behind them. Before any round."""
        assert self._round is None, "a round is in flight"
        assert self.cached_len == self.found_len <= found_len < self.committed_len
        self.cached_len = self.found_len = found_len
        if self.committed_len == self.prefix.start:  # else it is read for the second time
            self.statistics.num_cached_prompt = min(found_len, self.spec.num_prompt)

    def forget(self) -> None:
        """The engine holds nothing of the session any more: all of its text is read anew, once it may `skip` what is there."""
        assert self._round is None, "a round is in flight"
        self.cached_len = self.found_len = 0
        self._num_rested = 0

    def resume(self, now_us: int) -> None:
        """The service had left the session out of its steps (a slow reader): only from now on does it wait for drafts, if it does."""
        self._deadline_us += max(0, now_us - self._ready_since_us)
        self._ready_since_us = now_us

    # --- events -----------------------------------------------------------------------------------------------------------

    def step(self, event: VerifierEvent) -> list[VerifierEffect]:
        """Apply one event; after the end nothing has an effect."""
        if self.finished is not None:
            return []
        begin_ns = self._stopwatch()
        effects = self._apply(event)
        self.statistics.step_ns += self._stopwatch() - begin_ns
        return effects

    def _apply(self, event: VerifierEvent) -> list[VerifierEffect]:
        match event:
            case RoundVerified():
                return self._on_verified(event)
            case RoundPlanned():
                return self._on_planned(event)
            case DrafterFrameArrived():
                self._num_rested = 0
                return self._drafters.on_frame(event, verifying=self._round is not None)
            case DrafterFrameMalformed():
                return self._drafters.on_malformed(event)
            case DrafterJoined():
                self._num_rested = 0
                return self._drafters.on_joined(event)
            case DrafterLost():
                return self._drafters.on_lost(event)
            case DrafterGivenUp():
                return self._drafters.on_given_up(event)
            case TokensAppended():
                return self._on_appended(event)
            case CancelRequested():
                return self._finish(Finish(FinishReason.CANCELLED, event.detail), CloseReason.CANCELLED)

    def _on_planned(self, event: RoundPlanned) -> list[VerifierEffect]:
        assert self._round is None, "a round is in flight"
        num_uncached = len(self.prefix) - self.cached_len
        num_fed = min(max(1, event.max_feed), num_uncached)
        wanted = num_fed == num_uncached
        looked_up = event.from_lookup and wanted
        guesses, rows = self._guesses(event, looked_up=looked_up) if wanted else (NO_GUESSES, ())
        if wanted and not looked_up:
            self._count_wait(event.now_us)
        wait_us, overdue = max(0, event.now_us - self._ready_since_us), event.now_us >= self._deadline_us
        self._round = _Round(num_fed, guesses, wanted, wait_us, event.now_us, overdue, looked_up)
        return [Verify(self.prefix.slice(self.cached_len, self.cached_len + num_fed), guesses.tree, wanted, rows)]

    def _guesses(self, planned: RoundPlanned, *, looked_up: bool) -> tuple[MergedTree, tuple[DraftRow, ...]]:
        if not looked_up:
            return self._drafters.tree_to_verify(planned.max_nodes, planned.side_nodes)
        return MergedTree.of_chain(self._lookup.chain(planned.max_nodes) if self._lookup is not None else DraftTree.empty(), {}), ()

    def _count_wait(self, now_us: int) -> None:
        if self._drafters.any_worth_waiting:  # else it waited for its turn
            self.statistics.draft_wait_us += max(0, now_us - self._ready_since_us)
        if now_us >= self._deadline_us:
            self._drafters.miss_deadline()

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
        guessed = verified.tree.tokens.tolist()
        tokens = [guessed[node] for node in verdict.path] + [int(verdict.emitted)]
        num_kept = self._num_within_answer(tokens)
        tokens = tokens[:num_kept]
        path = verdict.path[: num_kept - 1]  # all but the newest committed token stay cached
        self.cached_len += len(path)
        accepted = verdict.path[:num_kept]
        corrected = not verdict.bonus and num_kept > len(accepted)
        self._count_verified(verified, event, accepted, num_kept, corrected=corrected)
        effects: list[VerifierEffect] = [Keep(path)] if guessed else []
        effects.append(Emit(tuple(tokens), _origins(verdict, num_kept)))
        num_judged = 0 if verified.looked_up else len(accepted) + corrected
        return effects + self._commit(tokens, len(accepted), event.verify_us, event.now_us, num_judged)

    def _count_verified(self, verified: _Round, event: RoundVerified, accepted: tuple[int, ...], num_kept: int, *, corrected: bool) -> None:
        """accepted: of the verified nodes, those that belong to the answer. num_kept: tokens of it in all."""
        guesses, span_us, num_accepted = verified.guesses, event.now_us - verified.begin_us, len(accepted)
        num_nodes = guesses.tree.num_nodes
        if verified.looked_up and self._lookup is not None:
            self._lookup.count_verified(num_nodes, num_accepted)
        self.statistics.count_step(span_us, event.verify_us)
        if not num_nodes and not corrected:
            self.statistics.count_plain_round(num_kept)
            return
        if num_nodes and not verified.overdue and not verified.looked_up:
            self.statistics.count_overhead(verified.wait_us, span_us, event.verify_us)
        counts, side_at = (num_nodes, guesses.depth, num_accepted, num_kept), guesses.side_at(accepted)
        self.statistics.count_round(*counts, corrected=corrected, looked_up=verified.looked_up, side_at=side_at)

    def _on_appended(self, event: TokensAppended) -> list[VerifierEffect]:
        tokens = [int(token) for token in event.tokens]
        if self._round is not None or self._num_within_answer(tokens) < len(tokens):
            return self._finish(Finish(FinishReason.FAILED, "appended tokens do not fit here"), CloseReason.FAILED)
        return self._commit(tokens, 0, 0, event.now_us) if tokens else []

    # --- the truth grows --------------------------------------------------------------------------------------------------

    def _num_within_answer(self, tokens: list[int]) -> int:
        """How many of the tokens belong to the answer: up to a stop token, at most what remains."""
        num_left, stop_ids = self.spec.max_len - self.committed_len, self.spec.stop_token_ids
        if not stop_ids.isdisjoint(tokens):
            for at, token in enumerate(tokens[:num_left]):
                if token in stop_ids:
                    return at + 1
        return min(len(tokens), num_left)

    def _commit(self, tokens: list[int], num_accepted: int, verify_us: int, now_us: int, num_judged: int = 0) -> list[VerifierEffect]:
        """Extend the truth, tell every drafter, or end the answer. num_judged: of the tokens, those a round judged drafts for."""
        judged_len = self.committed_len + num_judged if num_judged else 0
        self.prefix.append(tokens)
        if self._looks_up:
            self._take_up(tokens)
        committed_len = len(self.prefix)
        self.statistics.count_commit()
        self._ready_since_us = now_us
        if tokens[-1] in self.spec.stop_token_ids:
            return self._finish(Finish(FinishReason.STOP), CloseReason.FINISHED)
        if committed_len == self.spec.max_len:
            return self._finish(Finish(FinishReason.LENGTH), CloseReason.FINISHED)
        if self._lets_rest() or not self._drafters.observe_commit(judged_len):
            return []
        view = self.view(now_us)
        leave = DraftLeave(self._grant_credit(view, now_us), self._pacing.hedge_nodes(view), self._pacing.flush_len(view))
        effects = self._drafters.commit_frames(num_accepted, verify_us, leave, now_us)
        return effects + self._drafters.open_deferred(now_us) if leave.draft_until > committed_len else effects

    def _lets_rest(self) -> bool:
        """Whether this commit may pass unnoticed by drafters: they observe it with the next one. It judged no guess of theirs, which
        would stand until they have observed it."""
        self._num_rested = self._num_rested + 1 if self._drafters.are_at_rest else 0
        if self._num_rested <= REST_AFTER:
            return False
        return self._num_rested % LEAVE_EVERY > 0 or self._pacing.lets_rest(self.spec.session, len(self.prefix))

    def _grant_credit(self, view: SessionView, now_us: int) -> int:
        """draft_until for this commit, and the deadline that follows from it."""
        # The last position of an answer is the target's own: a guess there could save nothing.
        until = min(view.committed_len + max(0, self._pacing.draft_ahead(view)), self.spec.max_len - 1)
        drafting_us = view.draft_start_us + view.draft_us_per_token * max(1, until - view.committed_len - view.depth)
        there_and_back_us = 2.0 * min(view.link_us, MAX_LINK_US)
        expected = DEADLINE_FACTOR * drafting_us + LINK_FACTOR * there_and_back_us if drafting_us else 0.0
        wait_us = round(min(DEADLINE_CEILING_US, max(DEADLINE_FLOOR_US, expected))) if expected else UNMEASURED_DEADLINE_US
        self._deadline_us = now_us + wait_us
        if until > view.committed_len:
            self._num_rested = 0
        return until

    def fail(self, detail: str) -> list[VerifierEffect]:
        """End the session because of an error on this side."""
        return [] if self.finished else self._finish(Finish(FinishReason.FAILED, detail), CloseReason.FAILED)

    def _finish(self, finish: Finish, reason: CloseReason) -> list[VerifierEffect]:
        """End the session: every open drafter is told, nothing is kept."""
        self.finished = finish
        self._round = None
        return [*self._drafters.close_all(reason, finish.detail), finish]


def _origins(verdict: Verdict, num_kept: int) -> tuple[TokenOrigin, ...]:
    """Of the tokens that belong to the answer."""
    last = TokenOrigin.BONUS if verdict.bonus else TokenOrigin.CORRECTED
    return (*[TokenOrigin.ACCEPTED] * len(verdict.path), last)[:num_kept]
