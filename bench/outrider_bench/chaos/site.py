"""Three machines: three verifiers, two drafters, two coordinators, the links to all of them, two gateways, and a Redis.

Knows who is where, how each is started again at its own address, and how a fault is carried out and ended. Replicas announce the near ends
of their links to both coordinators, and the gateways know of them from there only. Machines are network namespaces, whose cables can be
pulled, or loopback addresses, of which only the links can be cut. Must not know requests, nor when a fault is due.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from outrider.cli.connection import Connection
from outrider.errors import OutriderError, Unavailable
from outrider_bench.chaos.coordinator import Coordinator
from outrider_bench.chaos.gateway_process import GatewayProcess
from outrider_bench.chaos.nursery import Nursery
from outrider_bench.chaos.redis_server import RedisServer
from outrider_bench.chaos.wire import Wire, Wires
from outrider_bench.machine import Machine
from outrider_bench.machines_wish import Machines
from outrider_bench.switched_machines import SwitchedMachines

NUM_MACHINES = 3
GATEWAY_MACHINES = (0, 0)
VERIFIER_MACHINES = (1, 2, 0)  # the last one beside the gateway is the warm spare: it takes part like the others
DRAFTER_MACHINES = (1, 2)
COORDINATOR_MACHINES = (1, 2)
REDIS_MACHINE = 2
UNPLUGGABLE = (1, 2)  # clients have no gateway elsewhere
COMMON = ("--threads", "1", "--numerics", "invariant", "--kv-mib", "64")
# What is slow must not keep a verifier from serving.
VERIFIER_OPTIONS = (*COMMON, "--pacing", "serial", "--wait-drafters-s", "2", "--max-sessions", "64")
START_TIMEOUT_S = 60.0
SLOW_S = 0.05
POLL_S = 0.05


@dataclass
class Replica:
    """A process that can be hurt, on its machine. hurt: what it suffers from at present beside being dead; incarnations: how often it was
    started. drained_s: when it was last told to drain. wire: the link that others reach it by; None: they reach it directly. own_options:
    of options, those that say neither where it is nor who it is."""

    name: str
    endpoint: str
    options: tuple[str, ...]
    nursery: Nursery
    machine: Machine
    wire: Wire | None = None
    pid: int = 0
    incarnations: int = 0
    drained_s: float = 0.0
    hurt: set[str] = field(default_factory=set)
    own_options: tuple[str, ...] = ()

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


@dataclass(frozen=True, slots=True)
class Zombie:
    """A stopped process whose name another has."""

    name: str
    pid: int
    nursery: Nursery


class Site:
    """Everything that runs, on NUM_MACHINES machines. Use as a context manager: entering it starts all, leaving it ends all. drains: those
    that are over. zombies: processes that were replaced while they were stopped, with or without their end."""

    def __init__(self, target: str, draft: str, folder: Path, machines: Machines) -> None:
        self._folder = folder
        self._machines = machines
        self._stack = ExitStack()
        self._models = (target, draft)
        self.verifiers: list[Replica] = []
        self.drafters: list[Replica] = []
        self.coordinators: list[Coordinator] = []
        self.gateways: list[GatewayProcess] = []
        self.drains: list[Drain] = []
        self.zombies: list[Zombie] = []
        self.redis = RedisServer(machines.machines[REDIS_MACHINE].free_address(), folder)
        self._wires = Wires()
        self._unplugged: set[int] = set()
        self._lock = threading.Lock()

    def _start(self) -> None:
        """Load both models once, start every process and wait until all serve. Raises Unavailable or StartFailed with a log's end."""
        self._stack.enter_context(self._wires)
        self._stack.callback(self.redis.stop)
        self.start_redis()
        shared = (*VERIFIER_OPTIONS, "--redis-url", self.redis.url)
        nurseries = [
            self._stack.enter_context(Nursery(role, ("--model", model, *options), self._folder / f"{role}s.log"))
            for role, model, options in (("verifier", self._models[0], shared), ("drafter", self._models[1], COMMON))
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
        self.gateways = [self._gateway(number, machine) for number, machine in enumerate(GATEWAY_MACHINES)]
        self.start_gateways()
        for gateway in self.gateways:
            gateway.await_ready()
        for replica in self.replicas():
            self.await_serving(replica)

    @property
    def gateway(self) -> str:
        """The first one's address, for what any will do."""
        return self.gateways[0].address

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

    def num_sessions(self, drafter: Replica) -> int:
        """That it holds at present; 0 when it does not answer."""
        try:
            with Connection(drafter.endpoint) as connection:
                return connection.drafter_info().live.sessions
        except OutriderError:
            return 0

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

    def supersede(self, replica: Replica) -> Zombie:
        """SIGSTOP, and another in its place at once, at another address, for the stopped process has the old one. Returns what is left of
        the former, to be woken in the end."""
        zombie = Zombie(replica.name, replica.pid, replica.nursery)
        os.kill(replica.pid, signal.SIGSTOP)
        self.zombies.append(zombie)
        self._place(replica)
        self.give_birth(replica)
        return zombie

    def wake(self, zombie: Zombie) -> None:
        """SIGCONT: it is to find out by itself that its name is another's."""
        if not zombie.nursery.is_over(zombie.pid):
            os.kill(zombie.pid, signal.SIGCONT)

    def ends_of_zombies(self) -> list[int]:
        """The exit code of each, once all are over. Raises Unavailable when one lives on."""
        return [zombie.nursery.wait_ended(zombie.pid).code for zombie in self.zombies]

    def start_gateways(self) -> None:
        """Those that do not run, at their addresses."""
        for gateway in self.gateways:
            gateway.start()

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

    def may_unplug(self, number: int) -> bool:
        """Whether the machine is plugged in, and a verifier elsewhere is well."""
        elsewhere = [one for one in self.verifiers if one.machine is not self._machines.machines[number]]
        return number not in self._unplugged and any(one.is_serving() for one in elsewhere)

    def unplug(self, number: int) -> None:
        """Nothing reaches the machine or leaves it, and nobody is told; where it has no cable, the links to it are cut."""
        self._unplugged.add(number)
        for one in self._on(number):
            one.hurt.add("unplugged")
        self._pull(number, SwitchedMachines.unplug, self._wires.cut)

    def plug(self, number: int) -> None:
        """It is back."""
        self._pull(number, SwitchedMachines.plug, self._wires.mend)
        for one in self._on(number):
            one.hurt.discard("unplugged")
        self._unplugged.discard(number)

    def _pull(self, number: int, cable: Callable[[SwitchedMachines, int], None], link: Callable[[Wire], None]) -> None:
        if isinstance(self._machines, SwitchedMachines):
            cable(self._machines, number)
            return
        for one in self._on(number):
            if one.wire is not None and "cut" not in one.hurt:
                link(one.wire)

    def _on(self, number: int) -> list[Replica | Coordinator]:
        machine = self._machines.machines[number]
        everybody: list[Replica | Coordinator] = [*self.replicas(), *self.coordinators]
        return [one for one in everybody if one.machine is machine]

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

    def cut_coordinators(self, victims: Sequence[Coordinator]) -> None:
        """Their links to the gateway are silent; replicas reach them as before."""
        for coordinator in victims:
            coordinator.hurt.add("cut")
            self._wires.cut(coordinator.wire)

    def mend_coordinators(self, victims: Sequence[Coordinator]) -> None:
        """Their links are whole."""
        for coordinator in victims:
            coordinator.hurt.discard("cut")
            self._wires.mend(coordinator.wire)

    def start_coordinators(self) -> None:
        """Those that do not run, at their addresses, knowing nobody."""
        for coordinator in self.coordinators:
            if not coordinator.is_running:
                coordinator.start()

    def start_redis(self) -> None:
        """At its address, knowing nothing."""
        with self._machines.machines[REDIS_MACHINE].inside():
            self.redis.start()

    # --- building ---------------------------------------------------------------------------------------------------------

    def _gateway(self, number: int, machine: int) -> GatewayProcess:
        """It reaches coordinators by links, as it does verifiers."""
        place = self._machines.machines[machine]
        coordinators = [option for coordinator in self.coordinators for option in ("--coordinator", coordinator.wire.listen)]
        options = ("--model-dir", self._models[0], *coordinators)
        gateway = GatewayProcess(f"gateway{number}", place, place.free_address(), options, self._folder)
        self._stack.callback(gateway.stop)
        return gateway

    def _coordinator(self, number: int, machine: int) -> Coordinator:
        place = self._machines.machines[machine]
        address = place.free_address()
        coordinator = Coordinator(f"coordinator{number}", place, address, self._link_to(place, address), self._folder)
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
        replica = Replica(name, "", (), nursery, self._machines.machines[machine], own_options=options)
        self._place(replica)
        return replica

    def _place(self, replica: Replica) -> None:
        """Give it an address, and a link whose near end is what others know it by."""
        replica.endpoint = replica.machine.free_address()
        replica.wire = self._link_to(replica.machine, replica.endpoint)
        membership = (*self._coordinator_options(), "--replica-id", replica.name, "--advertise", replica.wire.listen)
        replica.options = ("--listen", replica.endpoint, *membership, *replica.own_options)

    def _link_to(self, machine: Machine, address: str) -> Wire:
        return self._wires.add(machine, machine.free_address(), address)

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
        for zombie in self.zombies:
            self.wake(zombie)
        self._stack.close()


def give_birth(replica: Replica, folder: Path) -> None:
    """Start it at its address, its log in the folder; whoever had the address before must be over."""
    replica.incarnations += 1
    replica.pid = replica.nursery.spawn(replica.options, folder / f"{replica.name}.log", replica.machine.namespace_path)


def await_serving(replica: Replica, folder: Path) -> None:
    """Return once it answers; raises Unavailable with the end of its log when it does not."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not replica.is_serving():
        if time.monotonic() > deadline or replica.nursery.is_over(replica.pid):
            log = (folder / f"{replica.name}.log").read_text(errors="replace")[-1500:]
            raise Unavailable(f"{replica.name} does not serve:\n{log}")
        time.sleep(POLL_S)
