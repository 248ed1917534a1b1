"""A verifier on virtual time: it reads prompts one after another, and decodes all its sessions in shared steps.

What a session's token takes is the closed model of rounds (outrider.coordinator.round_times, held to the pacing policies' own by
its test) of the session's real pair: its real round trip, its drafter at its present load, the acceptance of its text. The pacing
policies themselves would take a thousand times as long at this size (`outrider bench simulate` runs them). A session decodes plainly where
that is quicker, as they do. A second drafter of a session costs its drafter room and brings nothing here: the model has no trees.
Must not know who placed a session.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from outrider.coordinator.round_times import drafted_us, plain_us, rows_of_steps
from outrider.coordinator.step_times import GRID_ROWS, sampled, step_us
from outrider.types.fleet import PairMeasurement, Replica, Role
from outrider_bench.fleet.simulated_drafter import SimulatedDrafter
from outrider_bench.fleet.workload import DIGEST_LEN, MAX_ANSWER_LEN, Turn
from outrider_bench.fleet.world import BLOCK_LEN, IDENTITY, MAX_SESSIONS, NUM_BLOCKS, VerifierSpec

READ_ROWS = 256
MAX_WARM = 1_024  # beginnings of prefixes that are kept
MAX_PAIRS = 24
LEARNING = 0.3  # of a pair's acceptance, from each session that ends


@dataclass(slots=True, eq=False)
class Session:
    """A turn at its verifier. Times in virtual seconds, microseconds a token as of the newest change there. drafts_from_s: when its drafter
    has read the prefix; what comes before is decoded plainly. had_warm_drafter: it need not read all of it."""

    turn: Turn
    asked_s: float
    drafter: SimulatedDrafter | None
    drafters: tuple[SimulatedDrafter, ...]
    round_trip_us: float
    acceptance: float
    placement_id: int
    drafts_from_s: float = 0.0
    had_warm_drafter: bool = False
    was_warm: bool = False
    left: float = 0.0  # tokens
    token_us: float = 0.0
    first_s: float = 0.0


@dataclass
class SimulatedVerifier:
    """reading_until_s: when the prompts that wait have been read. version: grows with every change of who decodes."""

    spec: VerifierSpec
    decoding: list[Session] = field(default_factory=list)
    num_sessions: int = 0
    num_blocks: int = 0
    reading_until_s: float = 0.0
    advanced_s: float = 0.0
    version: int = 0
    pairs: OrderedDict[str, PairMeasurement] = field(default_factory=OrderedDict)
    warm: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._samples = sampled(self.spec.cost)[None]
        self._read_us = float(self._samples[0, np.searchsorted(GRID_ROWS, READ_ROWS)]) / READ_ROWS

    def has_room(self, turn: Turn) -> bool:
        """Sessions and KV blocks."""
        return self.num_sessions < MAX_SESSIONS and self.num_blocks + blocks_of(turn) <= NUM_BLOCKS

    def admit(self, session: Session, now_s: float) -> float:
        """When its prefix will have been read."""
        digests = session.turn.digests(session.turn.prefix_len)
        num_warm = max((at for at, digest in enumerate(digests, start=1) if digest in self.warm), default=0)
        session.was_warm = num_warm > 0
        cold = session.turn.prefix_len - num_warm * DIGEST_LEN
        self.num_sessions += 1
        self.num_blocks += blocks_of(session.turn)
        self.reading_until_s = max(self.reading_until_s, now_s) + cold * self._read_us / 1e6
        return self.reading_until_s

    def begin(self, session: Session, now_s: float) -> None:
        """Its prefix has been read: it decodes with the others."""
        self.advance(now_s)
        session.left = float(session.turn.answer_len)
        self.decoding.append(session)
        self.reprice()
        session.first_s = now_s + session.token_us / 1e6

    def finished(self, now_s: float) -> list[Session]:
        """Takes out those that have all their tokens."""
        self.advance(now_s)
        done = [session for session in self.decoding if session.left <= 1e-6]
        self.decoding = [session for session in self.decoding if session.left > 1e-6]
        for session in done:
            self._end(session)
        self.reprice()
        return done

    def next_end_s(self) -> float | None:
        """When the next session has all its tokens if nothing changes."""
        waits = [session.left * session.token_us for session in self.decoding]
        return self.advanced_s + min(waits) / 1e6 if waits else None

    def advance(self, now_s: float) -> None:
        """Tokens that came since the last change."""
        passed_us = (now_s - self.advanced_s) * 1e6
        for session in self.decoding:
            session.left -= passed_us / session.token_us
        self.advanced_s = now_s

    def reprice(self) -> None:
        """What a token takes each of them from now on."""
        self.version += 1
        if not self.decoding:
            return
        num_sessions = np.array([len(self.decoding)])
        steps = step_us(self._samples, rows_of_steps(num_sessions))
        plain = float(plain_us(steps)[0])
        drafted = [one for one in self.decoding if one.drafter is not None and one.drafts_from_s <= self.advanced_s]
        for session in self.decoding:
            session.token_us = plain
        if drafted:
            draft_us = np.array([[session.drafter.draft_us for session in drafted if session.drafter]])
            trips_us = np.array([[session.round_trip_us for session in drafted]])
            times = drafted_us(steps, num_sessions, draft_us, trips_us, np.array([[session.acceptance for session in drafted]]))
            for session, us in zip(drafted, times[0].tolist(), strict=True):
                session.token_us = min(plain, us)

    def replica(self, now_s: float) -> Replica:
        """Its heartbeat."""
        return Replica(
            self.spec.endpoint, 1, Role.VERIFIER, self.spec.endpoint, IDENTITY, num_sessions=self.num_sessions, max_sessions=MAX_SESSIONS,
            kv_blocks_used=self.num_blocks, kv_blocks_total=NUM_BLOCKS, block_len=BLOCK_LEN, cost=self.spec.cost,
            queue_us=max(0.0, self.reading_until_s - now_s) * 1e6, pairs=dict(self.pairs),
        )  # fmt: skip

    def _end(self, session: Session) -> None:
        self.num_sessions -= 1
        self.num_blocks -= blocks_of(session.turn)
        for digest in session.turn.digests(session.turn.prefix_len + session.turn.answer_len):
            self.warm[digest] = None
            self.warm.move_to_end(digest)
        while len(self.warm) > MAX_WARM:
            self.warm.popitem(last=False)
        if session.drafter is not None:
            self._learn(session.drafter.spec.endpoint, session)

    def _learn(self, drafter: str, session: Session) -> None:
        """The pair's acceptance, as the session has shown it."""
        known = self.pairs.pop(drafter, None)
        before = known.acceptance_rate if known is not None and known.acceptance_rate is not None else session.acceptance
        learned = before + LEARNING * (session.acceptance - before)
        self.pairs[drafter] = PairMeasurement(int(session.round_trip_us), learned, connected=True)
        while len(self.pairs) > MAX_PAIRS:
            self.pairs.popitem(last=False)


def blocks_of(turn: Turn) -> int:
    """KV blocks that are kept for it."""
    return -(-(turn.prefix_len + MAX_ANSWER_LEN) // BLOCK_LEN)
