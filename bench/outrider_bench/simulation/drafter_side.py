"""The drafter's half of a simulated request, behind one small contract with two implementations that send the same frames.

`SessionDrafter` drives the service's own DrafterSession; `ChainDrafter` (chain_drafter.py) is its reduced form for chains, in integers.
Guesses come from the request's text. Must not know time beyond what it is handed, nor the verifier.
"""

from __future__ import annotations

from typing import Protocol

from outrider.session.drafter import DrafterSession
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.events import DrafterEvent, Grown, SendToVerifier, VerifierFrameArrived
from outrider.types.frames import DrafterFrame, TailEnd, VerifierFrame
from outrider.types.tree import ROOT
from outrider_bench.simulation.guesser import Guesser, Place
from outrider_bench.simulation.text import VOCAB_SIZE, Text

MAX_TEXT_LEN = 1 << 20
SOURCE = "simulated"


class DrafterSide(Protocol):
    """One request at the drafter."""

    @property
    def ended(self) -> bool:
        """Nothing more will come of it."""
        ...

    def wants(self) -> bool:
        """Whether it takes part in the next draft step."""
        ...

    def can_grow(self) -> bool:
        """Whether that step takes its time; else it only learns that it must pause."""
        ...

    def num_growing(self, most: int) -> int:
        """Guesses of the next draft step if it may hold so many: at most as many as are sent together."""
        ...

    def num_branches(self) -> int:
        """Rows of the next draft step if no chain is due."""
        ...

    def may_hedge(self) -> bool:
        """Whether it was given leave for side branches."""
        ...

    def hedge(self, begin_us: int, end_us: int) -> list[DrafterFrame]:
        """Such a step is over; returns what is to be sent."""
        ...

    def receive(self, frame: VerifierFrame) -> list[DrafterFrame]:
        """A frame of the verifier; returns what is to be sent."""
        ...

    def grow(self, begin_us: int, end_us: int) -> list[DrafterFrame]:
        """The draft step that it took part in is over; returns what is to be sent."""
        ...


class SessionDrafter:
    """The real DrafterSession; one token a step."""

    def __init__(self, handle: int, text: Text) -> None:
        self._session = DrafterSession(handle, DrafterBounds(SOURCE, VOCAB_SIZE, frozenset(), MAX_TEXT_LEN, MAX_TEXT_LEN))
        self._guesser = Guesser(text)

    @property
    def ended(self) -> bool:
        """See DrafterSide."""
        return self._session.ended

    def wants(self) -> bool:
        """See DrafterSide."""
        return self._session.wants() is not None

    def can_grow(self) -> bool:
        """See DrafterSide."""
        return self._guesser.pause(self._place()) is TailEnd.MORE

    def num_growing(self, most: int) -> int:
        """See DrafterSide."""
        place = self._place()
        room = min(place.until, place.limits.max_len) - place.position, place.limits.max_nodes - place.num_live
        return max(1, min(most, *room, self._session.flush_nodes or most))

    def num_branches(self) -> int:
        """See DrafterSide: there are none."""
        return 0

    def may_hedge(self) -> bool:
        """See DrafterSide."""
        return False

    def hedge(self, begin_us: int, end_us: int) -> list[DrafterFrame]:
        """See DrafterSide."""
        return self.grow(begin_us, end_us)

    def receive(self, frame: VerifierFrame) -> list[DrafterFrame]:
        """See DrafterSide."""
        return self._step(VerifierFrameArrived(frame))

    def grow(self, begin_us: int, end_us: int) -> list[DrafterFrame]:
        """See DrafterSide."""
        tree, place = self._session.tree, self._place()
        end = self._guesser.pause(place)
        token, end = self._guesser.draft(place) if end is TailEnd.MORE else (None, end)
        tokens, parents = ((), ()) if token is None else ((token,), (tree.num_nodes - 1 if tree.num_nodes else ROOT,))
        return self._step(Grown(tree.tree_id, tokens, parents, None, end, end_us - begin_us, begin_us * 1000, end_us * 1000))

    def _place(self) -> Place:
        tree, opening, until = self._session.tree, self._session.opening, self._session.wants()
        assert opening is not None
        assert until is not None
        position = tree.base + tree.num_nodes
        return Place(tree.tree_id, position, position - tree.root_len, until, opening.limits)

    def _step(self, event: DrafterEvent) -> list[DrafterFrame]:
        return [effect.frame for effect in self._session.step(event) if isinstance(effect, SendToVerifier)]
