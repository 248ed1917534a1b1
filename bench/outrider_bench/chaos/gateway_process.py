"""A gateway of the site, as a process of its own that can be killed and started anew at its address.

What it holds dies with it: clients bring their tokens themselves. Must not know them, nor when it is killed.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from outrider.cli.connection import Connection
from outrider.errors import OutriderError
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider_bench.machine import Machine

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


@dataclass(eq=False)
class GatewayProcess:
    """name: of its log. address: host:port on its machine, its own for good. options: but for the address. `start` it, and `stop` it in
    the end."""

    name: str
    machine: Machine
    address: str
    options: tuple[str, ...]
    folder: Path
    _process: ServiceProcess | None = None

    def start(self) -> None:
        """Begin to start, if it does not run; whoever had the address before must be over."""
        if self._process is not None and self._process.exit_code is None:
            return
        command = ("-m", "outrider.gateway", "--listen", self.address, *self.options)
        with self.machine.inside():
            self._process = ServiceProcess(ServiceCommand(self.name, command), self.folder / f"{self.name}.log")

    def await_ready(self) -> None:
        """Return once it serves; raises StartFailed with the end of its log."""
        assert self._process is not None, "start it first"
        self._process.wait_ready(time.monotonic() + READY_TIMEOUT_S)

    def is_serving(self) -> bool:
        """Whether it answers, and would take requests."""
        try:
            with Connection(self.address) as connection:
                return connection.is_serving()
        except OutriderError:
            return False

    def kill(self) -> None:
        """kill -9; returns when it is over."""
        assert self._process is not None, "start it first"
        self._process.signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End it; safe to repeat."""
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S)
