"""A coordinator of the site, as a process of its own that can be killed and started anew at its address.

Nothing is preloaded: it loads no model, and what it knew, replicas tell it again. Must not know the fleet.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from outrider.cli.connection import Connection
from outrider.errors import OutriderError
from outrider.launch.process import ServiceCommand, ServiceProcess

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


class Coordinator:
    """name: of its log. address: host:port, its own for good. `start` it, and `stop` it in the end."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name = name
        self.address = address
        self._log = folder / f"{name}.log"
        self._process: ServiceProcess | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process, be it one that does not answer yet."""
        return self._process is not None and self._process.exit_code is None

    def start(self) -> None:
        """Begin to start; whoever had the address before must be over."""
        command = ("-m", "outrider.coordinator", "--listen", self.address)
        self._process = ServiceProcess(ServiceCommand(self.name, command), self._log)

    def await_ready(self) -> None:
        """Return once it serves; raises StartFailed with the end of its log."""
        assert self._process is not None, "start it first"
        self._process.wait_ready(time.monotonic() + READY_TIMEOUT_S)

    def is_serving(self) -> bool:
        """Whether it answers."""
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
