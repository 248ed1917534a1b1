"""A child service: its ready line, its log, its death with its parent, and the bounds on starting and stopping it."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from outrider.launch import process as launch_process
from outrider.launch.process import ServiceCommand, ServiceProcess, StartFailed

READY = "import json, sys; print(json.dumps({'ready': True, 'port': 7}), flush=True)\n"
WAIT_FOR_TERM = "import signal; signal.sigwait({signal.SIGTERM})\n"
BLOCK_TERM = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
START_S = 60.0
CHILD = "import signal; print('{}', flush=True); signal.pause()"
PARENT = """
import signal, sys, time
from pathlib import Path
from outrider.launch.process import ServiceCommand, ServiceProcess

service = ServiceProcess(ServiceCommand("child", ("-c", sys.argv[2])), Path(sys.argv[1]) / "child.log")
service.wait_ready(time.monotonic() + 20.0)
print(service.pid, flush=True)
signal.pause()
"""


def service(code: str, tmp_path: Path, **options: object) -> ServiceProcess:
    command = ServiceCommand("echo", ("-c", code), **options)  # type: ignore[arg-type]
    return ServiceProcess(command, tmp_path / "echo.log")


def ready(process: ServiceProcess) -> dict[str, object]:
    return process.wait_ready(time.monotonic() + START_S)


def test_ready_line_is_read_and_other_output_goes_to_the_log(tmp_path: Path) -> None:
    # blocked before the ready line, so that the stop that follows cannot overtake what is printed later
    process = service(BLOCK_TERM + "print('hello')\n" + READY + "print('later', flush=True)\n" + WAIT_FOR_TERM, tmp_path)
    try:
        assert ready(process) == {"ready": True, "port": 7}
    finally:
        process.stop(START_S)
    assert process.log_path.read_text() == "hello\nlater\n"


def test_a_service_that_dies_at_the_start_is_explained_by_its_log(tmp_path: Path) -> None:
    process = service("import sys; print('no such model: x', file=sys.stderr); sys.exit(3)", tmp_path)
    with pytest.raises(StartFailed, match=r"(?s)echo ended before it was ready \(exit code 3\).*no such model: x"):
        ready(process)
    assert process.stop(0.0) == 3


def test_what_is_told_of_a_failed_start_holds_no_password(tmp_path: Path) -> None:
    command = ServiceCommand(
        "echo", ("-c", "raise SystemExit(2)", "--redis-url", "redis://me:s3c/r@t@host:6379/1"), environment={"X": "s3cret"}
    )
    process = ServiceProcess(command, tmp_path / "echo.log")
    with pytest.raises(StartFailed, match=r"--redis-url redis://\*\*\*@host:6379/1"):
        ready(process)
    process.stop(0.0)
    assert "s3cret" not in repr(command)


def test_a_service_that_never_says_ready_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    process = service("import signal; signal.sigwait({signal.SIGTERM})", tmp_path)
    try:
        with pytest.raises(StartFailed, match="was not ready in time"):
            process.wait_ready(time.monotonic())
        assert process.exit_code is None
    finally:
        process.stop(START_S)


def test_sigterm_drains_and_the_exit_code_is_the_services_own(tmp_path: Path) -> None:
    process = service(BLOCK_TERM + READY + WAIT_FOR_TERM + "sys.exit(5)", tmp_path)
    ready(process)
    assert process.stop(START_S) == 5


def test_a_service_that_ignores_sigterm_is_killed_at_the_bound(tmp_path: Path) -> None:
    process = service(BLOCK_TERM + READY + "signal.sigwait({signal.SIGUSR1})", tmp_path)
    ready(process)
    assert process.stop(0.05) == -signal.SIGKILL


def test_a_child_that_outlives_its_service_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_process, "READER_DEADLINE_S", 0.2)
    # the child has the service's stdout open until somebody writes to the fifo
    fifo = tmp_path / "until"
    os.mkfifo(fifo)
    child = f'[sys.executable, "-c", "open({str(fifo)!r}).read()"]'
    spawn = f"import subprocess, sys; subprocess.Popen({child}, start_new_session=True)\n"
    process = service(spawn + READY + WAIT_FOR_TERM, tmp_path)
    ready(process)
    begin = time.monotonic()
    process.stop(START_S)
    assert time.monotonic() - begin < START_S
    fifo.write_text("over")
    process.stop(START_S)  # again, now that the pipe is free


def test_a_stopped_service_can_still_be_ended(tmp_path: Path) -> None:
    process = service(BLOCK_TERM + READY + WAIT_FOR_TERM, tmp_path)
    ready(process)
    process.signal(signal.SIGSTOP)
    assert process.stop(START_S) == 0


def test_what_the_system_refuses_to_start_is_a_failed_start_that_names_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuses)
    with pytest.raises(StartFailed, match=r"echo could not be started: .*temporarily unavailable"):
        service(READY, tmp_path)


def test_a_service_that_nobody_could_listen_to_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    end = ServiceProcess.signal

    def noted(process: ServiceProcess, number: signal.Signals) -> None:
        ended.append(process.pid)
        end(process, number)

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ServiceProcess, "signal", noted)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(StartFailed, match="echo could not be started: can't start new thread"):
        service(READY + WAIT_FOR_TERM, tmp_path)
    (pid,) = ended
    assert not Path(f"/proc/{pid}").exists()


def test_a_log_folder_that_was_tidied_away_is_made_anew_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    process = service("import sys; print('hello', file=sys.stderr)\n" + BLOCK_TERM + READY + WAIT_FOR_TERM, folder)
    try:
        ready(process)
    finally:
        process.stop(START_S)
    assert process.log_path.read_text() == "hello\n"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_threads_cores_and_environment_reach_the_service(tmp_path: Path) -> None:
    code = (
        "import json, os\n"
        "seen = {'omp': os.environ['OMP_NUM_THREADS'], 'x': os.environ['X'], 'cores': sorted(os.sched_getaffinity(0))}\n"
        "print(json.dumps(seen), flush=True)\n"
    )
    core = min(os.sched_getaffinity(0))
    process = service(code, tmp_path, num_threads=3, cores=(core,), environment={"X": "y"})
    assert ready(process) == {"omp": "3", "x": "y", "cores": [core]}
    process.stop(START_S)


def test_services_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), CHILD], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    watch = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    ended, _, _ = select.select([watch], [], [], START_S)
    os.close(watch)
    assert ended, "the service outlived its killed parent"
