"""A replica's heartbeat: says to every coordinator what this process is and holds, as often as it is asked to.

Knows FleetService.Announce, epochs and pauses. Must not know what is announced: a snapshot is handed in, and so is what to do when the
process is told to drain or finds itself superseded. A coordinator that does not answer is asked again after a bounded pause, and is never
an error for anybody's request; so is one whose heartbeat could not be made, for a replica that ends announcing is lost to its fleet.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc

from outrider.errors import InvalidRequest, OutriderError, Superseded
from outrider.rpc.channel import open_channel
from outrider.rpc.convert.fleet import replica_to_proto
from outrider.rpc.status import error_from_rpc
from outrider.types.fleet import Replica
from outrider.v1 import fleet_pb2 as pb
from outrider.v1.fleet_pb2_grpc import FleetServiceStub

_LOG = logging.getLogger(__name__)
SUPERSEDED_EXIT_CODE = 3


@dataclass(frozen=True, slots=True)
class AnnouncerLimits:
    """Seconds. timeout_s: of one heartbeat. min_pause_s, max_pause_s: bounds on what a coordinator may ask for. min_backoff_s,
    max_backoff_s: after a heartbeat that failed, doubling. leader_memory_s: an epoch not heard of for so long gives no orders any more, so
    that an older coordinator is obeyed again where it is the only one left. farewell_s: for the last heartbeat of one that drained."""

    timeout_s: float = 2.0
    min_pause_s: float = 0.05
    max_pause_s: float = 30.0
    min_backoff_s: float = 0.1
    max_backoff_s: float = 1.0
    leader_memory_s: float = 30.0
    farewell_s: float = 0.5


@dataclass(slots=True)
class _Heard:
    epoch: int
    at_s: float


class Announcer:
    """`start` inside the event loop, `stop` in the end. on_drain: called once, at the order of the newest coordinator.
    on_superseded: called once; nothing is announced after it. snapshot: called in the event loop, once a heartbeat. clock_s: monotonic."""

    def __init__(
        self,
        coordinators: Sequence[str],
        snapshot: Callable[[], Replica],
        on_drain: Callable[[], None],
        on_superseded: Callable[[], None],
        limits: AnnouncerLimits | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_superseded = False
        self._coordinators = tuple(coordinators)
        self._snapshot = snapshot
        self._on_drain = on_drain
        self._on_superseded = on_superseded
        self._limits = limits or AnnouncerLimits()
        self._clock_s = clock_s
        self._heard: dict[str, _Heard] = {}
        self._told_to_drain = False
        self._disobeyed: set[str] = set()  # of the coordinators
        self._is_leaving = False
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to announce."""
        self._tasks = [asyncio.create_task(self._keep_announcing(address), name=f"announce {address}") for address in self._coordinators]

    def announce_now(self) -> None:
        """Something that placement should know has changed: do not wait until the next heartbeat is due."""
        self._news.set()
        self._news = asyncio.Event()

    async def stop(self) -> None:
        """Announce no more. Who drains says so once more, however short its drain was; else the lease runs out."""
        if self._tasks and self._snapshot().draining:
            self._is_leaving = True
            self.announce_now()
            await asyncio.wait(self._tasks, timeout=self._limits.farewell_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def leading_epoch(self) -> int:
        """The largest epoch heard of lately; 0 when none was."""
        oldest_s = self._clock_s() - self._limits.leader_memory_s
        return max((heard.epoch for heard in self._heard.values() if heard.at_s >= oldest_s), default=0)

    async def _keep_announcing(self, address: str) -> None:
        async with open_channel(address) as channel:
            stub = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
            backoff_s = self._limits.min_backoff_s
            problem: str | None = ""  # None: it takes heartbeats, and that was said
            while not self.is_superseded:
                news, is_last = self._news, self._is_leaving
                try:
                    pause_s = await self._announce(stub, address)
                    if problem is not None:
                        _LOG.info("coordinator %s knows this replica", address)
                    backoff_s, problem = self._limits.min_backoff_s, None
                except Superseded as error:
                    self._end(address, error)
                    return
                except Exception as error:  # noqa: BLE001 -- the task's edge: the next heartbeat may be one that can be made
                    problem = _logged(address, error, problem)
                    pause_s = backoff_s * random.uniform(0.5, 1.0)
                    backoff_s = min(self._limits.max_backoff_s, backoff_s * 2)
                if is_last:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await news.wait()

    async def _announce(self, stub: FleetServiceStub, address: str) -> float:
        """One heartbeat; returns the seconds until the next one is due. Raises what the coordinator's status says."""
        request = pb.AnnounceRequest(replica=replica_to_proto(self._snapshot()))
        try:
            response: pb.AnnounceResponse = await stub.Announce(request, timeout=self._limits.timeout_s)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure) from failure
        self._heard[address] = _Heard(response.epoch, self._clock_s())
        if response.drain:
            self._ordered_to_drain(address, response.epoch)
        return min(self._limits.max_pause_s, max(self._limits.min_pause_s, response.announce_every_ms / 1000))

    def _ordered_to_drain(self, address: str, epoch: int) -> None:
        """With every heartbeat, until this process has ended."""
        if self._told_to_drain:
            return
        if epoch >= self.leading_epoch():
            self._told_to_drain = True
            _LOG.info("coordinator %s wants this replica to drain", address)
            self._on_drain()
        elif address not in self._disobeyed:
            self._disobeyed.add(address)
            _LOG.warning("coordinator %s wants this replica to drain, but orders are taken from the one that was started last", address)

    def _end(self, address: str, error: Superseded) -> None:
        if not self.is_superseded:
            self.is_superseded = True
            _LOG.error("coordinator %s: %s; this process ends", address, error)
            self._on_superseded()


def drain_this_process() -> None:
    """As an operator's SIGTERM: no new work, what there is may finish within the grace."""
    os.kill(os.getpid(), signal.SIGTERM)


def end_this_process() -> None:
    """As an operator who asks twice: what this process holds is void, so nothing is waited for."""
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)  # of another kind: two alike may arrive as one


def _logged(address: str, error: Exception, known: str | None) -> str:
    """The problem as a sentence, logged when it is not the known one: an absent coordinator says nothing new with every pause, nor does a
    fault of ours, whose sentence may hold another number each time."""
    if not isinstance(error, OutriderError):
        fault = type(error).__name__
        if fault != known:
            _LOG.error("no heartbeat for coordinator %s could be made; it is tried again", address, exc_info=error)
        return fault
    if str(error) != known:
        level = logging.ERROR if isinstance(error, InvalidRequest) else logging.WARNING
        _LOG.log(level, "coordinator %s does not take heartbeats: %s", address, error)
    return str(error)
