"""A drafter inside this process, worked by the engine thread between two steps: its frames are neither encoded nor sent nor waited for.

Knows that such a drafter takes and gives the frames of the draft protocol, and that it may fail, which costs drafts and never an answer.
Must not know what it is: whoever starts the process hands in how it is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from outrider.engine.contract import Engine
from outrider.errors import IncompatiblePair
from outrider.types.frames import DrafterFrame, VerifierFrame
from outrider.types.identity import ModelIdentity, incompatibility
from verifier_service.clock import monotonic_us
from verifier_service.inbox import FramesArrived, PairDown

_LOG = logging.getLogger(__name__)
RESIDENT = "resident"  # where others have an address; requests may name it
CONNECTION = 1  # it never connects again

Result = TypeVar("Result")


class ResidentDrafter(Protocol):
    """Everything is called on the engine thread. What it raises is a fault of its own: it is not used any more."""

    @property
    def identity(self) -> ModelIdentity:
        """The draft model's."""
        ...

    def meet(self, target: Engine) -> None:
        """The engine that the engine thread steps beside it, before the first frame."""
        ...

    def tell(self, frames: list[VerifierFrame]) -> None:
        """Frames of the verifier, in order; taken when it is the drafter's turn."""
        ...

    def work(self) -> list[DrafterFrame]:
        """Hear and draft until there is something to say; nothing when it rests."""
        ...

    def free(self) -> None:
        """End every session, with all they hold."""
        ...


class ResidentLink:
    """In place of a stream. problem: why it is not used any more, empty while it is; may be read from any thread."""

    def __init__(self, drafter: ResidentDrafter) -> None:
        self.identity = drafter.identity
        self.problem = ""
        self.is_told = False  # since its last turn
        self._drafter = drafter
        self._is_told_of = False

    @property
    def has_lost(self) -> bool:
        """Whether `arrivals` has a loss to tell of."""
        return bool(self.problem) and not self._is_told_of

    def meet(self, target: Engine) -> None:
        """Raise IncompatiblePair unless its guesses can be the target's tokens; else make them known to each other."""
        problem = incompatibility(self.identity, target.identity)
        if problem is not None:
            raise IncompatiblePair(problem)
        self._guarded(lambda: self._drafter.meet(target))

    def send(self, frames: dict[tuple[str, int], list[VerifierFrame]]) -> None:
        """Take out the frames that are for it."""
        batch = frames.pop((RESIDENT, CONNECTION), None)
        if batch and not self.problem:
            self.is_told = True
            self._guarded(lambda: self._drafter.tell(batch))

    def arrivals(self) -> list[FramesArrived | PairDown]:
        """Its turn: what it has to say then, or that it is lost."""
        self.is_told = False
        frames = [] if self.problem else self._guarded(self._drafter.work)
        if frames:
            return [FramesArrived(RESIDENT, CONNECTION, tuple(frames), monotonic_us())]
        if not self.has_lost:
            return []
        self._is_told_of = True
        return [PairDown(RESIDENT, CONNECTION, self.problem)]

    def close(self) -> None:
        """The engine thread ends."""
        if not self.problem:
            self._guarded(self._drafter.free)

    def _guarded(self, call: Callable[[], Result]) -> Result | None:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 -- the edge between two services: a bug of one must not end the other
            _LOG.exception("the drafter of this process failed; answers go on without its drafts")
            self.problem = f"it failed: {error!r}; the log has the details, a restart brings it back"
        try:
            self._drafter.free()
        except Exception:  # noqa: BLE001 -- as above; what it held is the process' until it ends
            _LOG.exception("the drafter that failed could not free what it held")
        return None
