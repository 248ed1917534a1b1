"""A process that has imported what services import, and forks services: each is there without the seconds that its imports take.

Run as `python tests/forking_process.py FD MODULE...`: one end of a socket that keeps messages apart, and what to import. An order is a
JSON object {"arguments": ["-m", MODULE, ...], "environment": {...}, "cores": [...]} with two file descriptors, for stdout and stderr of the
service; {"pid": PID} is answered. {"ended": PID, "code": CODE} comes for a service that is over, whose process id stays taken until
{"forget": PID}. Services die with this process, and it ends with whoever holds the other end. It starts no thread and runs none of what it
imports: a fork copies only the thread that forks. Must not know which services there are.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback

from outrider.rpc.process_exit import exit_at_once

MAX_MESSAGE_BYTES = 1 << 17
_PR_SET_PDEATHSIG = 1


def obey(orders: socket.socket) -> None:
    """Fork a service for each order until the other end is closed."""
    alive: set[int] = set()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    while True:
        readable, _, _ = select.select([orders.fileno(), wake_read], [], [])
        if wake_read in readable:
            os.read(wake_read, 4096)
            _report_ended(orders, alive)
        if orders.fileno() in readable:
            message, outputs, _, _ = socket.recv_fds(orders, MAX_MESSAGE_BYTES, 2)
            if not message:
                return
            order = json.loads(message)
            if "forget" in order:
                os.waitpid(order["forget"], 0)
            else:
                alive.add(_fork(orders, order, outputs))


def _fork(orders: socket.socket, order: dict[str, object], outputs: list[int]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)  # whoever hears of it may signal its group at once
        for output in outputs:
            os.close(output)
        _say(orders, {"pid": pid})
        return pid
    orders.close()
    _become_child(parent, order, outputs)
    exit_at_once(_run(order["arguments"]))  # type: ignore[arg-type]


def _become_child(parent: int, order: dict[str, object], outputs: list[int]) -> None:
    """As launch/process.py starts a service: a group of its own, bound to whoever started it, its environment, nothing to read."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    for place, source in enumerate((os.open(os.devnull, os.O_RDONLY), *outputs)):
        os.dup2(source, place)
        os.close(source)
    cores: list[int] = order["cores"]  # type: ignore[assignment]
    if cores:
        os.sched_setaffinity(0, cores)
    os.environ.clear()
    os.environ.update(order["environment"])  # type: ignore[call-overload]


def _run(arguments: list[str]) -> int:
    """What `python ARGUMENTS` would run, and its exit code."""
    flag, module, *rest = arguments
    assert flag == "-m", f"a module is to be run, not {arguments}"
    sys.argv = [module, *rest]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001 python prints whatever it is, and ends with 1
        traceback.print_exc()
        return 1
    return 0


def _report_ended(orders: socket.socket, alive: set[int]) -> None:
    """Its process id stays taken, so that whoever has not heard of it yet cannot signal another process."""
    for pid in list(alive):
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            alive.discard(pid)
            _say(orders, {"ended": pid, "code": ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status})


def _say(orders: socket.socket, message: dict[str, int]) -> None:
    orders.send(json.dumps(message).encode())


def main(descriptor: int, modules: list[str]) -> None:
    """Import, then obey."""
    for module in modules:
        importlib.import_module(module)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"something that was imported has started {len(threads) - 1} threads"
    with socket.socket(fileno=descriptor) as orders:
        obey(orders)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
    exit_at_once(0)
