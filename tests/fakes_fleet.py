"""Replicas and wishes with as little said as possible, and the table of a fleet made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from outrider.coordinator.fleet_table import FleetTable
from outrider.types.fleet import PlacementWish, Replica, Role
from outrider.types.identity import ModelIdentity, Numerics

STEP_US = 10_000.0
KNEE = ((1, STEP_US), (32, STEP_US), (64, 2 * STEP_US), (1024, 32 * STEP_US))


def identity(
    vocab_hash: str = "vocabulary", fingerprint: str = "bits", max_context: int = 32_768, noise_revision: int = 1
) -> ModelIdentity:
    return ModelIdentity(
        "model",
        "r",
        "weights",
        vocab_hash,
        32_000,
        "float32",
        Numerics.INVARIANT,
        fingerprint,
        max_context,
        (2,),
        noise_revision=noise_revision,
    )


def verifier(name: str, **fields: Any) -> Replica:
    """Idle, 16 sessions of room, a step of ten milliseconds up to 32 rows."""
    base = Replica(name, 1, Role.VERIFIER, f"{name}:1", identity(), max_sessions=16, kv_blocks_total=10_000, block_len=16, cost=KNEE)
    return replace(base, **fields)


def drafter(name: str, **fields: Any) -> Replica:
    """Idle, a millisecond a token."""
    return replace(Replica(name, 1, Role.DRAFTER, f"{name}:1", identity(), max_sessions=16, draft_us=1_000.0), **fields)


def wish(**fields: Any) -> PlacementWish:
    """A hundred tokens to read, a hundred to come."""
    return replace(PlacementWish("request", prefix_len=100, max_tokens=100), **fields)


def table_of(replicas: Iterable[Replica]) -> FleetTable:
    """Everybody after two heartbeats, the second of which knows everybody (measurements of pairs)."""
    everybody = list(replicas)
    table = FleetTable(max(1, len(everybody)))
    seats = [table.join(replica) for replica in everybody]
    for seat, replica in zip(seats, everybody, strict=True):
        table.update(seat, replica)
    return table
