"""The fleet's messages between protobuf and values (proto/outrider/v1/fleet.proto, types/fleet.py).

Knows which replica could exist: what is out of range is refused by its field's name. Must not judge who should take part.
"""

from __future__ import annotations

import itertools

from outrider.errors import InvalidRequest
from outrider.rpc.address import MAX_ADDRESS_LEN
from outrider.rpc.convert.bounds import MAX_POSITION, bounded, finite, name
from outrider.rpc.convert.identity import identity_from_proto, identity_to_proto
from outrider.types.fleet import MAX_PREFIX_DIGESTS, PairMeasurement, PlacementWish, Replica, Role
from outrider.v1 import fleet_pb2 as pb
from outrider.v1 import identity_pb2

MAX_COST_POINTS = 256
MAX_PAIRS = 4096
MAX_EXCLUDED = 64
MAX_DIGEST_LEN = 64
MAX_US = 1e12
_ROLE_VALUES = {Role.VERIFIER: pb.REPLICA_ROLE_VERIFIER, Role.DRAFTER: pb.REPLICA_ROLE_DRAFTER}
_ROLES: dict[int, Role] = {int(value): role for role, value in _ROLE_VALUES.items()}


def replica_to_proto(replica: Replica) -> pb.Replica:
    """Every field."""
    return pb.Replica(
        replica_id=replica.replica_id,
        incarnation=replica.incarnation,
        role=_ROLE_VALUES[replica.role],
        endpoint=replica.endpoint,
        identity=identity_to_proto(replica.identity),
        draining=replica.draining,
        live=identity_pb2.LiveCounts(
            sessions=replica.num_sessions, kv_blocks_used=replica.kv_blocks_used, kv_blocks_total=replica.kv_blocks_total
        ),
        max_sessions=replica.max_sessions,
        block_len=replica.block_len,
        cost_rows=[rows for rows, _ in replica.cost],
        cost_us=[us for _, us in replica.cost],
        cost_sequence_us=replica.sequence_us,
        queue_us=replica.queue_us,
        draft_us=replica.draft_us,
        read_us=replica.read_us,
        pairs=[_pair_to_proto(drafter, pair) for drafter, pair in replica.pairs.items()],
    )


def replica_from_proto(message: pb.Replica, field: str = "replica") -> Replica:
    """Raises InvalidRequest naming the first field that no replica could have."""
    role = _ROLES.get(int(message.role))
    if role is None:
        raise InvalidRequest(f"{field}.role", f"{int(message.role)} is neither verifier nor drafter")
    if not message.replica_id:
        raise InvalidRequest(f"{field}.replica_id", "is empty; whoever starts the process names it")
    if len(message.pairs) > MAX_PAIRS:
        raise InvalidRequest(f"{field}.pairs", f"has {len(message.pairs)} entries, at most {MAX_PAIRS}")
    return Replica(
        replica_id=name(f"{field}.replica_id", message.replica_id),
        incarnation=message.incarnation,
        role=role,
        endpoint=name(f"{field}.endpoint", message.endpoint, MAX_ADDRESS_LEN),
        identity=identity_from_proto(message.identity, f"{field}.identity"),
        draining=message.draining,
        num_sessions=bounded(f"{field}.live.sessions", message.live.sessions, 0),
        max_sessions=bounded(f"{field}.max_sessions", message.max_sessions, 1),
        kv_blocks_used=bounded(f"{field}.live.kv_blocks_used", message.live.kv_blocks_used, 0),
        kv_blocks_total=bounded(f"{field}.live.kv_blocks_total", message.live.kv_blocks_total, 0),
        block_len=bounded(f"{field}.block_len", message.block_len, 0),
        cost=_cost(field, message),
        sequence_us=finite(f"{field}.cost_sequence_us", message.cost_sequence_us, 0.0, MAX_US),
        queue_us=finite(f"{field}.queue_us", message.queue_us, 0.0, MAX_US),
        draft_us=finite(f"{field}.draft_us", message.draft_us, 0.0, MAX_US),
        read_us=finite(f"{field}.read_us", message.read_us, 0.0, MAX_US),
        pairs={name(f"{field}.pairs.drafter", pair.drafter, MAX_ADDRESS_LEN): _pair(f"{field}.pairs", pair) for pair in message.pairs},
    )


