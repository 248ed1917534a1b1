"""One service executable kept running: started, watched, started again after a pause at the address it had, its exit codes remembered.

Knows processes and what their exit codes mean. Must not know Ray, nor what the service serves. A replica that drained or was superseded has
ended for good (a gateway that drained has not); any other end is followed by a new start, which is a new incarnation by its start time.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.coordinator.kept_address import KeptAddress
from outrider.launch.deployment import UNREADY_DRAIN_S
from outrider.launch.grace import DRAIN_DEADLINE_S, drain_deadline_s
from outrider.launch.process import ServiceCommand, ServiceProcess, StartFailed
from outrider.rpc.announcer import SUPERSEDED_EXIT_CODE

_LOG = logging.getLogger(__name__)
DRAINED_EXIT_CODE = 0
FINAL_CODES = frozenset({DRAINED_EXIT_CODE, SUPERSEDED_EXIT_CODE})
MAX_REMEMBERED_EXITS = 32
WATCH_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class SupervisionLimits:
    """Seconds, but for max_failures: starts in a row that did not last steady_s before it is given up. min_backoff_s, max_backoff_s: pause
    before the next start, doubling with each such failure. start_s: to become ready. drain_s: to end on SIGTERM, more where the service was
    given a longer grace."""

    min_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    max_failures: int = 10
    steady_s: float = 30.0
    start_s: float = 300.0
    drain_s: float = DRAIN_DEADLINE_S


@dataclass(frozen=True, slots=True)
class SupervisionReport:
    """pid, address, metrics (where it is scraped): of the running process; 0 and empty while none is ready. exit_codes: the latest, oldest
    first. problem: a sentence, of the last failure. has_ended: no process will be started any more."""

    pid: int
    address: str
    num_starts: int
    exit_codes: tuple[int, ...]
    problem: str
    has_ended: bool
    metrics: str = ""


class ReplicaSupervisor:
    """`start` once. Everything happens on a thread of its own, which the process is tied to (launch/bound_exec.py). note: a file that keeps
    the service's address beyond this supervisor; None: nothing does. final_codes: exit codes after which it is not started again."""

    def __init__(
        self,
        command: ServiceCommand,
        log_path: Path,
        limits: SupervisionLimits | None = None,
        note: Path | None = None,
        final_codes: Collection[int] = FINAL_CODES,
    ) -> None:
        self._command = command
        self._final_codes = frozenset(final_codes)
        self._address = KeptAddress(note)
        self._log_path = log_path
        self._limits = limits or SupervisionLimits()
        self._drain_s = drain_deadline_s(command.arguments, self._limits.drain_s)
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._report = SupervisionReport(0, "", 0, (), "", has_ended=False)
        self._exits: deque[int] = deque(maxlen=MAX_REMEMBERED_EXITS)
        self._process: ServiceProcess | None = None
        self._thread = threading.Thread(target=self._run, name=f"supervise {command.name}", daemon=True)

    def start(self) -> None:
        """Start the process and keep it running."""
        self._thread.start()

    def report(self) -> SupervisionReport:
        """As of now."""
        return self._report

    def wait_ready(self, timeout_s: float, num_starts: int = 1) -> str:
        """The address of a process that is ready, of at least the num_starts-th start. Raises StartFailed when none is in time, or ever."""
        with self._changed:
            self._changed.wait_for(lambda: self._report.has_ended or self._is_ready(num_starts), timeout_s)
            report = self._report
        if report.has_ended or not (report.address and report.num_starts >= num_starts):
            raise StartFailed(f"{self._command.name} is not ready after {timeout_s:g} s; {report.problem or 'it is still starting'}")
        return report.address

    def signal(self, number: signal.Signals) -> None:
        """To the running process, if there is one."""
        process = self._process
        if process is not None:
            process.signal(number)

    def stop(self) -> tuple[int, ...]:
        """Drain the process, with no patience for one that is not ready; end the supervision. Returns the exit codes."""
        self._stopping.set()
        self._thread.join(self._drain_s + WATCH_INTERVAL_S + 10.0)
        return self._report.exit_codes

    def _run(self) -> None:
        """Whatever ends the supervision, whoever waits or watches hears that it has ended."""
        try:
            self._supervise()
        finally:
            self._publish(has_ended=True)

    def _supervise(self) -> None:
        num_failures = 0
        while not self._stopping.is_set():
            begin_s = time.monotonic()
            code, problem = self._run_once()
            if code is not None:
                self._exits.append(code)
            num_failures = 1 if time.monotonic() - begin_s >= self._limits.steady_s else num_failures + 1
            is_over = code in self._final_codes or num_failures >= self._limits.max_failures
            self._publish(problem=problem, has_ended=is_over)
            if is_over:
                _LOG.info("%s is not started again: %s", self._command.name, problem)
                return
            if not self._stopping.is_set():
                _LOG.warning("%s is started again: %s", self._command.name, problem)
            self._stopping.wait(self.backoff_s(num_failures))

    def backoff_s(self, num_failures: int) -> float:
        """The pause after so many failures in a row."""
        return min(self._limits.max_backoff_s, self._limits.min_backoff_s * 2.0 ** (num_failures - 1))

    def _run_once(self) -> tuple[int | None, str]:
        """One process from start to end: its exit code, None where there was no process at all, and a sentence."""
        self._publish(num_starts=self._report.num_starts + 1)
        command = replace(self._command, arguments=self._address.arguments(self._command.arguments))
        try:
            process = self._process = ServiceProcess(command, self._log_path)
        except StartFailed as error:
            return None, str(error)  # its address is not to blame
        try:
            ready = process.wait_ready(time.monotonic() + self._limits.start_s, given_up=self._stopping)
        except StartFailed as error:
            self._address.failed()
            return process.stop(min(self._drain_s, UNREADY_DRAIN_S)), str(error)
        address = str(ready.get("address", ""))
        self._address.bound(address)
        self._publish(pid=process.pid, address=address, metrics=str(ready.get("metrics", "")))
        while process.exit_code is None and not self._stopping.wait(WATCH_INTERVAL_S):
            pass
        code = process.stop(self._drain_s)
        return code, f"it ended with exit code {code}"

    def _publish(
        self, *, pid: int = 0, address: str = "", metrics: str = "", num_starts: int = 0, problem: str = "", has_ended: bool = False
    ) -> None:
        with self._changed:
            known = self._report
            self._report = SupervisionReport(
                pid, address, num_starts or known.num_starts, tuple(self._exits), problem or known.problem, has_ended, metrics
            )
            self._changed.notify_all()

    def _is_ready(self, num_starts: int) -> bool:
        return bool(self._report.address) and self._report.num_starts >= num_starts
