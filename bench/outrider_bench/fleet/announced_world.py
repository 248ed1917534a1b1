"""The simulated fleet's replicas as a real coordinator hears of them: heartbeats over gRPC, as often as it asks for.

Nobody serves at their addresses. Must not know placements.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from outrider.rpc.convert.fleet import replica_to_proto
from outrider.types.fleet import PairMeasurement, Replica, Role
from outrider.v1 import fleet_pb2 as pb
from outrider_bench.fleet.world import BLOCK_LEN, IDENTITY, MAX_SESSIONS, NUM_BLOCKS, World

MAX_UNDER_WAY = 64
PAIRS_A_VERIFIER = 8  # measured; the others are unknown to it
CALL_TIMEOUT_S = 30.0


def replicas_of(world: World) -> list[Replica]:
    """Everybody, idle, each verifier with some drafters measured."""
    return [_verifier(world, at) for at in range(len(world.verifiers))] + [_drafter(world, at) for at in range(len(world.drafters))]


class Heartbeats:
    """Of all replicas at one coordinator. num_sent, num_late: since the beginning, and those sent more than a pause after they were due."""

    def __init__(self, stub: Any, replicas: Sequence[Replica]) -> None:
        self._stub = stub
        self._messages = [pb.AnnounceRequest(replica=replica_to_proto(replica)) for replica in replicas]
        self.pause_s = 0.0
        self.num_sent = self.num_late = 0

    async def all_once(self) -> None:
        """One of everybody, MAX_UNDER_WAY at a time."""
        waiting = deque(self._messages)

        async def send() -> None:
            while waiting:
                await self._send(waiting.popleft())

        await asyncio.gather(*(send() for _ in range(MAX_UNDER_WAY)))

    async def keep_sending(self) -> None:
        """Until cancelled: everybody once in each pause that the coordinator asks for, evenly spread."""
        due_s = time.monotonic()
        under_way: set[asyncio.Task[None]] = set()
        while True:
            for message in self._messages:
                due_s += self.pause_s / len(self._messages)
                self.num_late += time.monotonic() > due_s + self.pause_s
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                if len(under_way) >= MAX_UNDER_WAY:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.create_task(self._send(message))
                under_way.add(task)
                task.add_done_callback(under_way.discard)

    async def _send(self, message: pb.AnnounceRequest) -> None:
        answer: pb.AnnounceResponse = await self._stub.Announce(message, timeout=CALL_TIMEOUT_S)
        self.pause_s = answer.announce_every_ms / 1000
        self.num_sent += 1


def _verifier(world: World, at: int) -> Replica:
    spec, num_drafters = world.verifiers[at], len(world.drafters)
    known = {(at * PAIRS_A_VERIFIER + near) % num_drafters for near in range(PAIRS_A_VERIFIER)} if num_drafters else set()
    pairs = {
        _address(Role.DRAFTER, drafter): PairMeasurement(world.round_trip_us(at, drafter), world.drafters[drafter].suits, True)
        for drafter in sorted(known)
    }
    return Replica(
        spec.endpoint, 1, Role.VERIFIER, _address(Role.VERIFIER, at), IDENTITY, max_sessions=MAX_SESSIONS, kv_blocks_total=NUM_BLOCKS,
        block_len=BLOCK_LEN, cost=spec.cost, pairs=pairs,
    )  # fmt: skip


def _drafter(world: World, at: int) -> Replica:
    spec = world.drafters[at]
    return Replica(spec.endpoint, 1, Role.DRAFTER, _address(Role.DRAFTER, at), IDENTITY, max_sessions=MAX_SESSIONS, draft_us=spec.draft_us)


def _address(role: Role, at: int) -> str:
    """Of networks that are set aside for benchmarks, and never connected to."""
    network = 18 if role is Role.VERIFIER else 19
    return f"198.{network}.{at // 256}.{at % 256}:7070"
