"""Answers that were over before their drafter was heard of: nothing was measured, and that says how far away it is at least.

Knows session views. Must not know rates, nor what follows from a drafter being far away.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.session.pacing.contract import SessionView

UNHEARD_ANSWERS = 3  # in a row; a first answer may find a drafter that is just starting
MAX_WATCHED = 256  # sessions at a time; of more, the others say nothing


@dataclass(slots=True)
class _Watch:
    """was_asked: some drafter was at work for it, or may have been; none may be there."""

    begin_us: int
    newest_us: int
    was_asked: bool = False


class Silence:
    """least_us: how long answers in a row, UNHEARD_ANSWERS of them, went on without a word from a drafter that had been asked; the
    shortest of them, 0 when fewer did."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watch] = {}
        self._unheard_us: list[int] = []

    @property
    def least_us(self) -> int:
        """See above."""
        return min(self._unheard_us) if len(self._unheard_us) == UNHEARD_ANSWERS else 0

    def asked(self, session: SessionView) -> None:
        """Its drafter, if there is one, has leave to guess, and has said nothing yet."""
        if session.session not in self._watched and len(self._watched) < MAX_WATCHED:
            self._watched[session.session] = _Watch(session.waiting_since_us, session.waiting_since_us)

    def observe(self, sessions: tuple[SessionView, ...]) -> None:
        """All that are live. Whoever was watched and is not among them has ended."""
        if not self._watched:
            return
        live = {session.session: session for session in sessions}
        for handle, watch in list(self._watched.items()):
            session = live.get(handle)
            if session is None:
                if watch.was_asked:
                    self._unheard_us = [*self._unheard_us, watch.newest_us - watch.begin_us][-UNHEARD_ANSWERS:]
            elif session.draft_us_per_token or session.num_tested:
                self._unheard_us.clear()
            else:
                watch.newest_us, watch.was_asked = session.waiting_since_us, watch.was_asked or session.is_drafting
                continue
            del self._watched[handle]
