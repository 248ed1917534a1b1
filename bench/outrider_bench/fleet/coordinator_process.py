"""A real coordinator to measure: the process that an operator starts, or the Ray actor; and the time of a core it has used.

Knows how both are started. Must not know replicas or placements. Processor time is what Linux says of every thread of the process.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from outrider.coordinator.cluster import LOCAL_NODE_IP, Cluster, ClusterOptions
from outrider.errors import Unavailable
from outrider.launch.process import ServiceCommand, ServiceProcess

START_S = 120.0
STOP_S = 10.0
NODE_CPUS = 2.0  # that the Ray node says it has; the coordinator asks for none


@dataclass(frozen=True, slots=True)
class RealCoordinator:
    """kind: `process` or `Ray actor`. address: of its FleetService."""

    kind: str
    address: str
    pid: int

    def cpu_s(self) -> float:
        """Seconds of a core so far, of all its threads. Raises Unavailable where the system does not tell."""
        total_ns, found = 0, False
        for thread in Path(f"/proc/{self.pid}/task").glob("*"):
            with suppress(FileNotFoundError):  # it has ended
                total_ns += int((thread / "schedstat").read_text().split()[0])
                found = True
        if not found:
            raise Unavailable(f"the processor time of process {self.pid} is not to be had: it needs Linux with /proc/*/task/*/schedstat")
        return total_ns / 1e9


@contextmanager
def coordinator_process() -> Iterator[RealCoordinator]:
    """`python -m outrider.coordinator`, for the block's time."""
    with tempfile.TemporaryDirectory(prefix="outrider-coordinator-") as folder:
        command = ServiceCommand("coordinator", ("-m", "outrider.coordinator", "--listen", "127.0.0.1:0"))
        process = ServiceProcess(command, Path(folder) / "coordinator.log")
        try:
            ready = process.wait_ready(time.monotonic() + START_S)
            yield RealCoordinator("process", str(ready["address"]), process.pid)
        finally:
            process.stop(STOP_S)


@contextmanager
def coordinator_actor() -> Iterator[RealCoordinator]:
    """The actor of a Ray cluster of this machine, for the block's time. Raises RayMissing without the extra `ray`."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # on loopback, for the block's time; it would write a token at home
    with Cluster(ClusterOptions(num_cpus=NODE_CPUS)) as cluster:
        address = cluster.start_fleet(f"{LOCAL_NODE_IP}:{_free_port()}")
        yield RealCoordinator("Ray actor", address, int(cluster.ray.get(cluster.fleet.pid.remote())))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOCAL_NODE_IP, 0))
        return int(listener.getsockname()[1])
