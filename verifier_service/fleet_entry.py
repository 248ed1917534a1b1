"""This verifier as an entry of the fleet: what a coordinator is told with every heartbeat.

Reads what the engine thread has published and what the pairs know. Runs on the event loop. Must not know coordinators.
"""

from __future__ import annotations

from collections.abc import Iterator

from outrider.engine.contract import EngineLimits
from outrider.session.pacing.contract import CostCurve
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
            queue_us=queue_us(snapshot.cost, limits.max_rows, snapshot.num_unread),
            pairs=dict(_measurements(scheduler, pairs)),
        )


def queue_us(cost: tuple[tuple[int, float], ...], max_rows: int, num_unread: int) -> float:
    """What a session admitted now waits for: steps in which prompts of others, num_unread tokens in all, are read first.

    An upper estimate: a step reads of several prompts at once, and equal beginnings are read once.
    """
    if not cost or num_unread <= 0:
        return 0.0
    curve = CostCurve(cost)
    num_full, rest = divmod(num_unread, max_rows)
    return num_full * curve.verify_us(max_rows) + (curve.verify_us(rest) if rest else 0.0)


def _measurements(scheduler: Scheduler, pairs: Pairs) -> Iterator[tuple[str, PairMeasurement]]:
    rates = scheduler.snapshot.acceptance
    if (resident := scheduler.resident) is not None:
        yield RESIDENT, PairMeasurement(0, rates.get(RESIDENT), not resident.problem)
    for pair in pairs.all():
        yield pair.endpoint, PairMeasurement(pair.clock.round_trip_ns // 1000, rates.get(pair.endpoint), pair.is_connected)
