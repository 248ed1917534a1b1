"""Everything of a grid as real processes: verifiers, drafters, for every cell a coordinator that knows so many of each, and its gateway.

Replicas announce themselves to every coordinator that may place with them, so that all cells are up at once and can take turns. One further
verifier, that no coordinator knows, and its gateway are for micro-benchmarks. All listen at a loopback address of their own, over TCP, and
no core is set aside for anybody. Must not know requests or what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc

from outrider.cli.connection import Connection
from outrider.errors import Unavailable
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.v1 import fleet_pb2, verifier_pb2
from outrider.v1.fleet_pb2_grpc import FleetServiceStub
from outrider_bench.chaos.nursery import Nursery
from outrider_bench.chaos.site import POLL_S, START_TIMEOUT_S, Replica, await_serving, give_birth
from outrider_bench.grid.costs import Pair
from outrider_bench.machine import Machine

MACHINE = Machine("127.0.0.21")
# Every answer reads its own prompt, and guesses are the drafters' alone: what is simulated is neither caches nor lookups.
COMMON = ("--threads", "1", "--numerics", "invariant", "--kv-mib", "64", "--no-prefix-cache")
VERIFIER_OPTIONS = (*COMMON, "--no-lookup", "--wait-drafters-s", "0", "--max-sessions", "64")
STOP_S = 10.0


class GridSite:
    """Use as a context manager: entering it starts all, leaving it ends all. pairs: the cells."""

    def __init__(self, target: str, draft: str, dtype: str, pairs: Sequence[Pair], folder: Path) -> None:
        self._models, self._dtype, self._pairs, self._folder = (target, draft), dtype, tuple(pairs), folder
        self._stack = ExitStack()
        self._coordinators: dict[Pair, str] = {}
        self._verifiers: list[Replica] = []
        self.gateways: dict[Pair, Connection] = {}
        self.drafters: list[Replica] = []
        self.micro_gateway_pid = 0
        self.micro_gateway: Connection
        self.micro_info: verifier_pb2.VerifierServiceGetInfoResponse

    def _start(self) -> None:
        """One after another, so that what a replica measures at its start is measured alone."""
        drafters, verifiers = (self._nursery(role, model) for role, model in (("drafter", self._models[1]), ("verifier", self._models[0])))
        for pair in self._pairs:
            self._coordinators[pair] = self._service(f"coordinator {pair.name}", ("-m", "outrider.coordinator")).command.arguments[-1]
        for number in range(max(pair.drafters for pair in self._pairs)):
            told = [coordinator for pair, coordinator in self._coordinators.items() if number < pair.drafters]
            self.drafters.append(self._replica(f"drafter{number}", drafters, _announced(f"drafter{number}", told)))
        known = [option for drafter in self.drafters for option in ("--drafter", drafter.endpoint)]
        for number in range(max(pair.verifiers for pair in self._pairs)):
            told = [coordinator for pair, coordinator in self._coordinators.items() if number < pair.verifiers]
            options = (*known, *_announced(f"verifier{number}", told))
            self._verifiers.append(self._replica(f"verifier{number}", verifiers, ("--verifier-id", f"verifier{number}", *options)))
        apart = self._replica("verifier of its own", verifiers, ("--verifier-id", "apart", "--drafter", self.drafters[0].endpoint))
        for pair, coordinator in self._coordinators.items():
            self.gateways[pair] = self._gateway(f"gateway {pair.name}", ("--coordinator", coordinator))[0]
        self.micro_gateway, self.micro_gateway_pid = self._gateway("gateway of its own", ("--verifier", apart.endpoint))
        self._await_all(apart)

    def _nursery(self, role: str, model: str) -> Nursery:
        options = VERIFIER_OPTIONS if role == "verifier" else COMMON
        command = ("--model", model, "--dtype", self._dtype, *options)
        nursery = self._stack.enter_context(Nursery(role, command, self._folder / f"{role}s.log"))
        nursery.wait_ready()
        return nursery

    def _replica(self, name: str, nursery: Nursery, options: Sequence[str]) -> Replica:
        endpoint = MACHINE.free_address()
        replica = Replica(name, endpoint, ("--listen", endpoint, *options), nursery, MACHINE)
        give_birth(replica, self._folder)
        await_serving(replica, self._folder)
        return replica

    def _gateway(self, name: str, options: tuple[str, ...]) -> tuple[Connection, int]:
        process = self._service(name, ("-m", "outrider.gateway", "--model-dir", self._models[0], *options))
        return self._stack.enter_context(Connection(process.command.arguments[-1])), process.pid

    def _service(self, name: str, arguments: tuple[str, ...]) -> ServiceProcess:
        """The last argument of its command is its address."""
        process = ServiceProcess(ServiceCommand(name, (*arguments, "--listen", MACHINE.free_address())), self._folder / f"{name}.log")
        self._stack.callback(process.stop, STOP_S)
        process.wait_ready(time.monotonic() + START_TIMEOUT_S)
        return process

    def _await_all(self, apart: Replica) -> None:
        """Every verifier has met its drafters, and every coordinator knows its replicas. Raises Unavailable when that takes too long."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for replica in (*self._verifiers, apart):
            with Connection(replica.endpoint) as verifier:
                while not all(pair.connected for pair in verifier.verifier_info().pairs):
                    _pause(deadline_s, f"{replica.name} did not reach its drafters")
        with Connection(apart.endpoint) as verifier:
            self.micro_info = verifier.verifier_info()
        for pair, coordinator in self._coordinators.items():
            while _num_known(coordinator) < pair.drafters + pair.verifiers:
                _pause(deadline_s, f"the coordinator of {pair.name} did not hear of everybody")

    def __enter__(self) -> GridSite:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


def _announced(name: str, coordinators: Sequence[str]) -> tuple[str, ...]:
    return ("--replica-id", name, *(option for coordinator in coordinators for option in ("--coordinator", coordinator)))


def _num_known(coordinator: str) -> int:
    with grpc.insecure_channel(coordinator, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
        return len(stub.GetTopology(fleet_pb2.GetTopologyRequest(), timeout=START_TIMEOUT_S).replicas)


def _pause(deadline_s: float, problem: str) -> None:
    if time.monotonic() > deadline_s:
        raise Unavailable(f"{problem} within {START_TIMEOUT_S:g} s")
    time.sleep(POLL_S)
