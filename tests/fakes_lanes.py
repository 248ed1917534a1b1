"""A drafter with lanes in this process: the real servicer, drafting thread and door, with a source that guesses from a truth table.

It counts the session frames that its gRPC streams carry, can be held in the middle of a drafting step, and lets a test put its hands on
the sockets of its lanes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafter_service.drafting_thread import LoadedDrafter
from drafter_service.lane_door import LaneDoor
from drafter_service.lanes import VerifierLanes
from drafter_service.scheduler import Scheduler, SchedulerLimits
from drafter_service.servicer import DrafterServicer
from fakes import TableEngine, TruthTable
from fakes_drafting import BookkeepingSource
from outrider.drafting.contract import Proposal, ProposeRequest
from outrider.rpc.lane import Lane
from outrider.rpc.server import RpcServer
from outrider.session.drafter_admission import DrafterBounds
from outrider.v1 import drafter_pb2 as pb
from outrider.v1.drafter_pb2_grpc import add_DrafterServiceServicer_to_server
from verifier_service.lanes import DrafterLanes

WITHIN_S = 60.0
WRONG_EVERY = 5
MAX_MESSAGE_BYTES = 1 << 24
_OF_THE_STREAM = {"hello", "ping", "welcome", "pong"}


class TruthSource(BookkeepingSource):
    """Right but for one position in WRONG_EVERY. let: cleared, it holds the drafting thread in its next step."""

    def __init__(self, table: TruthTable) -> None:
        super().__init__(table.vocab_size)
        self._table = table
        self.let = threading.Event()
        self.let.set()

    def propose(self, requests: list[ProposeRequest]) -> list[Proposal]:
        assert self.let.wait(WITHIN_S)
        return super().propose(requests)

    def _guess(self, context: list[int]) -> int:
        right = self._table.next(len(context), context[-1])
        return right if len(context) % WRONG_EVERY else 1 + right % (self._table.vocab_size - 1)


class CountingServicer(DrafterServicer):
    """num_streams, and num_frames: session frames that they carried, both ways."""

    num_streams = 0
    num_frames = 0

    async def Draft(self, request_iterator: AsyncIterator[pb.DraftRequest], context: Any) -> None:
        self.num_streams += 1
        await super().Draft(self._counted(request_iterator), _CountingContext(self, context))  # type: ignore[arg-type]

    def count(self, message: pb.DraftRequest | pb.DraftResponse) -> None:
        self.num_frames += sum(frame.WhichOneof("frame") not in _OF_THE_STREAM for frame in message.frames)

    async def _counted(self, requests: AsyncIterator[pb.DraftRequest]) -> AsyncIterator[pb.DraftRequest]:
        async for message in requests:
            self.count(message)
            yield message


@dataclass
class _CountingContext:
    servicer: CountingServicer
    context: Any

    async def write(self, message: pb.DraftResponse) -> None:
        self.servicer.count(message)
        await self.context.write(message)


@dataclass
class LaneDrafter:
    """One drafter in this process."""

    servicer: CountingServicer
    scheduler: Scheduler
    source: TruthSource
    address: str
    failures: list[int] = field(default_factory=list)

    @property
    def lanes(self) -> list[Lane]:
        """Its open ends."""
        return lanes_of(self.scheduler._lanes)

    async def until_free(self) -> None:
        """Return once no session is held any more."""
        async with asyncio.timeout(WITHIN_S):
            while self.scheduler.num_sessions or self.source.trees:
                await asyncio.sleep(0)

    async def until_lanes(self, num_lanes: int) -> None:
        """Return once so many lanes are open."""
        async with asyncio.timeout(WITHIN_S):
            while len(self.lanes) != num_lanes:
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving_lane_drafter(
    table: TruthTable, folder: Path, *, with_lanes: bool = True, limits: SchedulerLimits | None = None
) -> AsyncIterator[LaneDrafter]:
    """A drafter on a unix socket. Nothing of it is left afterwards, or the test fails."""
    failures: list[int] = []
    servicer = CountingServicer(limits or SchedulerLimits(), 1, lambda: failures.append(1), with_lanes=with_lanes)
    source = TruthSource(table)
    bounds = DrafterBounds("truth", table.vocab_size, frozenset(), 4096, 4096)
    loaded, scheduler = await servicer.thread.start(lambda: LoadedDrafter(TableEngine(table), source, bounds))
    servicer.serve(loaded, scheduler)
    server = RpcServer([f"unix:{folder}/d.sock"])
    server.add("outrider.v1.DrafterService", add_DrafterServiceServicer_to_server, servicer)
    await server.start()
    door = LaneDoor(server.addresses if with_lanes else (), servicer.lane_for, MAX_MESSAGE_BYTES)
    door.start()
    await server.set_serving()
    try:
        yield LaneDrafter(servicer, scheduler, source, server.address, failures)
    finally:
        source.let.set()
        await server.stop(servicer.drain, 5.0)
        await door.stop()
        await servicer.thread.stop()
    assert servicer.thread.failure is None
    assert not source.trees
    assert not list(folder.glob("*.lane"))


def lanes_of(thread: VerifierLanes | DrafterLanes) -> list[Lane]:
    """What a thread that goes on meanwhile has open."""
    return [port.lane for port in list(thread._set._ports.values())]


def taken_by_the_hand(lane: Lane) -> socket.socket:
    """Another handle on a lane's socket, for what its owner would not do; the caller closes it."""
    return socket.socket(fileno=os.dup(lane.fileno()))


def open_lanes() -> list[Lane]:
    """Every end in this process that nobody has closed."""
    # By type alone: isinstance asks objects that are not ours, and some answer with a warning.
    return [found for found in gc.get_objects() if type(found) is Lane and found.fileno() != -1]
