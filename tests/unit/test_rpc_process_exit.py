"""The end of a service's process: nothing that was written is lost, and Python does not take itself apart first."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 60.0
CODE = """
import atexit, logging, logging.handlers, sys, threading
from outrider.rpc.process_exit import exit_at_once

class Tracked:
    def __del__(self): print("taken apart", flush=True)

tracked = Tracked()
atexit.register(print, "registered", flush=True)
threading.Thread(target=threading.Event().wait).start()
logging.getLogger().addHandler(logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stderr)))
logging.warning("the last warning")
print("the last line", end="")
exit_at_once(3)
"""
SERVICES = ("drafter_service", "verifier_service", "pair_service", "machine_service", "outrider.gateway", "outrider.coordinator")


def ended(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": ""}  # what is to be lost must be kept first
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
    )


def test_what_was_written_arrives_and_nothing_else_runs() -> None:
    """Not even a thread that never ends is waited for."""
    process = ended(CODE)
    assert (process.returncode, process.stdout, process.stderr) == (3, "the last line", "the last warning\n")


def test_a_reader_that_has_gone_does_not_change_the_exit_code() -> None:
    gone = "import os; here, there = os.pipe(); os.dup2(there, 1); os.close(there); os.close(here)"
    process = ended(f"{gone}\n{CODE}")
    assert process.returncode == 3


STARTING = """
import asyncio, os, signal, sys
os.getpid = lambda: {pid}
from outrider.rpc.server import run_service

async def start():
    signal.raise_signal(int(sys.argv[1]))
    await asyncio.sleep({timeout_s})

run_service(start())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("pid", "code"), [(1, 128), (2, None)])
def test_a_signal_ends_a_service_that_starts_though_it_be_the_first_process_of_a_container(
    number: signal.Signals, pid: int, code: int | None
) -> None:
    """The kernel hands such a process no signal that it has no handler for; any other one is ended by the signal itself."""
    process = ended(STARTING.format(pid=pid, timeout_s=TIMEOUT_S), str(int(number)))
    assert (process.returncode, process.stderr) == (-number if code is None else code + number, "")


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_ends_that_way(service: str) -> None:
    spec = importlib.util.find_spec(f"{service}.__main__")
    assert spec is not None
    assert spec.origin is not None
    last = Path(spec.origin).read_text(encoding="utf-8").rstrip().splitlines()[-2:]
    assert last[0] == 'if __name__ == "__main__":'
    assert last[1].strip().startswith("exit_at_once(main(")


def test_no_service_imports_torch_before_it_has_read_its_arguments() -> None:
    """It takes some seconds, for which --help and the sentence about a wrong argument would have to wait."""
    modules = ", ".join(f"{service}.__main__" for service in SERVICES)
    process = ended(f"import sys, {modules}; sys.exit('torch' in sys.modules)")
    assert process.returncode == 0, process.stderr
