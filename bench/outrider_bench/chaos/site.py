"""Three machines, as loopback addresses of their own: three verifiers, two drafters, the links to them, two coordinators, and one gateway.

Knows who is where, how each is started again at its own address, and how a fault is carried out and ended. Replicas announce the near ends
of their links to both coordinators, and the gateway knows of them from there only. Must not know requests, nor when a fault is due.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from outrider.cli.connection import Connection
from outrider.errors import OutriderError, Unavailable
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider_bench.chaos.coordinator import Coordinator
from outrider_bench.chaos.nursery import Nursery
from outrider_bench.chaos.wire import Wire, Wires
from outrider_bench.loopback import free_address

MACHINES = ("127.0.1.1", "127.0.1.2", "127.0.1.3")
VERIFIER_MACHINES = (1, 2, 0)  # the last one beside the gateway is the warm spare: it takes part like the others
DRAFTER_MACHINES = (1, 2)
COORDINATOR_MACHINES = (1, 2)
COMMON = ("--threads", "1", "--numerics", "invariant", "--kv-mib", "64")
# What is slow must not keep a verifier from serving.
VERIFIER_OPTIONS = (*COMMON, "--pacing", "serial", "--wait-drafters-s", "2", "--max-sessions", "64")
START_TIMEOUT_S = 60.0
SLOW_S = 0.05
POLL_S = 0.05


@dataclass
class Replica:
    """A process that can be hurt. hurt: what it suffers from at present beside being dead; incarnations: how often it was started.
    drained_s: when it was last told to drain. wire: the link that others reach it by; None: they reach it directly."""

    name: str
    endpoint: str
    options: tuple[str, ...]
    nursery: Nursery
    wire: Wire | None = None
    pid: int = 0
    incarnations: int = 0
    drained_s: float = 0.0
    hurt: set[str] = field(default_factory=set)

    @property
    def link(self) -> Wire:
        """Its wire, where there is one."""
        assert self.wire is not None, f"{self.name} is reached directly"
        return self.wire

    def is_serving(self) -> bool:
        """Whether it answers at its own address, past any link, and nothing is wrong with it."""
        if self.hurt or self.nursery.is_over(self.pid):
            return False
        try:
            with Connection(self.endpoint) as connection:
                return connection.is_serving()
        except OutriderError:
            return False


@dataclass(frozen=True, slots=True)
class Drain:
    """One that is over. code: the exit code, which should be 0."""

    name: str
    code: int
    took_s: float


class Site:
    """Everything that runs. Use as a context manager: entering it starts all, leaving it ends all. drains: those that are over."""

    def __init__(self, target: str, draft: str, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._models = (target, draft)
        self.verifiers: list[Replica] = []
        self.drafters: list[Replica] = []
        self.coordinators: list[Coordinator] = []
        self.drains: list[Drain] = []
        self.gateway = ""
        self._wires = Wires()
        self._lock = threading.Lock()

    def _start(self) -> None:
        """Load both models once, start every process and wait until all serve. Raises Unavailable or StartFailed with a log's end."""
        self._stack.enter_context(self._wires)
        nurseries = [
            self._stack.enter_context(Nursery(role, ("--model", model, *options), self._folder / f"{role}s.log"))
            for role, model, options in (("verifier", self._models[0], VERIFIER_OPTIONS), ("drafter", self._models[1], COMMON))
        ]
        self.coordinators = [self._coordinator(number, machine) for number, machine in enumerate(COORDINATOR_MACHINES)]
        self.start_coordinators()
        for nursery in nurseries:
            nursery.wait_ready()
        self.drafters = [self._drafter(number, machine, nurseries[1]) for number, machine in enumerate(DRAFTER_MACHINES)]
        self.verifiers = [self._verifier(number, machine, nurseries[0]) for number, machine in enumerate(VERIFIER_MACHINES)]
        for coordinator in self.coordinators:
            coordinator.await_ready()
        for replica in (*self.drafters, *self.verifiers):
            self.give_birth(replica)
        self.gateway = free_address(MACHINES[0])
        command = ("-m", "outrider.gateway", "--listen", self.gateway, "--model-dir", self._models[0], *self._coordinator_options())
        gateway = ServiceProcess(ServiceCommand("gateway", command), self._folder / "gateway.log")
        self._stack.callback(gateway.stop, 10.0)
        gateway.wait_ready(time.monotonic() + START_TIMEOUT_S)
        for replica in self.replicas():
            self.await_serving(replica)

    def replicas(self) -> Iterator[Replica]:
        """Everybody who can be hurt."""
        yield from self.verifiers
        yield from self.drafters

    def give_birth(self, replica: Replica) -> None:
        """Start it at its address; whoever had it before must be over."""
        give_birth(replica, self._folder)

    def await_serving(self, replica: Replica) -> None:
        """Return once it answers; raises Unavailable when it does not."""
        await_serving(replica, self._folder)

    # --- faults -----------------------------------------------------------------------------------------------------------

    def kill(self, replica: Replica) -> None:
        """kill -9, and another in its place at once."""
        os.kill(replica.pid, signal.SIGKILL)
        replica.nursery.wait_ended(replica.pid)
        replica.hurt.discard("stopped")
        self.give_birth(replica)

    def stop(self, replica: Replica) -> None:
        """SIGSTOP: it holds its connections and says nothing."""
        replica.hurt.add("stopped")
        os.kill(replica.pid, signal.SIGSTOP)

    def go_on(self, replica: Replica) -> None:
        """SIGCONT: it does not know that it was away."""
        replica.hurt.discard("stopped")
        if not replica.nursery.is_over(replica.pid):
            os.kill(replica.pid, signal.SIGCONT)

    def cut(self, replica: Replica) -> None:
        """Its link is silent. Its heartbeats take another way, so that coordinators still send requests there."""
        replica.hurt.add("cut")
        self._wires.cut(replica.link)

    def mend(self, replica: Replica) -> None:
        """Its link is whole."""
        replica.hurt.discard("cut")
        self._wires.mend(replica.link)

    def slow(self, replica: Replica, delay_s: float) -> None:
        """Its link takes so long, each way."""
        self._wires.slow(replica.link, delay_s)

    def drain(self, replica: Replica) -> None:
        """SIGTERM: it ends by itself, once nobody needs it any more."""
        replica.hurt.add("draining")
        replica.drained_s = time.monotonic()
        os.kill(replica.pid, signal.SIGTERM)

    def replace(self, replica: Replica) -> None:
        """Another in the place of one that drains, once it has ended."""
        ended = replica.nursery.wait_ended(replica.pid)
        self.drains.append(Drain(replica.name, ended.code, ended.at_s - replica.drained_s))
        replica.hurt.discard("draining")
        self.give_birth(replica)

    def kill_coordinators(self, victims: Sequence[Coordinator]) -> None:
        """kill -9; requests go on without them."""
        for coordinator in victims:
            coordinator.kill()

    def start_coordinators(self) -> None:
        """Those that do not run, at their addresses, knowing nobody."""
        for coordinator in self.coordinators:
            if not coordinator.is_running:
                coordinator.start()

    # --- building ---------------------------------------------------------------------------------------------------------

    def _coordinator(self, number: int, machine: int) -> Coordinator:
        coordinator = Coordinator(f"coordinator{number}", free_address(MACHINES[machine]), self._folder)
        self._stack.callback(coordinator.stop)
        return coordinator

    def _coordinator_options(self) -> list[str]:
        return [option for coordinator in self.coordinators for option in ("--coordinator", coordinator.address)]

    def _drafter(self, number: int, machine: int, nursery: Nursery) -> Replica:
        """With one link, from all verifiers."""
        return self._replica(f"drafter{number}", machine, nursery)

    def _verifier(self, number: int, machine: int, nursery: Nursery) -> Replica:
        """With one link, from the gateway. Both drafters are configured, for requests that nobody placed."""
        drafters = [option for drafter in self.drafters for option in ("--drafter", drafter.link.listen)]
        return self._replica(f"verifier{number}", machine, nursery, "--verifier-id", f"verifier{number}", *drafters)

    def _replica(self, name: str, machine: int, nursery: Nursery, *options: str) -> Replica:
        """The near end of its link is what others know it by."""
        endpoint = free_address(MACHINES[machine])
        wire = self._wires.add(free_address(MACHINES[0]), endpoint)
        membership = (*self._coordinator_options(), "--replica-id", name, "--advertise", wire.listen)
        return Replica(name, endpoint, ("--listen", endpoint, *membership, *options), nursery, wire)

    def __enter__(self) -> Site:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for replica in self.replicas():
            if replica.pid:
                self.go_on(replica)
        self._stack.close()


def give_birth(replica: Replica, folder: Path) -> None:
    """Start it at its address, its log in the folder; whoever had the address before must be over."""
    replica.incarnations += 1
    replica.pid = replica.nursery.spawn(replica.options, folder / f"{replica.name}.log")


def await_serving(replica: Replica, folder: Path) -> None:
    """Return once it answers; raises Unavailable with the end of its log when it does not."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not replica.is_serving():
        if time.monotonic() > deadline or replica.nursery.is_over(replica.pid):
            log = (folder / f"{replica.name}.log").read_text(errors="replace")[-1500:]
            raise Unavailable(f"{replica.name} does not serve:\n{log}")
        time.sleep(POLL_S)
