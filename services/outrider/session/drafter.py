"""The drafter's half of the draft protocol (docs/architecture.md section 3) as a pure state machine: events in, effects out.

Knows the committed text, its own guess tree and how far it may draft. Must not know models, threads, streams or clocks (times are
handed in). Caller's contract: apply effects in order. The first `Observe` after an `Open` begins the session in the source (its tokens
are the whole prefix, its tree is tree 0); `ReleaseSession` ends it there. A restart under a newer incarnation is a release followed by
a new begin. After every commit that moves the truth, a Tail says sooner or later that the drafter paused (its end is not MORE), unless
it stands where it last said so. Side branches (hedges) come in tails of their own, after what the chain has guessed: they end as it did.
"""

from __future__ import annotations

import numpy as np

from outrider.errors import ProtocolViolation
from outrider.session.drafter_admission import DrafterBounds, refusal
from outrider.session.drafter_tail import TailBuffer
from outrider.session.drafter_text import CommittedText
from outrider.session.events import (
    DrafterEffect,
    DrafterEvent,
    Drained,
    Grown,
    Observe,
    ReleaseSession,
    SendToVerifier,
    SourceFailed,
    VerifierFrameArrived,
)
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import Close, CloseReason, Commit, Feedback, Open, Opened, Refused, Tail, TailEnd
from outrider.types.tree import MAX_TREE_NODES

_PAUSED_UNTIL_REACHED = frozenset({TailEnd.CONFIDENCE, TailEnd.EOS})


