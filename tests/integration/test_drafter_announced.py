"""A drafter's process in a fleet: it announces itself, ends with 0 when told to drain, and with 3 when another has taken its name.

pytest tests/integration/test_drafter_announced.py
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from fakes_coordinator import FakeFleet, coordinator_over, fake_replica
from fakes_models import VOCAB, make_model
from forked_services import ForkedService
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.types.fleet import Role

START_S = 90.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft-model")
    make_model("llama", folder)
    return folder


async def started(model: Path, folder: Path, coordinator: str) -> ServiceProcess:
    service = ("-m", "drafter_service", "--model", str(model), "--listen", f"unix:{folder}/d.sock", "--threads", "1")
    command = ServiceCommand("drafter", (*service, "--coordinator", coordinator, "--replica-id", "d-0"))
    process = ForkedService(command, folder / "drafter.log")
    await asyncio.to_thread(process.wait_ready, time.monotonic() + START_S)
    return process


async def ended(process: ServiceProcess) -> int:
    """The exit code of a process that ends by itself."""
    return await asyncio.wait_for(asyncio.to_thread(process._process.wait), START_S)


async def test_a_drafter_says_what_it_is_and_drains_when_told_to(model: Path, tmp_path: Path) -> None:
    fleet = FakeFleet()
    async with coordinator_over(fleet) as coordinator:
        process = await started(model, tmp_path, coordinator)
        try:
            await fleet.until(lambda: len(fleet.announced) >= 2)
            replica = fleet.known["d-0"]
            assert (replica.role, replica.endpoint) == (Role.DRAFTER, f"unix:{tmp_path}/d.sock")
            assert (replica.identity.vocab_size, replica.num_sessions, replica.max_sessions) == (VOCAB, 0, 256)
            assert replica.draft_us > 0.0
            assert abs(replica.incarnation - time.time_ns()) < START_S * 1e9
            fleet.drain("d-0")
            assert await ended(process) == 0
            assert fleet.known["d-0"].draining, "it said so before it ended"
        finally:
            process.stop(START_S)


async def test_a_drafter_whose_name_was_taken_ends_with_a_sentence(model: Path, tmp_path: Path) -> None:
    fleet = FakeFleet()
    fleet.known["d-0"] = fake_replica("d-0", role=Role.DRAFTER, incarnation=2**63)
    async with coordinator_over(fleet) as coordinator:
        process = await started(model, tmp_path, coordinator)
        try:
            assert await ended(process) == 3
            assert "started anew; this process ends" in process.log_tail()
        finally:
            process.stop(START_S)
