"""A replica as a Ray actor: it holds the resources, and keeps the service executable running as a subprocess beside it.

A plain class; cluster.py makes an actor of it, whose resource demands are the service's. Never imports torch: the service does, in a
process of its own, which dies with this one. Must not know the fleet: the service announces itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from outrider.coordinator.replica_supervisor import DRAINED_EXIT_CODE, ReplicaSupervisor, SupervisionLimits, SupervisionReport
from outrider.launch.process import ServiceCommand


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """command: the service's; its name is the replica's id. num_cpus, num_gpus, resources: what Ray is to set aside for it, and where it
    therefore runs; node: Ray's id of the node it must be on, empty for any. note: a file there that keeps its address for when Ray starts
    the actor anew; None: nothing does."""

    command: ServiceCommand
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    node: str = ""
    limits: SupervisionLimits = field(default_factory=SupervisionLimits)
    note: Path | None = None


class ReplicaActor:
    """Starts the service at its construction, which Ray repeats when the actor's process has died."""

    def __init__(self, spec: ReplicaSpec) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="outrider-replica-"))
        self._supervisor = ReplicaSupervisor(spec.command, self._folder / f"{spec.command.name}.log", spec.limits, spec.note)
        self._supervisor.start()

    def wait_ready(self, timeout_s: float, num_starts: int = 1) -> str:
        """The service's address. Raises StartFailed."""
        return self._supervisor.wait_ready(timeout_s, num_starts)

    def report(self) -> SupervisionReport:
        """What became of the service so far."""
        return self._supervisor.report()

    def log(self) -> str:
        """The folder of its log, on the node it runs on."""
        return str(self._folder)

    def pid(self) -> int:
        """Of the actor's own process."""
        return os.getpid()

    def kill_service(self) -> None:
        """End the service as a crash would, for tests of what follows."""
        self._supervisor.signal(signal.SIGKILL)

    def stop(self) -> tuple[int, ...]:
        """Drain the service; returns its exit codes. Its log is kept only where its end was another one: a fleet that grows and shrinks
        for months would leave a folder each time."""
        codes = self._supervisor.stop()
        if codes[-1:] == (DRAINED_EXIT_CODE,):
            shutil.rmtree(self._folder, ignore_errors=True)
        return codes