class DrafterSession:
    """One session of one verifier. `step` is total: whatever arrives, the answer is a list of effects.

    opening: the Open frame in force, None before the first and after the end. ended: nothing more will come of this session.
    """

    def __init__(self, session: int, bounds: DrafterBounds) -> None:
        self.session = session
        self.opening: Open | None = None
        self.ended = False
        self._bounds = bounds
        self._text = CommittedText(bounds.vocab_size, 0)
        self._tree = GuessTree(0, 0)
        self._unsent = TailBuffer()
        self._said = TailEnd.MORE
        self._begun = False
        self._is_opened = False
        self._armed = False
        self._paused = False  # the chain, and the verifier knows
        self._credit = 0
        self._hedge_nodes = 0
        self._flush_nodes = 0

    @property
    def tree(self) -> GuessTree:
        """The guess tree as it stands; not to be changed by the caller."""
        return self._tree

    @property
    def committed(self) -> list[int]:
        """The committed tokens; not to be changed by the caller."""
        return self._text.tokens

    def wants(self) -> int | None:
        """The absolute position (exclusive) up to which the source should draft now, None when it should not."""
        return self._reach() if self._armed else None

    @property
    def hedge_nodes(self) -> int:
        """Live nodes of side branches that the source may hold now."""
        return self._hedge_nodes

    @property
    def flush_nodes(self) -> int:
        """New nodes after which a tail is sent although the source goes on, less those that wait to be sent; 0: only when it pauses."""
        return max(1, self._flush_nodes - len(self._unsent.tokens)) if self._flush_nodes else 0

    def step(self, event: DrafterEvent) -> list[DrafterEffect]:
        """Take one event; an illegal one ends this session only."""
        if self.ended:
            return []
        try:
            match event:
                case Grown():
                    return self._on_grown(event)
                case VerifierFrameArrived(frame=Open() as frame):
                    return self._on_open(frame)
                case VerifierFrameArrived(frame=frame):
                    return self._on_frame(frame)
                case SourceFailed(reason=reason):
                    return self._on_source_failed(reason)
                case Drained():
                    return self._close(CloseReason.DRAINING, "the drafter is shutting down")
        except ProtocolViolation as error:
            return self._close(CloseReason.PROTOCOL, str(error))

    # --- frames ---------------------------------------------------------------------------------------------------------

    def _on_open(self, frame: Open) -> list[DrafterEffect]:
        if self.opening is not None and frame.incarnation <= self.opening.incarnation:
            return []
        effects: list[DrafterEffect] = [ReleaseSession(CloseReason.FINISHED)] if self._begun else []
        self._begun = self._is_opened = self._armed = False
        self.opening = frame
        reason = refusal(frame, self._bounds)
        if reason is not None:
            return [*effects, *self._refuse(reason)]
        self._text = CommittedText(self._bounds.vocab_size, frame.limits.max_len)
        self.opening = frame = self._bounds.cut(frame)
        self._text.extend(0, frame.tokens.tolist(), None)
        self._credit = frame.draft_until
        self._hedge_nodes, self._flush_nodes = 0, frame.limits.flush_nodes
        return effects + self._begin_when_complete(frame)

    def _on_frame(self, frame: Commit | Feedback | Close | Open) -> list[DrafterEffect]:
        opening = self.opening
        if opening is None or frame.incarnation > opening.incarnation:
            if isinstance(frame, Close):
                return self._release(frame.reason)
            if isinstance(frame, Feedback):
                return []
            return self._close_as(frame.incarnation, CloseReason.PROTOCOL, "the session was not opened under this incarnation")
        if frame.incarnation < opening.incarnation:
            return []
        match frame:
            case Commit():
                return self._on_commit(frame, opening)
            case Close():
                return self._release(frame.reason)
            case _:
                return []

    def _on_commit(self, frame: Commit, opening: Open) -> list[DrafterEffect]:
        if frame.tokens.ndim != 1:
            raise ProtocolViolation("a commit's tokens must be one sequence")
        fresh = self._text.extend(frame.begin, frame.tokens.tolist(), frame.prefix_hash)
        if len(self._text) >= opening.limits.max_len < self._text.max_len:
            return self._close(CloseReason.FINISHED, f"the text has outgrown the {opening.limits.max_len} tokens that the drafter holds")
        is_other_leave = frame.draft_until != self._credit
        self._credit = frame.draft_until
        self._hedge_nodes = min(frame.hedge_nodes, opening.limits.hedge_nodes)
        if frame.flush_nodes is not None:
            self._flush_nodes = frame.flush_nodes
        if not self._begun:
            return self._begin_when_complete(opening)
        effects: list[DrafterEffect] = self._move(fresh) if fresh else []
        if fresh or is_other_leave:
            effects += self._arm()
        return effects

    def _begin_when_complete(self, opening: Open) -> list[DrafterEffect]:
        if len(self._text) < opening.prefix_len:
            return []
        self._begun = True
        self._plant(0)
        observe = Observe(np.array(self._text.tokens, np.int32), (), reroot=True, tree_id=0)
        return [observe, *self._arm()]

    def _answer_open(self, prefilled_to: int) -> list[DrafterEffect]:
        """Opened, once: when the first guess or pause shows that the model has read the prefix, so that nobody waits for a prefill."""
        if self._is_opened or self.opening is None:
            return []
        self._is_opened = True
        return [SendToVerifier(Opened(self.session, self.opening.incarnation, prefilled_to))]

    # --- the truth moves ------------------------------------------------------------------------------------------------

    def _move(self, fresh: list[int]) -> list[DrafterEffect]:
        tree = self._tree
        path = tree.follow(fresh)
        # Between two commits the tree grows by at most max_nodes, so a tree re-rooted here in time never reaches its bound.
        if len(path) < len(fresh) or tree.num_nodes + self._max_nodes() > MAX_TREE_NODES:
            return [self._reroot(fresh, tuple(path))]
        observe = Observe(np.array(fresh, np.int32), tuple(path), reroot=False, tree_id=tree.tree_id)
        # The verifier is about to plan its next round: what is guessed already serves it now, not at the end of the burst.
        return [observe, *self._flush()]

    def _reroot(self, tokens: list[int], path: tuple[int, ...]) -> Observe:
        self._plant(self._tree.tree_id + 1)
        return Observe(np.array(tokens, np.int32), path, reroot=True, tree_id=self._tree.tree_id)

    def _plant(self, tree_id: int) -> None:
        self._tree = GuessTree(tree_id, len(self._text))
        self._said = TailEnd.MORE
        self._unsent.reset()

    def _arm(self) -> list[DrafterEffect]:
        """Ask for drafts, or say at once that none can come."""
        end = self._spent()
        self._armed = end is None
        self._paused = False
        return [] if end is None else [*self._answer_open(0), SendToVerifier(self._tail(end))]

    def _spent(self) -> TailEnd | None:
        opening = self.opening
        assert opening is not None
        known = len(self._text)
        if known > opening.num_prompt and self._text.tokens[-1] in self._bounds.eos_token_ids:
            return TailEnd.EOS
        if known >= opening.limits.max_len:
            return TailEnd.LIMIT
        return TailEnd.CREDIT if known >= self._credit else None

    def _reach(self) -> int:
        assert self.opening is not None
        return min(self._credit, self.opening.limits.max_len)

    def _max_nodes(self) -> int:
        assert self.opening is not None
        return self.opening.limits.max_nodes + self.opening.limits.hedge_nodes

    # --- the source ------------------------------------------------------------------------------------------------------

    def _on_grown(self, grown: Grown) -> list[DrafterEffect]:
        if not self._begun or grown.tree_id != self._tree.tree_id:
            return []
        # Guesses never wait for side branches, nor are their times mixed.
        effects = self._flush() if grown.is_hedge is not self._unsent.is_hedge else []
        try:
            self._tree.append(grown.tokens, grown.parents)
        except ProtocolViolation as error:
            return self._close(CloseReason.FAILED, f"the draft source broke its tree: {error}")
        self._unsent.add(grown)
        return effects + (self._on_hedged(grown) if grown.is_hedge else self._on_guessed(grown))

    def _on_guessed(self, grown: Grown) -> list[DrafterEffect]:
        if grown.end is not TailEnd.MORE:
            self._armed = grown.may_hedge
            opened = self._answer_open(len(self._text))
            was_paused, self._paused = self._paused and not grown.tokens, True
            if was_paused or self._is_known_pause(grown.end):
                return opened
            return [*opened, SendToVerifier(self._tail(grown.end))]
        if not grown.tokens:
            return []
        return [*self._answer_open(len(self._text)), *self._flush_if_due()]

    def _on_hedged(self, grown: Grown) -> list[DrafterEffect]:
        self._armed = grown.end is TailEnd.MORE or grown.may_hedge
        if grown.end is not TailEnd.MORE and not self._paused:
            self._paused = True
            return [SendToVerifier(self._tail(grown.end))]
        return self._flush_if_due() if self._armed else self._flush()

    def _flush_if_due(self) -> list[DrafterEffect]:
        return self._flush() if 0 < self._flush_nodes <= len(self._unsent.tokens) else []

    def _flush(self) -> list[DrafterEffect]:
        """What is unsent, if anything; it ends as the chain was last said to."""
        return [SendToVerifier(self._tail(self._said if self._paused else TailEnd.MORE))] if self._unsent.tokens else []

    def _is_known_pause(self, end: TailEnd) -> bool:
        """The source still stands, with nothing new, where it said it paused: the verifier sees the same from its own tree."""
        return end is self._said and end in _PAUSED_UNTIL_REACHED and not self._unsent.tokens and bool(self._tree.live_nodes())

    def _on_source_failed(self, reason: str) -> list[DrafterEffect]:
        return self._close(CloseReason.FAILED, reason) if self._is_opened else self._refuse(reason)

    def _tail(self, end: TailEnd) -> Tail:
        assert self.opening is not None
        self._said = end
        base_hash = self._text.prefix_hash(self._tree.base)
        return self._unsent.take(self.session, self.opening.incarnation, self._tree, base_hash, end, self._bounds.source)

    # --- the end ---------------------------------------------------------------------------------------------------------

    def _refuse(self, reason: str) -> list[DrafterEffect]:
        if self.opening is None:
            return self._release(CloseReason.FAILED)
        frame = Refused(self.session, self.opening.incarnation, reason)
        return [SendToVerifier(frame), *self._release(CloseReason.FAILED)]

    def _close(self, reason: CloseReason, detail: str) -> list[DrafterEffect]:
        return self._close_as(0 if self.opening is None else self.opening.incarnation, reason, detail)

    def _close_as(self, incarnation: int, reason: CloseReason, detail: str) -> list[DrafterEffect]:
        return [SendToVerifier(Close(self.session, incarnation, reason, detail)), *self._release(reason)]

    def _release(self, reason: CloseReason) -> list[DrafterEffect]:
        self.ended = True
        self.opening = None
        self._begun = self._armed = False
        self._unsent.reset()
        return [ReleaseSession(reason)]
