"""Services of tests as forks of one process that has imported what they import (forking_process.py), started once for all test files.

A start is a fraction of a second instead of the seconds that importing torch and transformers takes; everything after the imports, the load
and the end among it, is what `python -m SERVICE` does. Starts as an operator's stay guarded by those tests that use ServiceProcess itself
(test_run_command.py, test_drafter_process.py, test_launch_signals.py). Must not know any service.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import IO, cast

from forking_process import MAX_MESSAGE_BYTES
from outrider.launch.deployment import Deployment
from outrider.launch.process import ServiceCommand, ServiceProcess, service_environment

# What takes long, and what our own engines and servers need. None of them starts a thread.
IMPORTED = (
    "torch",
    "transformers.models.llama.modeling_llama",
    "outrider.engine.int8_reference",
    "outrider.engine.lean_engine",
    "outrider.engine.transformers_engine",
    "outrider.coordinator.server",
    "outrider.exposition.collector",
    "outrider.gateway.gateway",
    "verifier_service.process",
    "drafter_service.loading",
    "drafter_service.servicer",
    "uvloop",
)
FORK_S = 120.0  # the first one waits for the imports


class ForkedChild:
    """What ServiceProcess needs of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = None
        self._code: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        """The exit code, None while it runs; negative for a signal."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. timeout: in seconds; raises subprocess.TimeoutExpired."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self._code is not None
        return self._code

    def ended(self, code: int) -> None:
        """It is over."""
        self._code = code
        self._ended.set()


class Nursery:
    """The forking process and its children. imported: modules that its children need not import."""

    def __init__(self, imported: tuple[str, ...] = IMPORTED) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
        script = Path(__file__).with_name("forking_process.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(theirs.fileno()), *imported],
                pass_fds=[theirs.fileno()],
                env=service_environment(ServiceCommand("forking", ())) | {"PYTHONPATH": paths},
            )
        self._children: dict[int, ForkedChild] = {}
        self._born: queue.Queue[ForkedChild | None] = queue.Queue()
        self._ordering = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._listener.start()

    def fork(self, command: ServiceCommand, log: IO[bytes]) -> ForkedChild:
        """Start a service. Raises queue.Empty when the forking process does not answer within FORK_S."""
        stdout, theirs = os.pipe()
        order = {"arguments": command.arguments, "environment": service_environment(command), "cores": command.cores}
        with self._ordering:
            socket.send_fds(self._orders, [json.dumps(order).encode()], [theirs, log.fileno()])
            os.close(theirs)
            child = self._born.get(timeout=FORK_S)
        assert child is not None, "the forking process has ended"
        child.stdout = os.fdopen(stdout, "rb")
        return child

    def end(self) -> None:
        """End the process; children that still live end with it."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._orders.close()

    def _listen(self) -> None:
        while message := self._orders.recv(MAX_MESSAGE_BYTES):
            told = json.loads(message)
            if "pid" in told:
                child = self._children[told["pid"]] = ForkedChild(told["pid"])
                self._born.put(child)
            else:
                self._children.pop(told["ended"]).ended(told["code"])
                self._orders.send(json.dumps({"forget": told["ended"]}).encode())
        self._born.put(None)


@cache
def nursery() -> Nursery:
    """One for all tests of this process; it ends with it."""
    found = Nursery()
    atexit.register(found.end)
    return found


class ForkedService(ServiceProcess):
    """A service that is a fork; one with several compute threads, which its libraries fix when they are imported, is not."""

    def signal(self, number: signal.Signals) -> None:
        """As ServiceProcess's, for a process that somebody else waits for: it may have gone since."""
        with contextlib.suppress(ProcessLookupError):
            super().signal(number)

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        if self.command.num_threads != 1:
            return super()._spawn(log)
        return cast("subprocess.Popen[bytes]", nursery().fork(self.command, log))


class ForkedDeployment(Deployment):
    """A deployment of forks."""

    def launch(self, command: ServiceCommand) -> ServiceProcess:
        """See Deployment."""
        return ForkedService(command, self.folder / f"{command.name}.log")
