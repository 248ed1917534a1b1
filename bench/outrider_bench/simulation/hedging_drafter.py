"""The drafter's half of a simulated request with side branches: the service's own DrafterSession over guesses that depend on positions.

Knows how likely guesses and second choices are to be right, as a calibrated draft model would, but not which of them are. Pauses for want
of confidence are left out. Must not know time beyond what it is handed, nor the verifier.
"""

from __future__ import annotations

from outrider.drafting.hedges import Branch
from outrider.drafting.positional_tree import Choice, PositionalTree
from outrider.session.drafter import DrafterSession
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.events import DrafterEvent, Grown, Observe, SendToVerifier, VerifierFrameArrived
from outrider.types.frames import DrafterFrame, DraftLimits, TailEnd, VerifierFrame
from outrider_bench.simulation.drafter_side import MAX_TEXT_LEN, SOURCE
from outrider_bench.simulation.text import VOCAB_SIZE, Text


class HedgingDrafter:
    """DrafterSide with side branches."""

    def __init__(self, handle: int, text: Text, hedge_acceptance: float) -> None:
        self._session = DrafterSession(handle, DrafterBounds(SOURCE, VOCAB_SIZE, frozenset(), MAX_TEXT_LEN, MAX_TEXT_LEN))
        self._text = text
        self._hedge_acceptance = hedge_acceptance
        self._tree = PositionalTree(0, self._choice_at)

    @property
    def ended(self) -> bool:
        """See DrafterSide."""
        return self._session.ended

    def wants(self) -> bool:
        """See DrafterSide."""
        return self._session.wants() is not None

    def can_grow(self) -> bool:
        """See DrafterSide: the chain comes first while the truth is likely enough to come by its end."""
        return self._pause() is TailEnd.MORE and self._tree.has_precedence(self._branches())

    def num_growing(self, most: int) -> int:
        """See DrafterSide: one, for side branches may be worth more than the next."""
        return 1

    def num_branches(self) -> int:
        """See DrafterSide."""
        return len(self._branches()) or int(self._pause() is TailEnd.MORE)

    def may_hedge(self) -> bool:
        """See DrafterSide."""
        return self._session.hedge_nodes > 0

    def receive(self, frame: VerifierFrame) -> list[DrafterFrame]:
        """See DrafterSide."""
        return self._step(VerifierFrameArrived(frame))

    def grow(self, begin_us: int, end_us: int) -> list[DrafterFrame]:
        """See DrafterSide."""
        first = len(self._tree.tokens)
        if self.can_grow():
            self._tree.grow()
        return self._grown(first, begin_us, end_us, is_hedge=False)

    def hedge(self, begin_us: int, end_us: int) -> list[DrafterFrame]:
        """See DrafterSide."""
        branches, first = self._branches(), len(self._tree.tokens)
        if branches and not (self._pause() is TailEnd.MORE and self._tree.has_precedence(branches)):
            self._tree.hedge(branches)
            return self._grown(first, begin_us, end_us, is_hedge=True)
        return self.grow(begin_us, end_us)

    def _grown(self, first: int, begin_us: int, end_us: int, *, is_hedge: bool) -> list[DrafterFrame]:
        nodes = tuple(self._tree.tokens[first:]), tuple(self._tree.parents[first:])
        times = end_us - begin_us, begin_us * 1000, end_us * 1000
        end, may_hedge = self._pause(), bool(self._branches())
        tree_id = self._session.tree.tree_id
        return self._step(Grown(tree_id, *nodes, None, end, *times, is_hedge=is_hedge and bool(nodes[0]), may_hedge=may_hedge))

    def _pause(self) -> TailEnd:
        """Why the chain cannot go on; MORE when it can."""
        until, limits = self._until(), self._limits()
        position = self._tree.next_position
        if position >= limits.max_len or self._tree.num_live >= limits.max_nodes:
            return TailEnd.LIMIT
        return TailEnd.CREDIT if position >= until else TailEnd.MORE

    def _branches(self) -> list[Branch]:
        return self._tree.branches(min(self._until(), self._limits().max_len), self._session.hedge_nodes)

    def _until(self) -> int:
        return self._session.wants() or 0

    def _limits(self) -> DraftLimits:
        assert self._session.opening is not None
        return self._session.opening.limits

    def _choice_at(self, position: int) -> Choice:
        text = self._text
        share = float(text.acceptances[position])
        return Choice(int(text.guesses[position]), share, int(text.seconds[position]), (1.0 - share) * self._hedge_acceptance)

    def _step(self, event: DrafterEvent) -> list[DrafterFrame]:
        frames: list[DrafterFrame] = []
        for effect in self._session.step(event):
            match effect:
                case SendToVerifier(frame=frame):
                    frames.append(frame)
                case Observe(path=path, reroot=reroot):
                    if reroot:
                        self._tree.plant(len(self._session.committed))
                    else:
                        self._tree.follow(path)
        return frames
