"""A drafter's load, what it does to the time of a token, and what it has read before. Must not know verifiers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from outrider.types.fleet import Replica, Role
from outrider_bench.fleet.workload import DIGEST_LEN, Turn
from outrider_bench.fleet.world import IDENTITY, MAX_SESSIONS, DrafterSpec

MAX_WARM = 1_024  # beginnings of prefixes that are kept
SHARED = 0.06  # what each further session adds to a token; placement believes another number, as it would


@dataclass(slots=True)
class SimulatedDrafter:
    """num_sessions: placed with it and not finished. warm: what it has read, longest unused first."""

    spec: DrafterSpec
    num_sessions: int = 0
    warm: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    @property
    def has_room(self) -> bool:
        """For one more."""
        return self.num_sessions < MAX_SESSIONS

    @property
    def draft_us(self) -> float:
        """A token at its present load."""
        return self.spec.draft_us * (1.0 + SHARED * max(0, self.num_sessions - 1))

    def num_warm(self, turn: Turn) -> int:
        """Digests of the turn's prefix that it has read."""
        return max((at for at, digest in enumerate(turn.digests(turn.prefix_len), start=1) if digest in self.warm), default=0)

    def reading_s(self, turn: Turn) -> float:
        """For the rest of its prefix."""
        return (turn.prefix_len - self.num_warm(turn) * DIGEST_LEN) * self.spec.read_us / 1e6

    def finish(self, turn: Turn) -> None:
        """One of its sessions has ended, whose answer it knows by now."""
        self.num_sessions -= 1
        for digest in turn.digests(turn.prefix_len + turn.answer_len):
            self.warm[digest] = None
            self.warm.move_to_end(digest)
        while len(self.warm) > MAX_WARM:
            self.warm.popitem(last=False)

    def replica(self) -> Replica:
        """Its heartbeat."""
        endpoint = self.spec.endpoint
        return Replica(
            endpoint, 1, Role.DRAFTER, endpoint, IDENTITY,
            num_sessions=self.num_sessions, max_sessions=MAX_SESSIONS, draft_us=self.draft_us, read_us=self.spec.read_us,
        )  # fmt: skip
