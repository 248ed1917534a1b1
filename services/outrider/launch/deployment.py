"""A whole deployment on this machine: one drafter or none, one verifier, one gateway, each a process, the first two in one, or all in one.

Knows the services' command lines and the order to start and stop them in: all start side by side, since most of a start is each
process importing and loading for itself; the gateway stops first, so that requests drain before what they need goes away.
Must not know tokens, grpc or terminals.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from outrider.launch.grace import drain_deadline_s
from outrider.launch.process import ServiceCommand, ServiceProcess, StartFailed
from outrider.launch.threads import ThreadPlan

START_DEADLINE_S = 300.0  # a bound against hanging, wide enough for a machine that is busy with other things
UNREADY_DRAIN_S = 1.0  # of a service that serves nobody yet
GATEWAY_THREADS = 1
MAX_UNIX_PATH = 107  # bytes of a socket's name
METRICS_PLACES = ("gateway", "verifier", "drafter")  # from DeploymentSpec.metrics_port on


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """What to serve. target, draft: model folders or hub names (draft None: no drafter). listen, verifier_listen: addresses of gateway and
    verifier, None for unix sockets of their own. target_weights, draft_weights: full or int8, the draft's also auto. draft_shortlist:
    auto, off or a number of ids that guesses are chosen among. drafter_extra, verifier_extra, gateway_extra: further command-line
    arguments of each service. together: verifier and drafter are one process, called `verifier`. gateway_inside: the gateway is part of the
    verifier's process, with the drafter unless that is apart. metrics_port: of the gateway's metrics, the next ones are the verifier's and
    the drafter's; None: none. environment: of every service, beside what it inherits; it may hold a password."""

    target: str
    draft: str | None
    pacing: str
    threads: ThreadPlan
    dtype: str = "float32"
    numerics: str = "fast"
    target_weights: str = "full"
    draft_weights: str = "full"
    draft_shortlist: str = "auto"
    listen: str | None = None
    verifier_listen: str | None = None
    together: bool = False
    gateway_inside: bool = False
    drafter_extra: tuple[str, ...] = ()
    verifier_extra: tuple[str, ...] = ()
    gateway_extra: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    metrics_port: int | None = None


