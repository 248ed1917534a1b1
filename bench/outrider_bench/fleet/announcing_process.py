"""The simulated fleet announcing itself at a real coordinator, in a process of its own: who asks for places is not to share an event loop
with thousands of heartbeats, which in service come from everywhere.

Run as `python -m outrider_bench.fleet.announcing_process ADDRESS VERIFIERS DRAFTERS SEED`. Prints a ready line once it sends, and on
SIGTERM how many heartbeats a second were answered. Must not know placements.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.rpc.channel import open_channel, wait_ready
from outrider.rpc.server import run_service
from outrider.v1.fleet_pb2_grpc import FleetServiceStub
from outrider_bench.fleet.announced_world import Heartbeats, replicas_of
from outrider_bench.fleet.world import World, make_world

START_S = 120.0
STOP_S = 10.0
POLL_S = 0.001


class Announcing:
    """heartbeats_per_s: that were answered, once the block of `announcing` is over."""

    heartbeats_per_s = 0.0


@contextmanager
def announcing(address: str, world: World, seed: int) -> Iterator[Announcing]:
    """Everybody of make_world's world of this seed sends heartbeats for the block's time, as often as the coordinator asks for. Raises
    StartFailed."""
    found = Announcing()
    sizes = (str(len(world.verifiers)), str(len(world.drafters)))
    command = ServiceCommand("announcing", ("-m", "outrider_bench.fleet.announcing_process", address, *sizes, str(seed)))
    with tempfile.TemporaryDirectory(prefix="outrider-announcing-") as folder:
        process = ServiceProcess(command, Path(folder) / "announcing.log")
        try:
            process.wait_ready(time.monotonic() + START_S)
            yield found
        finally:
            process.stop(STOP_S)
        found.heartbeats_per_s = float(json.loads(process.log_tail(1))["heartbeats_per_s"])


async def _announce(address: str, world: World) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with open_channel(address) as channel:
        await wait_ready(channel, address, START_S)
        stub: Any = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
        heartbeats = Heartbeats(stub, replicas_of(world))
        await heartbeats.all_once()  # tells how often it wants them
        num_before, begin_s = heartbeats.num_sent, time.monotonic()
        sending = asyncio.create_task(heartbeats.keep_sending())
        while heartbeats.num_sent == num_before:
            await asyncio.sleep(POLL_S)
        print(json.dumps({"ready": True}), flush=True)
        await stopping.wait()
        per_s = (heartbeats.num_sent - num_before) / (time.monotonic() - begin_s)
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
    print(json.dumps({"heartbeats_per_s": per_s}), flush=True)


def main() -> None:
    """Until SIGTERM."""
    address, num_verifiers, num_drafters, seed = sys.argv[1:]
    run_service(_announce(address, make_world(int(num_verifiers), int(num_drafters), int(seed))))


if __name__ == "__main__":
    main()
