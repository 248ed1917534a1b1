"""The drafter's process: one thread that takes what has arrived, drafts one token for everybody who wants one, then sends. A session that
wants some alone may get several at once, as from a model whose guesses follow each other in one step.

Side branches only when no chain is due. Keeps the order of work of drafter_service.scheduler: frames that arrive during a draft step
wait for its end, and what is answered to them leaves after the next step. Knows sessions of the drafter. Must not know costs, the
verifier or policies.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from outrider.types.frames import DrafterFrame, Open, VerifierFrame
from outrider_bench.simulation.drafter_side import DrafterSide


class DrafterProcess:
    """open_session: makes the drafter's half of a request from its handle; None for one that is over. max_followed: guesses that may come
    behind the first of a session that asks alone. num_guesses: for each session, of the draft step under way."""

    def __init__(self, open_session: Callable[[int], DrafterSide | None], max_followed: int = 0) -> None:
        self._open_session = open_session
        self._max_followed = max_followed
        self.num_guesses = 1
        self._sessions: dict[int, DrafterSide] = {}
        self._taking_part: list[DrafterSide] = []
        self._unsent: list[DrafterFrame] = []
        self._begin_us = 0
        self._changed = False
        self._hedging = False

    def receive(self, frames: list[VerifierFrame]) -> None:
        """Frames of the verifier, between two draft steps."""
        self._changed = True
        for frame in frames:
            session = self._sessions.get(frame.session)
            if session is None:
                session = self._open_session(frame.session) if isinstance(frame, Open) else None
                if session is None:
                    continue
                self._sessions[frame.session] = session
            self._unsent += session.receive(frame)
            if session.ended:
                del self._sessions[frame.session]

    def start(self, now_us: int) -> int | None:
        """Begin a draft step; returns its rows (sessions that get a token, or side branches), or None when nobody wants any."""
        if not self._changed:
            return None
        self._changed = False
        self._taking_part = [session for session in self._sessions.values() if session.wants()]
        self._begin_us, self.num_guesses = now_us, 1
        if not self._taking_part:
            return None
        num_rows = sum(session.can_grow() for session in self._taking_part)
        self._hedging = num_rows == 0
        if self._max_followed and num_rows == len(self._taking_part) == 1:
            self.num_guesses = self._taking_part[0].num_growing(1 + self._max_followed)
        return num_rows or sum(session.num_branches() for session in self._taking_part)

    @property
    def pays_toll(self) -> bool:
        """Whether the draft step is of chains, of somebody who may draft side branches too."""
        return not self._hedging and any(session.may_hedge() for session in self._taking_part)

    def finish(self, now_us: int) -> None:
        """The draft step is over."""
        ends_us = [self._begin_us + (now_us - self._begin_us) * guess // self.num_guesses for guess in range(self.num_guesses + 1)]
        for session in self._taking_part:
            for begin_us, end_us in pairwise(ends_us):
                self._unsent += session.hedge(begin_us, end_us) if self._hedging else session.grow(begin_us, end_us)
        self._taking_part = []
        self._changed = True

    def take_unsent(self) -> list[DrafterFrame]:
        """What is to be sent now, at the end of a turn."""
        unsent, self._unsent = self._unsent, []
        return unsent
