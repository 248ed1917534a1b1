"""`outrider bench fleet --actor`: what a Place takes at a real coordinator that knows a whole fleet, over gRPC, by the clock and of a core.

Two phases with the same requests one after the other, each finished when so many more (--live) were placed: with every replica's heartbeats
at the pace that the coordinator asks for, as it is in service (sent by a process of their own); and with none between a placement's
beginning and end, for the time of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from rich.table import Table

from outrider.cli.console import make_console
from outrider.rpc.channel import open_channel, wait_ready
from outrider.rpc.convert.fleet import wish_to_proto
from outrider.types.fleet import PlacementWish
from outrider.v1 import fleet_pb2 as pb
from outrider.v1.fleet_pb2_grpc import FleetServiceStub
from outrider_bench.facts import measurement_facts
from outrider_bench.fleet.announced_world import CALL_TIMEOUT_S, Heartbeats, replicas_of
from outrider_bench.fleet.announcing_process import announcing
from outrider_bench.fleet.coordinator_process import START_S, RealCoordinator, coordinator_actor, coordinator_process
from outrider_bench.fleet.workload import MAX_ANSWER_LEN, Turn, Users
from outrider_bench.fleet.world import World
from outrider_bench.markdown_table import markdown_table

LIVE = 1_000  # placements that are not finished, unless the command line says otherwise
WARM_UP = 50  # of a phase, which are not counted
_HEADINGS = ("coordinator", "heartbeats/s", "places", "Place ms p50", "p99", "longest", "ms of a core, p50", "p99")
_TIMES = ("wall_ms_p50", "wall_ms_p99", "wall_ms_p100", "cpu_ms_p50", "cpu_ms_p99")


@dataclass(slots=True)
class Phase:
    """heartbeats_per_s: that were answered meanwhile. wall_s: of each Place; cpu_s: of the coordinator meanwhile, only without heartbeats.
    num_refused: those that found no room."""

    heartbeats_per_s: float = 0.0
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    num_refused: int = 0

    def numbers(self) -> dict[str, float]:
        """For RESULT, milliseconds."""
        found = {"heartbeats_per_s": round(self.heartbeats_per_s, 1), "places": len(self.wall_s), "refused": self.num_refused}
        for clock, times in (("wall", self.wall_s), ("cpu", self.cpu_s)):
            if times:
                found |= {f"{clock}_ms_p{at}": round(float(np.percentile(times, at)) * 1e3, 3) for at in (50, 99, 100)}
        return found


def run(args: argparse.Namespace, world: World, num_places: int, live: int = LIVE) -> int:
    """Measure the process, and with --ray the actor too; show, and print RESULT. live: placements that are not finished, once there are so
    many."""
    found: dict[str, dict[str, Phase]] = {}
    for open_coordinator in (coordinator_process, *((coordinator_actor,) if args.ray else ())):
        with open_coordinator() as coordinator:
            found[coordinator.kind] = asyncio.run(_measure(coordinator, world, num_places, live, args.sim_seed))
    rows = _rows(found)
    title = (
        f"{len(world.verifiers)} verifiers, {len(world.drafters)} drafters: placements over gRPC, one after the other, {live} unfinished"
    )
    _show(title, rows)
    if args.out is not None:
        facts = measurement_facts()
        lines = [f"# {title}", "", *markdown_table(_HEADINGS, rows), ""]
        lines += [f"- {name}: {facts[name]}" for name in ("date", "commit", "command", "machine")]
        args.out.write_text("\n".join([*lines, ""]), encoding="utf-8")
    numbers = {kind: {name: phase.numbers() for name, phase in phases.items()} for kind, phases in found.items()}
    sizes = {"verifiers": len(world.verifiers), "drafters": len(world.drafters), "live": live, "seed": args.sim_seed}
    print("RESULT " + json.dumps(sizes | {"place": numbers}))
    return 0


async def _measure(coordinator: RealCoordinator, world: World, num_places: int, live: int, seed: int) -> dict[str, Phase]:
    async with open_channel(coordinator.address) as channel:
        await wait_ready(channel, coordinator.address, START_S)
        stub: Any = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
        heartbeats = Heartbeats(stub, replicas_of(world))
        for _ in range(2):  # the second knows everybody: what was measured of drafters that had not joined is dropped
            await heartbeats.all_once()
        places = Places(stub, heartbeats, wishes(2 * (num_places + WARM_UP), live, seed), live)
        with announcing(coordinator.address, world, seed) as others:
            served = await places.phase(num_places)
        served.heartbeats_per_s = others.heartbeats_per_s
        return {"with heartbeats": served, "without": await places.phase(num_places, coordinator)}


class Places:
    """Requests one after the other; the oldest of max_live is finished before the next is placed."""

    def __init__(self, stub: Any, heartbeats: Heartbeats, requests: Sequence[pb.PlaceRequest], max_live: int) -> None:
        self._max_live = max_live
        self._stub = stub
        self._heartbeats = heartbeats
        self._requests = deque(requests)
        self._live: deque[pb.PlaceResponse] = deque()

    async def phase(self, num_places: int, coordinator: RealCoordinator | None = None) -> Phase:
        """coordinator: whose time of a core is looked at before and after each, with all heartbeats between two of them; None: nobody's."""
        found, due_s = Phase(), 0.0
        for at in range(WARM_UP + num_places):
            await self._make_room()
            if coordinator is not None and time.monotonic() >= due_s:
                await self._heartbeats.all_once()
                due_s = time.monotonic() + self._heartbeats.pause_s
            cpu_s = 0.0 if coordinator is None else coordinator.cpu_s()
            begin_s = time.perf_counter()
            try:
                self._live.append(await self._stub.Place(self._requests.popleft(), timeout=CALL_TIMEOUT_S))
            except grpc.aio.AioRpcError as failure:
                if failure.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                found.num_refused += 1
            if at >= WARM_UP:
                found.wall_s.append(time.perf_counter() - begin_s)
                if coordinator is not None:
                    found.cpu_s.append(coordinator.cpu_s() - cpu_s)
        return found

    async def _make_room(self) -> None:
        if len(self._live) >= self._max_live:
            oldest = self._live.popleft()
            finish = pb.FinishRequest(placement_id=oldest.placement_id, num_tokens=1, epoch=oldest.epoch)
            await self._stub.Finish(finish, timeout=CALL_TIMEOUT_S)


def wishes(num: int, num_users: int, seed: int) -> list[pb.PlaceRequest]:
    """What the users of the simulated fleet ask, a turn of each in turn."""
    users = Users(min(num, num_users), seed)
    turns = (users.next_turn(at % len(users)) for at in range(num))
    return [wish_to_proto(_wish(f"bench/{at}", turn)) for at, turn in enumerate(turns)]


def _wish(request_id: str, turn: Turn) -> PlacementWish:
    digests = turn.digests(turn.prefix_len), turn.digest_lens
    return PlacementWish(request_id, turn.tenant, turn.prefix_len, MAX_ANSWER_LEN, 1, "", frozenset(), True, *digests)


def _rows(found: Mapping[str, Mapping[str, Phase]]) -> list[list[str]]:
    rows = []
    for kind, phases in found.items():
        for phase in phases.values():
            told = phase.numbers()
            times = [f"{told[key]:g}" if key in told else "" for key in _TIMES]
            rows.append([kind, f"{told['heartbeats_per_s']:g}", f"{told['places']:g}", *times])
    return rows


def _show(title: str, rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title)
    for heading in _HEADINGS:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    make_console().print(table)
