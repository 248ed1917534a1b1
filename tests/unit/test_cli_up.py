"""`outrider up` is told to stop: while a service that it starts again is loading it ends at once, and so does everything it started; told
once more, nothing drains any longer. Where nobody reads what it tells, it goes on.

pytest tests/unit/test_cli_up.py
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest

from mostly_slow import mostly_slow
from outrider.cli import __main__ as command
from outrider.cli import up
from outrider.cli.console import make_console
from outrider.coordinator import ray_deployment
from outrider.launch.process import ServiceCommand, ServiceProcess, StartFailed
from outrider.rpc.listening import REMEDY

WAIT_S, POLL_S = 60.0, 0.02
# Far below what a start may take (300 s), and what a service may take to drain (15 s), on a machine that is busy with other things.
AT_ONCE_S = 10.0
# argv: a folder, and SERVES or DRAINS.
UP = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have been told to ignore it, as by nohup
from outrider.cli import up
from outrider.cli.__main__ import end_on_signals, main
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.process import ServiceCommand
from outrider.launch.threads import ThreadPlan

FOLDER, CODE = Path(sys.argv.pop(1)), sys.argv.pop(1)

class OneLiners(Deployment):
    def commands(self):
        return [ServiceCommand(real.name, ("-c", CODE, str(FOLDER / real.name), "--grace-s=600")) for real in super().commands()]

up.start = lambda spec, progress: OneLiners(DeploymentSpec("target", "draft", "serial", ThreadPlan(1, 1)))
end_on_signals()
sys.exit(main(["up", "--listen", "127.0.0.1:0"]))
"""
# Services of one line: they say that they are ready, but for a drafter that finds its first life's note; that one never is, and is deaf.
SERVES = """
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
"""
# These drain until they are told a second time to end. At the first time they write to the pipe of their name, if there is one.
DRAINS = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("{}", flush=True)
signal.sigwait({signal.SIGTERM})
if os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
signal.sigwait({signal.SIGTERM})
"""


def outrider_up(folder: Path, code: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": str(folder)}
    arguments = [sys.executable, "-c", UP, str(folder), code]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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
    with outrider_up(tmp_path, SERVES) as process:
        try:
            pids = {name: until_there(tmp_path / name) for name in ("drafter", "verifier", "gateway")}
            os.kill(pids["drafter"], signal.SIGKILL)
            pids["drafter"] = until_there(tmp_path / "drafter.again")
            process.send_signal(number)
            _, told = process.communicate(timeout=AT_ONCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, told
    assert "starting the drafter again (1 of 3)" in told
    assert "was stopped before" not in told, "whoever stops it knows"
    assert not any(is_alive(pid) for pid in pids.values())
    assert not list(tmp_path.glob("outrider-*")), "its folder is gone"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_ends_what_drains(number: signal.Signals, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gateway")  # which is told first
    with outrider_up(tmp_path, DRAINS) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("try: outrider generate") for line in iter(process.stdout.readline, ""))
            process.send_signal(number)
            (tmp_path / "gateway").open().close()
            process.send_signal(number)
            _, told = process.communicate(timeout=AT_ONCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, told
    assert "once more ends them" in told
    assert not list(tmp_path.glob("outrider-*"))


@pytest.mark.parametrize("ray", [(), ("--ray",)])
def test_an_address_that_is_taken_is_refused_before_anything_starts(
    ray: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*_: object) -> NoReturn:
        raise AssertionError("nothing is started")

    monkeypatch.setattr(up, "start", start)
    monkeypatch.setattr(ray_deployment, "RayDeployment", start)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert command.main(["up", *ray, "--listen", address]) == 2
    assert capsys.readouterr().err == f"outrider: --listen: cannot bind {address}: Address already in use; {REMEDY}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "127.0.0.1:23071", "--metrics-port", "23070"], "23070 to 23072 are scraped, and --listen 127.0.0.1:23071 is among"),
        (["--listen", "127.0.0.1:0", "--ray", "--metrics-port", "7066"], "7066 to 7069 are scraped, and --fleet-port :7069 is among them"),
    ],
)
def test_ports_to_be_scraped_at_are_none_that_is_listened_at(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["up", *options]) == 2
    assert f"outrider: --metrics-port: {said}" in capsys.readouterr().err


def test_what_nobody_reads_any_more_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        progress = make_console(stderr=True)
        progress.print("drafter ended with exit code -9")
        progress.print("starting the drafter again (1 of 3)")
        monkeypatch.undo()


def test_a_hangup_is_nothing_to_who_was_started_to_ignore_it() -> None:
    """As `nohup` does; else it is what Ctrl-C is."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        command.end_on_signals()
        up.end_on_signals(threading.Event(), lambda: None)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        command.end_on_signals()
        assert signal.getsignal(signal.SIGHUP) is signal.default_int_handler
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
