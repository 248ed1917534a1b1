"""The acceptance floor: a drafter whose guesses are hardly ever right is left out of new sessions for a while, then tried again.

Knows tallies by drafter, of sessions that ended or have given one up (judged_portions.py), and times that are handed in. Must not know
streams, policies or who logs. Tokens do not depend on it: a session without this drafter has other guesses, or none.

Below one right guess in fifty a round of guesses costs more rows than it saves steps, whatever the policy and however cheap the drafter.
Were guesses independent, a drafter of 10 % would be found below 2 % of MIN_JUDGED less than once in a million times. No session counts for
more than a quarter of those, so that a text on which nobody could guess does not cost a drafter its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.session.drafter_tally import DrafterTally

MIN_ACCEPTANCE = 0.02
MIN_JUDGED = 256
MAX_JUDGED_OF_A_SESSION = MIN_JUDGED // 4
MIN_JUDGED_ON_TRIAL = MIN_JUDGED // 2  # two sessions at least, one after the other
MAX_JUDGED = 2 * MIN_JUDGED  # older ones weigh half then: a drafter may also turn bad late
FIRST_PAUSE_US = 60_000_000
MAX_PAUSE_US = 3_600_000_000
MAX_DRAFTERS = 64


@dataclass(slots=True)
class _Standing:
    """num_judged, num_right: of the window. pause_us: the newest pause, 0 before the first. until_us: its end; None: in good standing.
    tried_by: the session that has it on trial, once its pause is over."""

    num_judged: float = 0.0
    num_right: float = 0.0
    pause_us: int = 0
    until_us: int | None = None
    tried_by: int | None = None

    @property
    def is_low(self) -> bool:
        return self.num_right < MIN_ACCEPTANCE * self.num_judged

    def add(self, tally: DrafterTally) -> None:
        if not tally.num_judged:
            return
        weight = min(1.0, MAX_JUDGED_OF_A_SESSION / tally.num_judged)
        self.num_judged += weight * tally.num_judged
        self.num_right += weight * tally.num_right
        if self.num_judged > MAX_JUDGED:
            self.num_judged, self.num_right = self.num_judged / 2, self.num_right / 2

    def forget_window(self) -> None:
        self.num_judged = self.num_right = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A drafter's standing has changed. pause_us: it is left out for so long; 0: it is in good standing again. The numbers are those that
    it was judged by, sessions weighed."""

    drafter: str
    num_judged: int
    num_right: int
    pause_us: int


class AcceptanceFloor:
    """Standings of at most MAX_DRAFTERS drafters, those heard of last."""

    def __init__(self) -> None:
        self._standings: dict[str, _Standing] = {}

    def admits(self, drafter: str, session: int, now_us: int) -> bool:
        """Whether this session may use the drafter. After its pause it has one session at a time, until it has shown what it is."""
        standing = self._standings.get(drafter)
        if standing is None or standing.until_us is None:
            return True
        if now_us < standing.until_us:
            return False
        if standing.tried_by is None:
            standing.tried_by = session
        return standing.tried_by == session

    def forget(self, drafter: str) -> None:
        """Another model has taken its place: it is as one never heard of."""
        self._standings.pop(drafter, None)

    def end(self, session: int, tallies: Mapping[str, DrafterTally], now_us: int) -> list[Verdict]:
        """A session has ended, with what its drafters did for it."""
        verdicts = [self._count(drafter, session, tally, now_us) for drafter, tally in tallies.items()]
        for standing in self._standings.values():
            if standing.tried_by == session:
                standing.tried_by = None
        return [verdict for verdict in verdicts if verdict is not None]

    def given_up(self, session: int, drafter: str, tally: DrafterTally, now_us: int) -> list[Verdict]:
        """A session that goes on has done with one of its drafters, which did so much for it. It is not to be counted again at its end."""
        verdict = self._count(drafter, session, tally, now_us)
        standing = self._standings[drafter]
        if standing.tried_by == session:
            standing.tried_by = None
        return [] if verdict is None else [verdict]

    def _count(self, drafter: str, session: int, tally: DrafterTally, now_us: int) -> Verdict | None:
        standing = self._standings.pop(drafter, None) or _Standing()
        self._standings[drafter] = standing
        if len(self._standings) > MAX_DRAFTERS:
            del self._standings[next(iter(self._standings))]
        is_on_trial = standing.until_us is not None
        if is_on_trial and standing.tried_by != session:
            return None  # it began before the pause, of which this is no news
        standing.add(tally)
        if standing.num_judged < (MIN_JUDGED_ON_TRIAL if is_on_trial else MIN_JUDGED):
            return None
        if not standing.is_low:
            return self._reinstated(drafter, standing) if is_on_trial else None
        return self._dropped(drafter, standing, now_us)

    def _dropped(self, drafter: str, standing: _Standing, now_us: int) -> Verdict:
        standing.pause_us = min(MAX_PAUSE_US, 2 * standing.pause_us) or FIRST_PAUSE_US
        standing.until_us = now_us + standing.pause_us
        verdict = Verdict(drafter, round(standing.num_judged), round(standing.num_right), standing.pause_us)
        standing.forget_window()
        return verdict

    def _reinstated(self, drafter: str, standing: _Standing) -> Verdict:
        standing.until_us, standing.pause_us = None, 0
        return Verdict(drafter, round(standing.num_judged), round(standing.num_right), 0)
