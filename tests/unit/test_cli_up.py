"""`outrider up` is told to stop while a service that it starts again is loading: it ends at once, and so does everything it started.

pytest tests/unit/test_cli_up.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mostly_slow import mostly_slow
from outrider.launch.process import ServiceCommand, ServiceProcess, StartFailed

WAIT_S, POLL_S = 60.0, 0.02
# Far below what a start may take (300 s), and what a service may take to drain (15 s), on a machine that is busy with other things.
AT_ONCE_S = 10.0
# Services of one line: they say that they are ready, but for a drafter that finds its first life's note; that one never is, and is deaf.
UP = """
import sys
from pathlib import Path
from outrider.cli import up
from outrider.cli.__main__ import end_on_signals, main
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.process import ServiceCommand
from outrider.launch.threads import ThreadPlan

SERVES = '''
import os, signal, sys
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
note = Path(sys.argv[1])
is_second = note.exists()
if not is_second:
    print("{}", flush=True)  # one that dies before it is ready is not started again
note.with_suffix(".part").write_text(str(os.getpid()))
note.with_suffix(".part").rename(note.with_suffix(".again") if is_second else note)
if is_second:
    signal.pause()
signal.sigwait({signal.SIGTERM})
'''
FOLDER = Path(sys.argv.pop(1))

class OneLiners(Deployment):
    def commands(self):
        return [ServiceCommand(real.name, ("-c", SERVES, str(FOLDER / real.name))) for real in super().commands()]

up.start = lambda spec, progress: OneLiners(DeploymentSpec("target", "draft", "serial", ThreadPlan(1, 1)))
end_on_signals()
sys.exit(main(["up"]))
"""


def until_there(path: Path) -> int:
    """The process id in the file, once it is there."""
    deadline_s = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path.name} was not there within {WAIT_S:g} s"
        time.sleep(POLL_S)
    return int(path.read_text())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", mostly_slow([signal.SIGINT, signal.SIGTERM], 1))
def test_a_signal_while_a_service_loads_again_ends_everything_at_once(number: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", UP, str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True) as up:
        try:
            pids = {name: until_there(tmp_path / name) for name in ("drafter", "verifier", "gateway")}
            os.kill(pids["drafter"], signal.SIGKILL)
            pids["drafter"] = until_there(tmp_path / "drafter.again")
            up.send_signal(number)
            _, told = up.communicate(timeout=AT_ONCE_S)
        finally:
            up.kill()
    assert up.returncode == 0, told
    assert "starting the drafter again (1 of 3)" in told
    assert "was stopped before" not in told, "whoever stops it knows"
    assert not any(is_alive(pid) for pid in pids.values())
    assert not list(tmp_path.glob("outrider-*")), "its folder is gone"


def test_a_start_that_nobody_wants_any_more_is_left_and_one_that_is_wanted_is_waited_for(tmp_path: Path) -> None:
    process = ServiceProcess(ServiceCommand("loads", ("-c", "import signal; signal.pause()")), tmp_path / "it.log")
    given_up = threading.Event()
    waiting = threading.Timer(0.3, given_up.set)
    try:
        assert not process.is_ready
        with pytest.raises(StartFailed, match="was not ready in time"):
            process.wait_ready(time.monotonic() + 0.05, given_up)
        waiting.start()
        with pytest.raises(StartFailed, match="was stopped before it was ready"):
            process.wait_ready(time.monotonic() + WAIT_S, given_up)
        assert process.exit_code is None, "who stops it ends it"
    finally:
        waiting.cancel()
        process.stop(0.0)
