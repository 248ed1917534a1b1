"""One service as a child process: start, wait for its ready line, watch, stop.

A service prints one JSON object on its first line of stdout when it serves, and everything else to stderr, which goes to a log
file whose tail explains a failed start. Stopping is SIGTERM (drain), and SIGKILL after a bound. Must not know what it serves.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from outrider.errors import OutriderError
from outrider.launch.threads import thread_environment

_BOUND_EXEC = Path(__file__).with_name("bound_exec.py")
# Whoever else holds a service's stdout when it has ended (a child of its own) is not waited for.
READER_DEADLINE_S = 2.0
GIVEN_UP_POLL_S = 0.1  # how soon a start that nobody wants any more is left
# Of a URL that somebody gave a service by hand: what is told of a failed start ends up in logs and reports.
_PASSWORD = re.compile(r"(?<=://)\S*(?=@)")
LOG_TAIL_LINES = 25
LOG_TAIL_BYTES = 16_384
LOG_FOLDER_MODE = 0o700  # as tempfile makes them


class StartFailed(OutriderError):
    """A service did not come up; the sentence names it and carries the end of its log."""


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    """What to run. name: for people and log files. arguments: after the interpreter, for example ("-m", "drafter_service", ...).

    num_threads: compute threads, through the environment. cores: to be pinned to, empty for any. environment: may hold a password.
    """

    name: str
    arguments: tuple[str, ...]
    num_threads: int = 1
    cores: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


class ServiceProcess:
    """A started service. Start it from a thread that outlives it (see bound_exec). Raises StartFailed where the system refuses (too many
    processes, a full disk), for whoever starts it to try again; a log folder that somebody tidied away is made anew."""

    def __init__(self, command: ServiceCommand, log_path: Path) -> None:
        self.command = command
        self.log_path = log_path
        self._ready: dict[str, object] | None = None
        self._decided = threading.Event()
        try:
            log_path.parent.mkdir(mode=LOG_FOLDER_MODE, parents=True, exist_ok=True)
            with log_path.open("ab") as log:
                self._process = self._spawn(log)
        except OSError as error:
            raise StartFailed(f"{command.name} could not be started: {error}") from error
        self._reader = threading.Thread(target=self._read_stdout, name=f"{command.name}-stdout", daemon=True)
        self._begin_reading()

    @property
    def pid(self) -> int:
        """Process id, also the id of its process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    @property
    def is_ready(self) -> bool:
        """Whether it has said so; one that has not has nothing to drain."""
        return self._ready is not None

    def wait_ready(self, deadline_s: float, given_up: threading.Event | None = None) -> dict[str, object]:
        """The ready line, at the latest at time.monotonic() == deadline_s. Raises StartFailed with the log's tail, also as soon as
        given_up is set: nobody wants it any more."""
        while not self._decided.wait(self._pause_s(deadline_s, given_up)) and time.monotonic() < deadline_s:
            if given_up is not None and given_up.is_set():
                raise StartFailed(self._explain("was stopped before it was ready"))
        if self._ready is not None:
            return self._ready
        if not self._decided.is_set():
            raise StartFailed(self._explain("was not ready in time"))
        self._process.wait()
        raise StartFailed(self._explain(f"ended before it was ready (exit code {self.exit_code})"))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the service's process group; nothing happens when it has ended."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):  # a handler of signals may ask while `stop` has just learned that it ended
                os.killpg(self._process.pid, number)

    def stop(self, drain_s: float) -> int:
        """SIGTERM, wait at most drain_s, then SIGKILL. Returns the exit code (0 = drained, -9 = killed)."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process cannot drain
        try:
            code = self._process.wait(drain_s)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            code = self._process.wait()
        self._reader.join(READER_DEADLINE_S)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        return code

    def log_tail(self, num_lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the log."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-num_lines:])

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Its stdout is ours to read, its stderr the log."""
        cores = ",".join(map(str, self.command.cores)) or "-"
        # -I -S: the wrapper needs nothing but ctypes, and must not be changed by the environment meant for the service.
        wrapper = [sys.executable, "-I", "-S", str(_BOUND_EXEC), str(os.getpid()), cores]
        return subprocess.Popen(
            [*wrapper, sys.executable, *self.command.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=service_environment(self.command),
            start_new_session=True,
        )

    def _begin_reading(self) -> None:
        """A system with no process left to give has no thread either: then nobody would hear that the service is ready."""
        try:
            self._reader.start()
        except RuntimeError as error:
            self.signal(signal.SIGKILL)
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            raise StartFailed(f"{self.command.name} could not be started: {error}") from error

    def _read_stdout(self) -> None:
        """Keep the ready line; pass anything else on to the log, so that a chatty service never blocks on a full pipe."""
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            ready = None if self._decided.is_set() else _ready_line(line)
            if ready is not None:
                self._ready = ready
                self._decided.set()
            else:
                with self.log_path.open("ab") as log:
                    log.write(line)
        self._decided.set()

    @staticmethod
    def _pause_s(deadline_s: float, given_up: threading.Event | None) -> float:
        """Two events cannot be waited for together, so where there are two, one is looked at again and again."""
        left_s = max(0.0, deadline_s - time.monotonic())
        return left_s if given_up is None else min(left_s, GIVEN_UP_POLL_S)

    def _explain(self, problem: str) -> str:
        tail = self.log_tail().strip() or "(the log is empty)"
        command = _PASSWORD.sub("***", " ".join(("python", *self.command.arguments)))
        return f"{self.command.name} {problem}\n  command: {command}\n  log: {self.log_path}\n--- end of its log ---\n{tail}"


def service_environment(command: ServiceCommand) -> dict[str, str]:
    """The parent's environment with the parent's import path, so that a checkout needs no installation."""
    paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
    return {**os.environ, "PYTHONPATH": paths, **thread_environment(command.num_threads), **command.environment}


def _ready_line(line: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
