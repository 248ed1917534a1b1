"""A process that has loaded a model and forks services that serve it: a replacement is there in a fraction of a second.

Run as `python -m outrider_bench.chaos.spawner ROLE OPTIONS...` with the options of a verifier or drafter but for --listen. Each line of its
input is a JSON object {"options": [...], "log": PATH, "namespace": PATH or null}: a child is forked with these further options, in that
network namespace if one is named, and {"pid": ...} is answered, or {"ended": pid, "code": code} at any time for a child that is over.
Children share the weights' pages with it and die with it. Loads on one thread and starts none of its own: a fork copies only the thread
that forks. Must not know faults or requests.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from drafter_service.__main__ import serve_loaded
from drafter_service.loading import load_drafter
from drafter_service.settings import parse_settings as drafter_settings
from outrider.engine.load import load_engine
from outrider_bench.namespaces import enter
from verifier_service.process import serve_engine
from verifier_service.settings import parse_settings as verifier_settings
from verifier_service.sharing import open_sharing

VERIFIER, DRAFTER = "verifier", "drafter"
_PR_SET_PDEATHSIG = 1
_READY_LISTEN = "unix:/nowhere"  # what loading does not look at

Serve = Callable[[list[str]], int]


def load(role: str, options: list[str]) -> Serve:
    """Load what the role serves; the result runs a service with further options, in a process of its own. Raises what loading raises."""
    if role == VERIFIER:
        settings = verifier_settings([*options, "--listen", _READY_LISTEN])
        open_sharing(settings.sharing)  # imports what it needs, so that no child has to
        engine = load_engine(settings.engine)
        return lambda further: serve_engine(verifier_settings([*options, *further]), lambda: engine)
    loaded = load_drafter(drafter_settings([*options, "--listen", _READY_LISTEN]))
    return lambda further: serve_loaded(drafter_settings([*options, *further]), lambda: loaded)


def serve_orders(serve: Serve) -> None:
    """Fork a child for each line until the input ends; its children end with it."""
    children: set[int] = set()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    while True:
        readable, _, _ = select.select([sys.stdin, wake_read], [], [])
        if wake_read in readable:
            os.read(wake_read, 4096)
            _report_ended(children)
        if sys.stdin in readable:
            line = sys.stdin.readline()
            if not line:
                return
            order = json.loads(line)
            children.add(_fork(serve, order["options"], Path(order["log"]), order["namespace"]))


def _fork(serve: Serve, options: list[str], log: Path, namespace: str | None) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        _say({"pid": pid})
        return pid
    code = 1
    try:
        _become_child(parent, log)
        if namespace is not None:
            enter(namespace)
        code = serve(options)
    finally:
        os._exit(code)  # what the parent registered to run at its end is the parent's


def _become_child(parent: int, log: Path) -> None:
    """Die with the parent, stand alone as a group that can be signalled, and write to the log."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)


def _report_ended(children: set[int]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.discard(pid)
            _say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(message: dict[str, int | bool]) -> None:
    print(json.dumps(message), flush=True)


def main(arguments: list[str]) -> None:
    """Load, say so, obey."""
    serve = load(arguments[0], arguments[1:])
    _say({"ready": True})
    serve_orders(serve)


if __name__ == "__main__":
    main(sys.argv[1:])
