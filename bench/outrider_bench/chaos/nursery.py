"""The driver's end of a spawner: children by pid, and who of them is over. Must not know what they serve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from outrider.errors import Unavailable
from outrider.launch.threads import thread_environment

START_TIMEOUT_S = 300.0
FORK_TIMEOUT_S = 30.0
END_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A child that is over. code: negative for a signal. at_s: on the monotonic clock."""

    code: int
    at_s: float


class Nursery:
    """A spawner process that has loaded one model. Use as a context manager; its children end with it."""

    def __init__(self, role: str, options: Sequence[str], log: Path) -> None:
        """Start to load; `wait_ready` before the first birth."""
        paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
        environment = {**os.environ, "PYTHONPATH": paths, "GRPC_ENABLE_FORK_SUPPORT": "0", **thread_environment(1)}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "outrider_bench.chaos.spawner", role, *options],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
            )  # fmt: skip
        self._log = log
        self._changed = threading.Condition()
        self._is_ready = False
        self._is_over = False
        self._born: list[int] = []
        self._ended: dict[int, Ended] = {}
        self._reader = threading.Thread(target=self._read, name=f"nursery of {role}s", daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        """Return once the model is loaded; raises Unavailable with the end of its log."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._is_over, START_TIMEOUT_S)
        if not self._is_ready:
            raise Unavailable(f"a spawner did not come up:\n{self._log.read_text(errors='replace')[-2000:]}")

    def spawn(self, options: Sequence[str], log: Path, namespace: str | None = None) -> int:
        """Fork a child with these further options, in the network namespace of that path, or in the spawner's; returns its pid. One caller
        at a time."""
        assert self._process.stdin is not None
        with self._changed:
            num_before = len(self._born)
        self._process.stdin.write(json.dumps({"options": list(options), "log": str(log), "namespace": namespace}) + "\n")
        self._process.stdin.flush()
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._born) > num_before or self._is_over, FORK_TIMEOUT_S) or self._is_over:
                raise Unavailable("the spawner does not fork any more")
            return self._born[-1]

    def wait_ended(self, pid: int) -> Ended:
        """How a child ended, once it is over; raises Unavailable when it lives on."""
        with self._changed:
            if not self._changed.wait_for(lambda: pid in self._ended, END_TIMEOUT_S):
                raise Unavailable(f"process {pid} did not end within {END_TIMEOUT_S:g} s")
            return self._ended[pid]

    def is_over(self, pid: int) -> bool:
        """Whether this child has ended."""
        return pid in self._ended

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            with self._changed:
                if "ready" in message:
                    self._is_ready = True
                elif "pid" in message:
                    self._ended.pop(message["pid"], None)  # numbers come again
                    self._born.append(message["pid"])
                else:
                    self._ended[message["ended"]] = Ended(message["code"], time.monotonic())
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(END_TIMEOUT_S)
        self._reader.join(END_TIMEOUT_S)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
