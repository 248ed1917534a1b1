"""When a session that goes without guesses tries some again: as often as a small share of everybody's time pays for.

A probe costs what its rounds took beyond plain decoding of the same tokens. Cheap probes (a fast drafter nearby) come often, dear ones (a
far drafter, waited for in turns) seldom. What probes find out is read elsewhere: must not know courses or acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.session.pacing.contract import SessionView

PROBE_SHARE = 0.01  # of the time without guesses may be spent on probes
PROBE_AFTER = 48  # plain tokens of each session between two probes of any, at least
MAX_PROBE_AFTER = 4096
HOPELESS_PROBE_AFTER = 1024  # where guesses come from too far to pay: their drafter is not even opened
OWN_PROBE_AFTER = 24  # plain tokens of a session before a probe of its own: it is another's turn
PROBE_TESTS = 4  # guesses judged before a probe is over, or
PROBE_ROUNDS = 2  # rounds in which some were: a drafter that makes one guess and pauses has said enough
MAX_PROBE_TOKENS = 12  # decoded during a probe: a drafter that is never heard of in time has no use


class ProbeBudget:
    """Of all sessions of a policy."""

    def __init__(self) -> None:
        self._num_plain = 0
        self._probe_after = PROBE_AFTER

    def count_plain(self, num_tokens: int) -> None:
        """So many tokens were decoded without guesses, and without probing."""
        self._num_plain += num_tokens

    def take(self, least: int = 0) -> bool:
        """Whether a probe is due, and `least` plain tokens were decoded since the one before; the next one is due after as many again."""
        if not self.is_due(least):
            return False
        self._num_plain = 0
        return True

    def is_due(self, least: int = 0) -> bool:
        """Whether `take` would be granted."""
        return self._num_plain >= max(self._probe_after, least)

    def pay(self, lost_tokens: float, num_sessions: int = 1) -> None:
        """A probe is over; plain decoding would have yielded all of these sessions so many tokens more in its time."""
        self._probe_after = round(min(MAX_PROBE_AFTER, max(num_sessions * PROBE_AFTER, lost_tokens / PROBE_SHARE)))

    def relax(self) -> None:
        """Guesses pay again: what probes used to cost says little now."""
        self._probe_after = PROBE_AFTER


@dataclass(slots=True)
class Probe:
    """A session's. plain_since: committed length since which it goes without. until: guesses judged when the probe under way is over."""

    plain_since: int
    until: int | None = None
    seen: int = 0  # guesses judged when its newest round with guesses was over
    num_rounds: int = 0  # with guesses
    num_commits: int = 0
    begin_len: int = 0
    begin_us: int = 0

    @property
    def is_on(self) -> bool:
        """Whether one is under way."""
        return self.until is not None

    def begin_if_due(self, session: SessionView, budget: ProbeBudget, *, hopeless: bool = False) -> None:
        """Asked while none is under way, at commits. hopeless: guesses come from too far to pay."""
        if self.is_due(session.committed_len, budget, hopeless=hopeless) and budget.take(_least(hopeless)):
            self.until, self.begin_len, self.begin_us = session.num_tested + PROBE_TESTS, session.committed_len, session.waiting_since_us
            self.seen, self.num_rounds, self.num_commits = session.num_tested, 0, 0

    def is_due(self, committed_len: int, budget: ProbeBudget, *, hopeless: bool = False) -> bool:
        """Whether one would begin at this length, while none is under way."""
        return committed_len - self.plain_since >= OWN_PROBE_AFTER and budget.is_due(_least(hopeless))

    def end_if_done(self, session: SessionView, budget: ProbeBudget, plain_us: float, num_sessions: int = 1) -> None:
        """Asked at each commit while one is under way. plain_us: a round of all without guesses; num_sessions: that share the steps, and
        wait: whatever the probe brings its session, the others get a token a step."""
        assert self.until is not None
        num_tokens = session.committed_len - self.begin_len
        self.num_commits += 1
        self.num_rounds += session.num_tested > self.seen
        self.seen = session.num_tested
        if session.num_tested < self.until and self.num_rounds < PROBE_ROUNDS and num_tokens < MAX_PROBE_TOKENS:
            return
        if plain_us > 0.0:
            plain_tokens = num_sessions * (session.waiting_since_us - self.begin_us) / plain_us
            budget.pay(plain_tokens - num_tokens - (num_sessions - 1) * self.num_commits, num_sessions)
        self.stop(session)

    def stop(self, session: SessionView) -> None:
        """Without a bill: the session goes without guesses from here on, or no longer does."""
        self.until = None
        self.plain_since = session.committed_len


def _least(hopeless: bool) -> int:
    """Plain tokens between two probes at least."""
    return HOPELESS_PROBE_AFTER if hopeless else 0