class Deployment:
    """Running services. Use as a context manager, from a thread that lives as long as they should."""

    def __init__(self, spec: DeploymentSpec, deadline_s: float = START_DEADLINE_S) -> None:
        """Start everything and wait until every service is ready. Raises StartFailed; nothing is left running then."""
        self.spec = spec
        self.folder = _folder_for_sockets()
        self.processes: dict[str, ServiceProcess] = {}
        self.ready: dict[str, dict[str, object]] = {}
        self.start_s = 0.0
        started = time.monotonic()
        try:
            for command in self.commands():
                self.processes[command.name] = self.launch(command)
            for name, process in self.processes.items():
                self.ready[name] = process.wait_ready(started + deadline_s)
        except BaseException as error:
            self.stop(drain_s=UNREADY_DRAIN_S, keep_logs=isinstance(error, Exception))
            raise
        self.start_s = time.monotonic() - started

    @property
    def gateway(self) -> str:
        """Address of the client API; with its real port once it is ready."""
        bound = self.ready.get("verifier" if self.spec.gateway_inside else "gateway", {}).get("address")
        return str(bound) if bound else self.spec.listen or self._socket("gateway")

    @property
    def verifier(self) -> str:
        """Address of the verifier."""
        return self.spec.verifier_listen or self._socket("verifier")

    @property
    def drafter(self) -> str | None:
        """Address of the drafter, None without one that has an address."""
        return None if self.spec.draft is None or self.spec.together else self._socket("drafter")

    def launch(self, command: ServiceCommand) -> ServiceProcess:
        """Start one service, here; a deployment over several machines starts it on its own."""
        return ServiceProcess(command, self.folder / f"{command.name}.log")

    def commands(self) -> list[ServiceCommand]:
        """The services in the order they are started."""
        spec, threads = self.spec, self.spec.threads
        commands: list[ServiceCommand] = []
        if spec.draft is not None and not spec.together:
            options = ("--listen", self._socket("drafter"), *metrics_options(spec, "drafter"), *drafter_options(spec, spec.draft))
            commands.append(self._command("drafter", "drafter_service", options, threads.drafter, threads.drafter_cores))
        if spec.gateway_inside:
            options = (*self._verifier_part(), "--", *self._drafter_part(), "--", *self._gateway_part())
            commands.append(self._command("verifier", "machine_service", options, threads.verifier, threads.verifier_cores))
            return commands
        if spec.draft is not None and spec.together:
            commands.append(self._command("verifier", "pair_service", self.pair_options(), threads.verifier, threads.verifier_cores))
        else:
            commands.append(self._command("verifier", "verifier_service", self._verifier_part(), threads.verifier, threads.verifier_cores))
        gateway = (
            "--verifier",
            self.verifier,
            "--verifier-timeout-s",
            str(START_DEADLINE_S),
            *self._gateway_part(),
        )  # one deadline for both
        commands.append(self._command("gateway", "outrider.gateway", gateway, GATEWAY_THREADS, ()))
        return commands

    def pair_options(self) -> tuple[str, ...]:
        """What verifier and drafter would be as one process: pair_service's command line. There must be a draft model."""
        assert self.spec.draft is not None, "there is a draft model"
        return (*self._verifier_part(), "--", *drafter_options(self.spec, self.spec.draft))

    def failures(self) -> dict[str, int]:
        """Services that have ended, with their exit codes."""
        codes = {name: process.exit_code for name, process in self.processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def restart(
        self, name: str, extra: tuple[str, ...] = (), deadline_s: float = START_DEADLINE_S, given_up: threading.Event | None = None
    ) -> None:
        """Start a service again at its old address (ending it if it still runs), with further command-line arguments. Raises StartFailed,
        also once given_up is set; the new process is left to `stop` then."""
        self.processes[name].stop(drain_deadline_s(self.processes[name].command.arguments))
        command = next(command for command in self.commands() if command.name == name)
        command = replace(command, arguments=(*command.arguments, *extra))
        self.processes[name] = self.launch(command)
        self.ready[name] = self.processes[name].wait_ready(time.monotonic() + deadline_s, given_up)

    def stop(self, drain_s: float | None = None, keep_logs: bool = False) -> dict[str, int]:
        """Drain and end every service, the gateway first, with no patience for one that was not ready; returns their exit codes. drain_s:
        for each of them, None: as its own grace has it. Safe to call again."""
        codes: dict[str, int] = {}
        for name, process in reversed(self.processes.items()):
            patience_s = drain_deadline_s(process.command.arguments) if drain_s is None else drain_s
            codes[name] = process.stop(patience_s if process.is_ready else min(patience_s, UNREADY_DRAIN_S))
        if not keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)
        return codes

    def hurry(self) -> None:
        """Those that drain are to stop draining, and those that do not are to begin; from a signal handler, while `stop` waits."""
        for process in self.processes.values():
            process.signal(signal.SIGTERM)

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop(keep_logs=isinstance(error, Exception))

    def _verifier_part(self) -> tuple[str, ...]:
        spec = self.spec
        paired = () if spec.draft is None or spec.together else ("--drafter", self._socket("drafter"))
        return (*paired, "--listen", self.verifier, *metrics_options(spec, "verifier"), *verifier_options(spec))

    def _drafter_part(self) -> tuple[str, ...]:
        """Of a drafter in the verifier's process; nothing when there is none."""
        return drafter_options(self.spec, self.spec.draft) if self.spec.draft is not None and self.spec.together else ()

    def _gateway_part(self) -> tuple[str, ...]:
        spec = self.spec
        model = ("--model-dir", spec.target) if Path(spec.target).is_dir() else ()
        return ("--listen", self.gateway, *model, *metrics_options(spec, "gateway"), *spec.gateway_extra)

    def _command(self, name: str, module: str, options: tuple[str, ...], num_threads: int, cores: tuple[int, ...]) -> ServiceCommand:
        return ServiceCommand(name, ("-m", module, *options), num_threads, cores, self.spec.environment)

    def _socket(self, name: str) -> str:
        return f"unix:{self.folder / name}.sock"


def _folder_for_sockets() -> Path:
    """A new one. Raises StartFailed where names in it are too long, which each service would say of an option that nobody gave."""
    parent = tempfile.gettempdir()
    if is_too_long_for_sockets(parent):
        raise StartFailed(f"{parent} is too long a path for a socket: set TMPDIR to a shorter one, for example /tmp")
    return Path(tempfile.mkdtemp(prefix="outrider-", dir=parent))


def is_too_long_for_sockets(folder: str) -> bool:
    """Whether a deployment that has its own folder in this one could not name its sockets."""
    return len(os.fsencode(f"{folder}/outrider-xxxxxxxx/verifier.sock")) > MAX_UNIX_PATH


def metrics_options(spec: DeploymentSpec, service: str) -> tuple[str, ...]:
    """Where a service is scraped; nothing without metrics."""
    return () if spec.metrics_port is None else ("--metrics-port", str(spec.metrics_port + METRICS_PLACES.index(service)))


def verifier_options(spec: DeploymentSpec) -> tuple[str, ...]:
    """The verifier's command line, but for where it listens and who drafts for it."""
    lent = ("--lent-threads", str(spec.threads.lent)) if spec.threads.lent else ()
    model = ("--dtype", spec.dtype, "--weights", spec.target_weights, "--numerics", spec.numerics, "--pacing", spec.pacing)
    threads = ("--threads", str(spec.threads.verifier))
    return ("--model", spec.target, *model, *lent, *threads, *spec.verifier_extra)


def drafter_options(spec: DeploymentSpec, draft: str) -> tuple[str, ...]:
    """The drafter's command line, but for where it listens."""
    model = ("--model", draft, "--dtype", spec.dtype, "--weights", spec.draft_weights, "--shortlist", spec.draft_shortlist)
    return (*model, "--threads", str(spec.threads.drafter), *spec.drafter_extra)
