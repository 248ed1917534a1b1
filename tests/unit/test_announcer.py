"""The heartbeat of a replica: when it is sent, whose orders are followed, and what an absent coordinator costs (nothing).

pytest tests/unit/test_announcer.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from drafter_service.settings import parse_settings as drafter_settings
from fakes_coordinator import WAIT_S, FakeFleet, coordinator_over, fake_replica
from outrider.errors import InvalidRequest
from outrider.rpc.announcer import Announcer, AnnouncerLimits
from outrider.rpc.membership import Membership, add_membership_options, membership_from
from outrider.types.fleet import Replica
from verifier_service.settings import parse_settings as verifier_settings

QUICK = AnnouncerLimits(timeout_s=1.0, min_pause_s=0.01, min_backoff_s=0.01, max_backoff_s=0.04)


@pytest.fixture
def socket() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="oc-") as folder:
        yield f"unix:{Path(folder)}/c.sock"


class Process:
    """What happens to the announcing process."""

    def __init__(self) -> None:
        self.drained = asyncio.Event()
        self.ended = asyncio.Event()
        self.num_snapshots = 0
        self.incarnation = 5
        self.draining = False
        self.num_drains = 0
        self.now_s = 0.0

    def snapshot(self) -> Replica:
        self.num_snapshots += 1
        return dataclasses.replace(fake_replica(incarnation=self.incarnation), draining=self.draining)

    def drain(self) -> None:
        self.num_drains += 1
        self.drained.set()

    @contextlib.asynccontextmanager
    async def announced(self, *coordinators: str, limits: AnnouncerLimits = QUICK) -> AsyncIterator[Announcer]:
        announcer = Announcer(coordinators, self.snapshot, self.drain, self.ended.set, limits, lambda: self.now_s)
        announcer.start()
        try:
            yield announcer
        finally:
            await announcer.stop()


async def test_heartbeats_go_to_every_coordinator_with_a_fresh_snapshot_each() -> None:
    first, second = FakeFleet(), FakeFleet(epoch=2)
    process = Process()
    async with coordinator_over(first) as a, coordinator_over(second) as b, process.announced(a, b):
        await first.until(lambda: len(first.announced) >= 3)
        await second.until(lambda: len(second.announced) >= 3)
    assert process.num_snapshots >= 6


async def test_a_coordinator_that_comes_late_is_found_and_one_that_comes_back_too(socket: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    process, fleet = Process(), FakeFleet()
    async with process.announced(socket):
        for _ in range(2):
            num_before = len(fleet.announced)
            async with coordinator_over(fleet, socket):
                await fleet.until(lambda: len(fleet.announced) >= num_before + 2)  # noqa: B023
            async with asyncio.timeout(WAIT_S):
                while not (told := lines_of(caplog)) or "does not take" not in told[-1]:
                    await asyncio.sleep(0.01)
    assert not process.ended.is_set()
    assert [line for line in lines_of(caplog) if "does not take" not in line] == [f"coordinator {socket} knows this replica"] * 2, (
        "each time once, not each beat"
    )


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "outrider.rpc.announcer"]


async def test_pauses_after_failures_double_up_to_the_bound(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()
    timeout = asyncio.timeout

    def noted(delay: float | None) -> asyncio.Timeout:
        pauses.append(delay or 0.0)
        if len(pauses) == 6:
            enough.set()
        return timeout(0.0)

    monkeypatch.setattr("outrider.rpc.announcer.random.uniform", lambda low, high: high)
    async with Process().announced(socket):
        monkeypatch.setattr("outrider.rpc.announcer.asyncio.timeout", noted)
        async with timeout(WAIT_S):
            await enough.wait()
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.04]


@pytest.mark.parametrize("max_sessions", [1 << 40, -1])
async def test_a_heartbeat_that_cannot_be_made_is_told_and_tried_again(
    max_sessions: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, process, num_unmade = FakeFleet(), Process(), 4
    least: list[float] = []

    def snapshot() -> Replica:
        replica = process.snapshot()
        return replica if process.num_snapshots > num_unmade else dataclasses.replace(replica, max_sessions=max_sessions)

    def pause(low: float, high: float) -> float:
        least.append(low)
        return high

    monkeypatch.setattr("outrider.rpc.announcer.random.uniform", pause)
    async with coordinator_over(fleet) as address, asyncio.timeout(WAIT_S):
        announcer = Announcer((address,), snapshot, process.drain, process.ended.set, QUICK)
        announcer.start()
        await fleet.until(lambda: len(fleet.announced) >= 1)
        await announcer.stop()
    assert len(least) == num_unmade, "it paused after each, as after any other failure"
    (fault,) = [record for record in caplog.records if record.name == "outrider.rpc.announcer" and record.levelno >= logging.WARNING]
    assert fault.levelname == "ERROR"
    assert fault.exc_info is not None, "with what went wrong"


async def test_news_are_told_at_once_though_the_next_heartbeat_is_far_off() -> None:
    fleet, process = FakeFleet(), Process()
    async with coordinator_over(fleet) as address, process.announced(address, limits=AnnouncerLimits(min_pause_s=WAIT_S * 2)) as announcer:
        await fleet.until(lambda: len(fleet.announced) == 1)
        announcer.announce_now()
        await fleet.until(lambda: len(fleet.announced) == 2)


async def test_who_drains_says_so_once_more_before_it_goes(socket: str) -> None:
    fleet, process = FakeFleet(), Process()
    quiet = AnnouncerLimits(min_pause_s=WAIT_S * 2)
    async with coordinator_over(fleet) as address:
        async with process.announced(address, socket, limits=quiet):  # nobody is at the other one, which must not keep it long
            await fleet.until(lambda: len(fleet.announced) == 1)
            process.draining = True
        assert [replica.draining for replica in fleet.announced] == [False, True]
        process.draining = False
        async with process.announced(address, limits=quiet):
            await fleet.until(lambda: len(fleet.announced) == 3)
        assert len(fleet.announced) == 3, "who ends in any other way leaves it to the lease"


async def test_a_drain_is_carried_out_once() -> None:
    fleet, process = FakeFleet(draining={"verifier-0"}), Process()
    async with coordinator_over(fleet) as address, process.announced(address):
        await fleet.until(lambda: len(fleet.announced) >= 4)
    assert process.num_drains == 1


async def test_of_two_coordinators_only_the_later_one_gives_orders(caplog: pytest.LogCaptureFixture) -> None:
    older, newer = FakeFleet(epoch=1), FakeFleet(epoch=2)
    process = Process()
    async with coordinator_over(older) as a, coordinator_over(newer) as b, process.announced(a, b):
        await older.until(lambda: len(older.announced) >= 1)
        await newer.until(lambda: len(newer.announced) >= 1)
        older.draining.add("verifier-0")
        num_before = len(older.announced)
        await older.until(lambda: len(older.announced) >= num_before + 3)
        assert not process.drained.is_set()
        refusals = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert refusals == [f"coordinator {a} wants this replica to drain, but orders are taken from the one that was started last"]
        newer.draining.add("verifier-0")
        async with asyncio.timeout(WAIT_S):
            await process.drained.wait()


async def test_an_older_coordinator_is_obeyed_again_once_the_later_one_is_long_gone() -> None:
    older, newer = FakeFleet(epoch=1), FakeFleet(epoch=2)
    process = Process()
    async with coordinator_over(older) as a, contextlib.AsyncExitStack() as life:
        b = await life.enter_async_context(coordinator_over(newer))
        announcer = await life.enter_async_context(process.announced(a, b))
        await newer.until(lambda: len(newer.announced) >= 2)  # the answer to the first has been read
        await older.until(lambda: len(older.announced) >= 2)
        assert announcer.leading_epoch() == 2
        newer.epoch = 0  # whoever answers there now is not the later one any more
        num_before = len(newer.announced)
        await newer.until(lambda: len(newer.announced) >= num_before + 2)
        older.draining.add("verifier-0")
        async with asyncio.timeout(WAIT_S):
            await process.drained.wait()


async def test_an_epoch_that_was_not_heard_of_for_long_is_forgotten() -> None:
    fleet, process = FakeFleet(epoch=2), Process()
    async with contextlib.AsyncExitStack() as life:
        async with coordinator_over(fleet) as address:
            announcer = await life.enter_async_context(process.announced(address))
            await fleet.until(lambda: len(fleet.announced) >= 2)
        process.now_s += QUICK.leader_memory_s
        assert announcer.leading_epoch() == 2
        process.now_s += 1.0
        assert announcer.leading_epoch() == 0


async def test_a_superseded_replica_ends_and_announces_no_more() -> None:
    fleet, process = FakeFleet(), Process()
    fleet.known["verifier-0"] = fake_replica(incarnation=6)
    async with coordinator_over(fleet) as address, process.announced(address) as announcer, asyncio.timeout(WAIT_S):
        await process.ended.wait()
        assert announcer.is_superseded
    assert fleet.announced == []
    assert not process.drained.is_set()


def test_the_command_line_of_a_member() -> None:
    parser = argparse.ArgumentParser()
    add_membership_options(parser)

    def parsed(*arguments: str) -> Membership:
        return membership_from(parser.parse_args(arguments))

    member = parsed("--coordinator", "a:1", "--coordinator", "b:1", "--coordinator", "a:1", "--replica-id", "v", "--advertise", "host:0")
    assert member == Membership(("a:1", "b:1"), "v", "host:0")
    assert member.endpoint("0.0.0.0:7071") == "host:7071"
    assert parsed("--coordinator", "a:1", "--replica-id", "v").endpoint("unix:/tmp/v.sock") == "unix:/tmp/v.sock"
    for wrong, field in (
        (("--coordinator", "a:1"), "--replica-id"),
        (("--replica-id", "v"), "--coordinator"),
        (("--coordinator", "nowhere", "--replica-id", "v"), "--coordinator"),
        (("--coordinator", "a:1", "--replica-id", "v" * 129), "--replica-id"),
        (("--coordinator", "a:1", "--replica-id", "v", "--advertise", "host"), "--advertise"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parsed(*wrong)
        assert caught.value.field == field
    with pytest.raises(InvalidRequest, match="every host"):
        Membership(("a:1",), "v").endpoint("0.0.0.0:7071")


@pytest.mark.parametrize("parse", [drafter_settings, verifier_settings])
@pytest.mark.parametrize("listen", ["127.0.0.1:7072", "localhost:0", "[::1]:7072", "unix:/tmp/v.sock"])
def test_an_address_of_this_machine_is_not_announced_to_coordinators_elsewhere(parse: Callable[[list[str]], object], listen: str) -> None:
    line = ["--model", "nowhere", "--listen", listen, "--replica-id", "r", "--coordinator", "10.0.0.1:7069"]
    with pytest.raises(InvalidRequest, match="--listen or --advertise") as caught:
        parse(line)
    assert caught.value.field == "--advertise"
    parse([*line, "--advertise", "10.0.0.2:7072"])
    parse([*line, "--coordinator", "127.0.0.1:7069"])
    with pytest.raises(InvalidRequest, match="this machine only"):
        parse(["--model", "nowhere", "--listen", "0.0.0.0:7072", "--advertise", "127.0.0.1:0", *line[4:]])


@pytest.mark.parametrize("parse", [drafter_settings, verifier_settings])
def test_an_address_that_means_every_host_is_refused_before_a_model_is_loaded(parse: Callable[[list[str]], object]) -> None:
    line = ["--model", "nowhere", "--listen", "0.0.0.0:7072"]
    fleet = ["--coordinator", "h:1", "--replica-id", "r"]
    parse(line)
    parse([*line, *fleet, "--advertise", "10.0.0.2:0"])
    with pytest.raises(InvalidRequest, match="every host") as caught:
        parse([*line, *fleet])
    assert caught.value.field == "--advertise"
