"""This verifier as an entry of the fleet: what a coordinator is told with every heartbeat.

Reads what the engine thread has published and what the pairs know. Runs on the event loop. Must not know coordinators.
"""

from __future__ import annotations

from collections.abc import Iterator

from outrider.engine.contract import EngineLimits
from outrider.types.fleet import PairMeasurement, Replica, Role
from outrider.types.identity import ModelIdentity
from verifier_service.pairs import Pairs
from verifier_service.resident import RESIDENT
from verifier_service.scheduler import Scheduler


class FleetEntry:
    """replica_id, incarnation, endpoint: of this process. One for its life."""

    def __init__(self, replica_id: str, incarnation: int, endpoint: str, max_sessions: int) -> None:
        self._replica_id = replica_id
        self._incarnation = incarnation
        self._endpoint = endpoint
        self._max_sessions = max_sessions

    def now(self, identity: ModelIdentity, limits: EngineLimits, scheduler: Scheduler, pairs: Pairs, *, draining: bool) -> Replica:
        """As of the engine thread's last snapshot."""
        snapshot = scheduler.snapshot
        return Replica(
            replica_id=self._replica_id,
            incarnation=self._incarnation,
            role=Role.VERIFIER,
            endpoint=self._endpoint,
            identity=identity,
            draining=draining,
            num_sessions=snapshot.num_sessions,
            max_sessions=self._max_sessions,
            kv_blocks_used=limits.num_blocks - snapshot.num_free_blocks,
            kv_blocks_total=limits.num_blocks,
            block_len=limits.block_len,
            cost=snapshot.cost,
            sequence_us=snapshot.sequence_us,
            queue_us=snapshot.queue_us,
            pairs=dict(_measurements(scheduler, pairs)),
        )


def _measurements(scheduler: Scheduler, pairs: Pairs) -> Iterator[tuple[str, PairMeasurement]]:
    rates, late = scheduler.snapshot.acceptance, scheduler.snapshot.late_share

    def measured(endpoint: str, round_trip_us: int, connected: bool) -> tuple[str, PairMeasurement]:
        return endpoint, PairMeasurement(round_trip_us, rates.get(endpoint), connected, late.get(endpoint, 0.0))

    if (resident := scheduler.resident) is not None:
        yield measured(RESIDENT, 0, not resident.problem)
    for endpoint, round_trip_us in pairs.past_round_trips_us.items():
        yield measured(endpoint, round_trip_us, False)
    for pair in pairs.all():
        yield measured(pair.endpoint, pair.clock.round_trip_ns // 1000, pair.is_connected)
