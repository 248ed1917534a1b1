"""The fleet's messages: what a replica says of itself comes back as it was, and what no replica could say is refused by its field."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fakes_drafter_service import table_identity
from outrider.errors import InvalidRequest
from outrider.rpc.convert.fleet import MAX_COST_POINTS, MAX_EXCLUDED, replica_from_proto, replica_to_proto, wish_from_proto, wish_to_proto
from outrider.types.fleet import MAX_PREFIX_DIGESTS, PairMeasurement, PlacementWish, Replica, Role
from outrider.v1 import fleet_pb2 as pb

VERIFIER = Replica(
    replica_id="v1",
    incarnation=7,
    role=Role.VERIFIER,
    endpoint="10.0.0.1:70",
    identity=table_identity(50),
    draining=True,
    num_sessions=3,
    max_sessions=32,
    kv_blocks_used=4,
    kv_blocks_total=90,
    block_len=16,
    cost=((1, 900.0), (8, 1100.5)),
    sequence_us=62.5,
    queue_us=12.5,
    pairs={"10.0.0.2:71": PairMeasurement(150, 0.75, True, 0.125), "10.0.0.3:71": PairMeasurement()},
)
DRAFTER = Replica("d1", 9, Role.DRAFTER, "unix:/d", table_identity(50), max_sessions=256, draft_us=66.0, read_us=7.5)
WISH = PlacementWish("r", "t", 10, 64, 2, "f", frozenset({"a:1", "b:2"}), False, (b"x" * 16, b"y" * 16), (4, 8))


@pytest.mark.parametrize("replica", [VERIFIER, DRAFTER], ids=lambda replica: replica.replica_id)
def test_a_replica_comes_back_as_it_was(replica: Replica) -> None:
    assert replica_from_proto(pb.Replica.FromString(replica_to_proto(replica).SerializeToString())) == replica


def test_a_wish_comes_back_as_it_was_and_no_samples_are_one() -> None:
    assert wish_from_proto(wish_to_proto(WISH)) == WISH
    assert wish_from_proto(pb.PlaceRequest(prefix_len=1, max_tokens=1)).num_samples == 1


def _changed(change: Callable[[pb.Replica], object]) -> pb.Replica:
    message = replica_to_proto(VERIFIER)
    change(message)
    return message


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("replica.role", lambda message: message.ClearField("role")),
        ("replica.replica_id", lambda message: message.ClearField("replica_id")),
        ("replica.max_sessions", lambda message: message.ClearField("max_sessions")),
        ("replica.identity.numerics", lambda message: message.identity.ClearField("numerics")),
        ("replica.cost_us", lambda message: message.cost_us.append(1.0)),
        ("replica.cost_us", lambda message: message.cost_us.__setitem__(0, float("nan"))),
        ("replica.cost_rows", lambda message: message.cost_rows.__setitem__(1, 1)),
        (
            "replica.cost_us",
            lambda message: (message.cost_us.extend([1.0] * MAX_COST_POINTS), message.cost_rows.extend([9] * MAX_COST_POINTS)),
        ),
        ("replica.queue_us", lambda message: setattr(message, "queue_us", -1.0)),
        ("replica.draft_us", lambda message: setattr(message, "draft_us", float("inf"))),
        ("replica.read_us", lambda message: setattr(message, "read_us", -1.0)),
        ("replica.cost_sequence_us", lambda message: setattr(message, "cost_sequence_us", float("nan"))),
        ("replica.pairs.late_share", lambda message: setattr(message.pairs[0], "late_share", 1.5)),
        ("replica.pairs.acceptance_rate", lambda message: setattr(message.pairs[0], "acceptance_rate", 2.0)),
    ],
)
def test_what_no_replica_says_is_refused_by_its_field(field: str, change: Callable[[pb.Replica], object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        replica_from_proto(_changed(change))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("prefix_len", pb.PlaceRequest(max_tokens=1)),
        ("max_tokens", pb.PlaceRequest(prefix_len=1)),
        ("exclude", pb.PlaceRequest(prefix_len=1, max_tokens=1, exclude=["a"] * (MAX_EXCLUDED + 1))),
        ("prefix_digests", pb.PlaceRequest(prefix_len=1, max_tokens=1, prefix_digests=[b"a"] * (MAX_PREFIX_DIGESTS + 1))),
        ("prefix_digests", pb.PlaceRequest(prefix_len=1, max_tokens=1, prefix_digests=[b"a" * 65])),
        *(
            ("prefix_digest_lens", pb.PlaceRequest(prefix_len=9, max_tokens=1, prefix_digests=[b"a", b"b"], prefix_digest_lens=lens))
            for lens in ([4], [0, 4], [4, 4], [4, 10])
        ),
    ],
)
def test_what_no_request_wishes_is_refused_by_its_field(field: str, message: pb.PlaceRequest) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wish_from_proto(message)
    assert caught.value.field == field
