"""A coordinator of the site, as a process of its own that can be killed and started anew at its address.

Nothing is preloaded: it loads no model, and what it knew, replicas tell it again. Must not know who should be in the fleet.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from outrider.cli.connection import Connection
from outrider.errors import OutriderError
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.v1 import fleet_pb2
from outrider.v1.fleet_pb2_grpc import FleetServiceStub
from outrider_bench.chaos.wire import Wire
from outrider_bench.machine import Machine

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
TOPOLOGY_TIMEOUT_S = 5.0


@dataclass(eq=False)
class Coordinator:
    """name: of its log. address: host:port on its machine, its own for good. wire: the link that the gateway reaches it by. hurt: what it
    suffers from at present beside being dead. `start` it, and `stop` it in the end."""

    name: str
    machine: Machine
    address: str
    wire: Wire
    folder: Path
    hurt: set[str] = field(default_factory=set)
    _process: ServiceProcess | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process, be it one that does not answer yet."""
        return self._process is not None and self._process.exit_code is None

    def start(self) -> None:
        """Begin to start; whoever had the address before must be over."""
        command = ("-m", "outrider.coordinator", "--listen", self.address)
        with self.machine.inside():
            self._process = ServiceProcess(ServiceCommand(self.name, command), self.folder / f"{self.name}.log")

    def await_ready(self) -> None:
        """Return once it serves; raises StartFailed with the end of its log."""
        assert self._process is not None, "start it first"
        self._process.wait_ready(time.monotonic() + READY_TIMEOUT_S)

    def is_serving(self) -> bool:
        """Whether it answers at its own address, past its link, and nothing is wrong with it."""
        if self.hurt:
            return False
        try:
            with Connection(self.address) as connection:
                return connection.is_serving()
        except OutriderError:
            return False

    def known(self) -> frozenset[str]:
        """Ids of the replicas that it would place requests at; none while it does not answer."""
        with grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            stub = FleetServiceStub(channel)  # type: ignore[no-untyped-call]
            try:
                topology: fleet_pb2.GetTopologyResponse = stub.GetTopology(fleet_pb2.GetTopologyRequest(), timeout=TOPOLOGY_TIMEOUT_S)
            except grpc.RpcError:
                return frozenset()
        return frozenset(replica.replica_id for replica in topology.replicas if not replica.draining)

    def kill(self) -> None:
        """kill -9; returns when it is over."""
        assert self._process is not None, "start it first"
        self._process.signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End it; safe to repeat."""
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S)
