"""A verifier's process in a fleet, with a drafter beside it: what it announces, and how it ends when the fleet wants it to.

pytest tests/integration/test_verifier_announced.py
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes_coordinator import FakeFleet, coordinator_over, fake_replica
from fakes_models import make_model
from forked_services import ForkedService
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.telemetry import names
from outrider.types.fleet import Replica, Role
from scrape import ANY_PORT, Scrape

START_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model("llama", folder)
    return folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="ov-") as name:
        yield Path(name)


def service(name: str, model: Path, folder: Path, coordinator: str, *extra: str) -> ServiceProcess:
    common = ("--model", str(model), "--listen", f"unix:{folder}/{name}.sock", "--threads", "1", "--kv-mib", "16")
    membership = ("--coordinator", coordinator, "--replica-id", f"{name}-0")
    arguments = ("-m", f"{name}_service", *common, *membership, *ANY_PORT, *extra)
    return ForkedService(ServiceCommand(name, arguments), folder / f"{name}.log")


async def ended(process: ServiceProcess) -> int:
    """The exit code of a process that ends by itself."""
    return await asyncio.wait_for(asyncio.to_thread(process._process.wait), START_S)


async def test_a_verifier_says_what_it_is_knows_and_holds_and_ends_with_3_when_its_name_is_taken(model: Path, folder: Path) -> None:
    fleet = FakeFleet()
    drafter_address = f"unix:{folder}/drafter.sock"

    def has_measured(replica: Replica | None) -> bool:
        pair = replica and replica.pairs.get(drafter_address)
        return bool(pair and pair.connected and pair.round_trip_us)

    async with coordinator_over(fleet) as coordinator:
        processes = [service("drafter", model, folder, coordinator)]
        processes.append(service("verifier", model, folder, coordinator, "--drafter", drafter_address, "--max-sessions", "5"))
        try:
            ready = [await asyncio.to_thread(process.wait_ready, time.monotonic() + START_S) for process in processes]
            await fleet.until(lambda: has_measured(fleet.known.get("verifier-0")))
            replica = fleet.known["verifier-0"]
            assert (replica.role, replica.endpoint) == (Role.VERIFIER, f"unix:{folder}/verifier.sock")
            assert (replica.num_sessions, replica.max_sessions, replica.kv_blocks_used, replica.queue_us) == (0, 5, 0, 0.0)
            assert min(replica.kv_blocks_total, replica.block_len) > 0
            assert replica.cost[0][0] == 1
            assert all(us > 0 for _, us in replica.cost)
            assert replica.pairs[drafter_address].acceptance_rate is None, "nothing was drafted yet"
            drafter, verifier = [await asyncio.to_thread(Scrape, line["metrics"]) for line in ready]
            assert verifier.value(names.KV_BLOCKS_FREE, "verifier") == replica.kv_blocks_total
            assert verifier.value(names.REQUESTS_WAITING, "verifier") == 0
            assert drafter.value(names.LIVE_STREAMS, "drafter") == 1
            assert drafter.total(names.GUESSED_TOKEN_SECONDS) > 0
            fleet.known["verifier-0"] = fake_replica("verifier-0", incarnation=2**63)
            assert await ended(processes[1]) == 3
            assert "this process ends" in processes[1].log_tail()
        finally:
            codes = [process.stop(START_S) for process in processes]
    assert codes == [0, 3]


async def test_a_verifier_drains_when_told_to(model: Path, folder: Path) -> None:
    fleet = FakeFleet(draining={"verifier-0"})
    async with coordinator_over(fleet) as coordinator:
        process = service("verifier", model, folder, coordinator)
        try:
            assert await ended(process) == 0
            assert fleet.known["verifier-0"].draining, "it said so before it ended"
        finally:
            process.stop(START_S)
