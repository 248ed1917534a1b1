"""The next round of a pair of models, computed before it is asked for (thin/ahead.c), while the interpreter is still busy with this one.

Two chains of one thread, a draft's and its target's, or a target's alone: whenever the target has judged the draft's newest guesses, a
helper of its team drafts on from the newest pick and lets the target judge that, in the places and by the rules of the round before; and
where nothing was drafted it feeds the target the newest pick. A chain that is asked for just that has it at once; one that is asked for
anything else computes as ever. Bits are the same either way. Must not know sequences or drafts.
"""

from __future__ import annotations

import ctypes
import weakref

from outrider_kernels.thin_chain import ThinChain
from outrider_kernels.thin_team import ThinTeam

_DRAFT, _TARGET = range(2)  # as in thin/ahead.c


class ThinAhead:
    """Both chains go this way from now on. Who uses their teams for anything else, or changes or frees what their sequences lie in, calls
    `settle` of either team before."""

    def __init__(self, draft: ThinChain | None, draft_positions: int, target: ThinChain, target_positions: int) -> None:
        """positions: that each model has. draft: None = only plain steps are foreseen. Raises ValueError where the target's team has no
        helper, or a team belongs to another pair."""
        if target.team.num_threads < 2 or (draft is not None and draft.team is target.team):
            raise ValueError("computing ahead takes a second thread of the target's, and a team for each of both")
        chains = {_TARGET: target} if draft is None else {_DRAFT: draft, _TARGET: target}
        if any(chain.team.computes_ahead for chain in chains.values()):
            raise ValueError("these threads compute ahead for another pair")
        self._library = target.team.library
        ours = (None, None, 0) if draft is None else (draft.team.handle, draft.address, draft_positions)
        self._handle: int | None = self._library.thin_ahead_new(*ours, target.team.handle, target.address, target_positions)
        if not self._handle:
            raise MemoryError("no memory for a round ahead")
        self._kept = draft, target
        freed = weakref.finalize(self, _free, self._handle, target.team, [chain.team for chain in chains.values()])
        freed.atexit = False  # a thread that is a daemon may be in it to the last
        for part, chain in chains.items():
            chain.team.belong_to(self._handle)
            chain.go_through(self, self._library.thin_ahead_follow, self._handle, part)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Rounds that were sent for, and how many of their drafts and of their judgements were asked for."""
        num_sent, num_drafts, num_judged, _, _ = self._counts()
        return num_sent, num_drafts, num_judged

    @property
    def plain_counts(self) -> tuple[int, int]:
        """Plain steps that were sent for, and how many of them were asked for."""
        *_, num_sent, num_asked = self._counts()
        return num_sent, num_asked

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is being computed."""
        return bool(self._library.thin_ahead_is_at_rest(self._handle))

    def _counts(self) -> list[int]:
        numbers = (ctypes.c_int64 * 5)()
        self._library.thin_ahead_counts(self._handle, ctypes.addressof(numbers))
        return list(numbers)


def _free(handle: int, target_team: ThinTeam, teams: list[ThinTeam]) -> None:
    """The teams are there for as long as it may use them, and may serve another pair then."""
    target_team.library.thin_ahead_free(handle)
    for team in teams:
        team.belong_to(None)