def wish_to_proto(wish: PlacementWish) -> pb.PlaceRequest:
    """Every field."""
    return pb.PlaceRequest(
        request_id=wish.request_id,
        tenant=wish.tenant,
        prefix_len=wish.prefix_len,
        max_tokens=wish.max_tokens,
        num_samples=wish.num_samples,
        fingerprint=wish.fingerprint,
        exclude=sorted(wish.exclude),
        wants_drafts=wish.wants_drafts,
        prefix_digests=wish.prefix_digests,
        prefix_digest_lens=wish.prefix_digest_lens,
    )


def wish_from_proto(message: pb.PlaceRequest) -> PlacementWish:
    """Raises InvalidRequest naming the first field that is out of range."""
    if len(message.exclude) > MAX_EXCLUDED:
        raise InvalidRequest("exclude", f"has {len(message.exclude)} entries, at most {MAX_EXCLUDED}")
    if len(message.prefix_digests) > MAX_PREFIX_DIGESTS:
        raise InvalidRequest("prefix_digests", f"has {len(message.prefix_digests)} entries, at most {MAX_PREFIX_DIGESTS}")
    if any(len(digest) > MAX_DIGEST_LEN for digest in message.prefix_digests):
        raise InvalidRequest("prefix_digests", f"a digest has at most {MAX_DIGEST_LEN} bytes")
    lens = tuple(message.prefix_digest_lens)
    if lens and len(lens) != len(message.prefix_digests):
        raise InvalidRequest("prefix_digest_lens", f"has {len(lens)} entries for {len(message.prefix_digests)} of prefix_digests")
    if any(left >= right for left, right in itertools.pairwise((0, *lens))) or (lens and lens[-1] > message.prefix_len):
        raise InvalidRequest("prefix_digest_lens", f"must ascend from 1 to at most prefix_len, {message.prefix_len}")
    return PlacementWish(
        request_id=name("request_id", message.request_id),
        tenant=name("tenant", message.tenant),
        prefix_len=bounded("prefix_len", message.prefix_len, 1),
        max_tokens=bounded("max_tokens", message.max_tokens, 1),
        num_samples=bounded("num_samples", message.num_samples or 1, 1),
        fingerprint=name("fingerprint", message.fingerprint),
        exclude=frozenset(name("exclude", endpoint, MAX_ADDRESS_LEN) for endpoint in message.exclude),
        wants_drafts=message.wants_drafts,
        prefix_digests=tuple(message.prefix_digests),
        prefix_digest_lens=lens,
    )


def _pair_to_proto(drafter: str, pair: PairMeasurement) -> pb.PairMeasurement:
    return pb.PairMeasurement(
        drafter=drafter,
        round_trip_us=pair.round_trip_us,
        acceptance_rate=-1.0 if pair.acceptance_rate is None else pair.acceptance_rate,
        connected=pair.connected,
        late_share=pair.late_share,
    )


def _pair(field: str, message: pb.PairMeasurement) -> PairMeasurement:
    rate = finite(f"{field}.acceptance_rate", message.acceptance_rate, -1.0, 1.0)
    round_trip_us = bounded(f"{field}.round_trip_us", message.round_trip_us, 0, MAX_POSITION)
    late_share = finite(f"{field}.late_share", message.late_share, 0.0, 1.0)
    return PairMeasurement(round_trip_us, None if rate < 0.0 else rate, message.connected, late_share)


def _cost(field: str, message: pb.Replica) -> tuple[tuple[int, float], ...]:
    rows, costs = message.cost_rows, message.cost_us
    if len(rows) != len(costs) or len(rows) > MAX_COST_POINTS:
        raise InvalidRequest(f"{field}.cost_us", f"has {len(costs)} entries for {len(rows)} of cost_rows, at most {MAX_COST_POINTS}")
    if any(left >= right for left, right in itertools.pairwise(rows)):
        raise InvalidRequest(f"{field}.cost_rows", "must ascend")
    return tuple((int(row), finite(f"{field}.cost_us", us, 0.0, MAX_US)) for row, us in zip(rows, costs, strict=True))
