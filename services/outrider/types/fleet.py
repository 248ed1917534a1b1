"""The fleet as values: one replica as it describes itself, what was measured between two, and where a request goes.

Knows what a placement may look at. Must not know how it decides, how replicas are reached, or Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from outrider.types.identity import ModelIdentity

MAX_PREFIX_DIGESTS = 16


class Role(Enum):
    """What a replica does."""

    VERIFIER = "verifier"
    DRAFTER = "drafter"


@dataclass(frozen=True, slots=True)
class PairMeasurement:
    """What a verifier knows of a drafter. round_trip_us: 0 = unknown. acceptance_rate: of late, None = unknown. late_share: of rounds of
    late, those that went on without its guesses when it was due, in [0, 1]."""

    round_trip_us: int = 0
    acceptance_rate: float | None = None
    connected: bool = False
    late_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Replica:
    """One process of the fleet, as of its newest heartbeat (fleet.proto, Replica).

    replica_id: the same after a restart. incarnation: grows with every start. cost: (rows, microseconds) of a step of one sequence,
    ascending; sequence_us: what each further one adds; verifiers. pairs: by drafter endpoint; verifiers. draft_us: of a drafted token,
    read_us: of a prompt's token that it has not read before; drafters, 0 = unknown. queue_us: until a new session's first step.
    """

    replica_id: str
    incarnation: int
    role: Role
    endpoint: str
    identity: ModelIdentity
    draining: bool = False
    num_sessions: int = 0
    max_sessions: int = 1
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    block_len: int = 0
    cost: tuple[tuple[int, float], ...] = ()
    sequence_us: float = 0.0
    queue_us: float = 0.0
    draft_us: float = 0.0
    read_us: float = 0.0
    pairs: Mapping[str, PairMeasurement] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacementWish:
    """A request that needs a verifier (fleet.proto, PlaceRequest). fingerprint: empty = any. prefix_digests: shortest beginning first;
    prefix_digest_lens: tokens of each, empty = evenly apart."""

    request_id: str
    tenant: str = ""
    prefix_len: int = 1
    max_tokens: int = 1
    num_samples: int = 1
    fingerprint: str = ""
    exclude: frozenset[str] = frozenset()
    wants_drafts: bool = True
    prefix_digests: tuple[bytes, ...] = ()
    prefix_digest_lens: tuple[int, ...] = ()

    @property
    def digest_shares(self) -> tuple[float, ...]:
        """Of the prefix, what a replica need not read that has read this beginning and not the next one: half way between the two, in
        (0, 1]. Nobody knows where a text that it has read went on otherwise, and a next turn's goes on with the last one's answer."""
        lens = self.prefix_digest_lens
        if lens:
            between = zip(lens, (*lens[1:], self.prefix_len), strict=True)
            return tuple((length + following) / (2 * self.prefix_len) for length, following in between)
        return tuple(at / len(self.prefix_digests) for at in range(1, len(self.prefix_digests) + 1))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where it goes. verifier, drafters, alternatives: endpoints, best first. drafts_off: plain decoding is expected to be quicker than
    with any drafter; without it, no drafters mean that none fits and has room.

    token_us: expected microseconds a token. reason: a sentence for traces. decode_us: of token_us, what the model of rounds says, without
    the wait for the first token; 0 where it says nothing because a pair is tried.
    """

    verifier: str
    drafters: tuple[str, ...]
    alternatives: tuple[str, ...]
    token_us: float
    reason: str
    drafts_off: bool = False
    decode_us: float = 0.0
