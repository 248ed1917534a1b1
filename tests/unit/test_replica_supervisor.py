"""A supervised executable: started again after a crash, left alone after a drain, given up when it never lasts.

pytest tests/unit/test_replica_supervisor.py
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from outrider.coordinator.kept_address import MAX_FRUITLESS_STARTS
from outrider.coordinator.replica_actor import ReplicaActor, ReplicaSpec
from outrider.coordinator.replica_supervisor import ReplicaSupervisor, SupervisionLimits
from outrider.launch.process import ServiceCommand, ServiceProcess, StartFailed

START_S = 60.0
READY = "import json, signal, sys; print(json.dumps({'ready': True, 'address': 'h:7', 'metrics': 'http://h:8/metrics'}), flush=True)\n"
# Drains at SIGTERM, and from before anybody may send it.
SERVES = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + READY + "while True: signal.pause()\n"
QUICK = SupervisionLimits(min_backoff_s=0.01, max_backoff_s=0.05, max_failures=3, start_s=START_S, drain_s=START_S)


@contextlib.contextmanager
def supervised(code: str, folder: Path, limits: SupervisionLimits = QUICK) -> Iterator[ReplicaSupervisor]:
    supervisor = ReplicaSupervisor(ServiceCommand("one", ("-c", code)), folder / "one.log", limits)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()


def test_a_killed_process_comes_back_and_its_exit_code_is_kept(tmp_path: Path) -> None:
    with supervised(SERVES, tmp_path) as one:
        assert one.wait_ready(START_S) == "h:7"
        first = one.report()
        one.signal(signal.SIGKILL)
        assert one.wait_ready(START_S, num_starts=2) == "h:7"
        second = one.report()
        assert second.pid not in (0, first.pid)
        assert first.metrics == second.metrics == "http://h:8/metrics"
        assert (second.num_starts, second.exit_codes) == (2, (-signal.SIGKILL,))
        assert one.stop() == (-signal.SIGKILL, 0)
        assert one.report().has_ended


@pytest.mark.parametrize(("code", "is_kept"), [(SERVES, False), (SERVES.replace("sys.exit(0)", "sys.exit(7)"), True)])
def test_an_actors_log_goes_with_a_service_that_drained_and_tells_of_any_other_end(code: str, *, is_kept: bool) -> None:
    actor = ReplicaActor(ReplicaSpec(ServiceCommand("one", ("-c", code)), limits=QUICK))
    folder = Path(actor.log())
    try:
        assert actor.wait_ready(START_S) == "h:7"
        assert (folder / "one.log").exists()
        assert actor.stop() == ((7,) if is_kept else (0,))
        assert (folder / "one.log").exists() is is_kept
        assert folder.exists() is is_kept
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_start_that_the_system_refuses_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with supervised(SERVES, tmp_path) as one:
        one.wait_ready(START_S)
        spawn = ServiceProcess._spawn

        def refused_once(process: ServiceProcess, log: IO[bytes]) -> subprocess.Popen[bytes]:
            monkeypatch.setattr(ServiceProcess, "_spawn", spawn)
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        monkeypatch.setattr(ServiceProcess, "_spawn", refused_once)
        one.signal(signal.SIGKILL)
        assert one.wait_ready(START_S, num_starts=3) == "h:7"
        report = one.report()
        assert (report.exit_codes, report.has_ended) == ((-signal.SIGKILL,), False)
        assert "temporarily unavailable" in report.problem


def test_one_that_can_never_be_started_is_given_up_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with supervised(SERVES, tmp_path / "file" / "folder") as one:
        with pytest.raises(StartFailed, match="one could not be started"):
            one.wait_ready(START_S)
        assert (one.report().num_starts, one.report().exit_codes) == (QUICK.max_failures, ())


def test_one_whose_log_folder_is_gone_is_started_again(tmp_path: Path) -> None:
    with supervised(SERVES, tmp_path / "logs") as one:
        one.wait_ready(START_S)
        shutil.rmtree(tmp_path / "logs")
        one.signal(signal.SIGKILL)
        assert one.wait_ready(START_S, num_starts=2) == "h:7"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # what is told on stderr
def test_a_supervision_that_fails_itself_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: ReplicaSupervisor) -> None:
        raise ValueError("nobody thought of this")

    monkeypatch.setattr(ReplicaSupervisor, "_supervise", fails)
    with supervised(SERVES, tmp_path) as one, pytest.raises(StartFailed):
        one.wait_ready(START_S)
    assert one.report().has_ended


def test_one_that_still_loads_is_ended_at_once_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    os.mkfifo(note)
    deaf = f"import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, {{15}}); open({str(note)!r}, 'w').write(str(os.getpid()))\n"
    with supervised(deaf + "while True: signal.pause()", tmp_path) as one:
        pid = int(note.read_text())
        begin_s = time.monotonic()
        assert one.stop() == (-signal.SIGKILL,)
        assert time.monotonic() - begin_s < START_S / 2
        assert one.report().has_ended
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(("code", "why"), [(0, "it drained"), (3, "it was superseded")])
def test_a_replica_that_ended_for_good_is_not_started_again(tmp_path: Path, code: int, why: str) -> None:
    with supervised(READY + f"sys.exit({code})", tmp_path) as one:
        with pytest.raises(StartFailed, match=f"exit code {code}"):
            one.wait_ready(START_S, num_starts=2)
        report = one.report()
        assert (report.num_starts, report.exit_codes, report.has_ended) == (1, (code,), True), why


def test_one_that_never_lasts_is_given_up_with_the_reason(tmp_path: Path) -> None:
    with supervised("import sys; print('no such model', file=sys.stderr); sys.exit(2)", tmp_path) as one:
        with pytest.raises(StartFailed, match="no such model"):
            one.wait_ready(START_S)
        assert one.report().exit_codes == (2, 2, 2)


def test_one_that_lasted_is_not_given_up_for_crashes_long_ago(tmp_path: Path) -> None:
    limits = SupervisionLimits(min_backoff_s=0.01, max_failures=2, steady_s=0.0, start_s=START_S, drain_s=START_S)
    with supervised(READY + "sys.exit(1)", tmp_path, limits) as one:
        with one._changed:
            assert one._changed.wait_for(lambda: one.report().num_starts >= 5, START_S)
        assert not one.report().has_ended


def test_pauses_double_up_to_the_bound(tmp_path: Path) -> None:
    one = ReplicaSupervisor(ServiceCommand("one", ()), tmp_path / "log", SupervisionLimits(min_backoff_s=0.5, max_backoff_s=3.0))
    assert [one.backoff_s(failures) for failures in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


# Binds what --listen says, as a service does, and says where.
BINDS = """
import json, signal, socket, sys
host, _, port = sys.argv[sys.argv.index("--listen") + 1].rpartition(":")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
listener = socket.create_server((host, int(port)))
print(json.dumps({"ready": True, "address": f"{host}:{listener.getsockname()[1]}"}), flush=True)
while True: signal.pause()
"""


def binding(folder: Path) -> ReplicaSupervisor:
    command = ServiceCommand("one", ("-c", BINDS, "--listen", "127.0.0.1:0"))
    return ReplicaSupervisor(command, folder / "one.log", QUICK, folder / "one.address")


def test_a_killed_process_has_its_port_again_also_under_another_supervisor(tmp_path: Path) -> None:
    one = binding(tmp_path)
    one.start()
    try:
        address = one.wait_ready(START_S)
        one.signal(signal.SIGKILL)
        assert one.wait_ready(START_S, num_starts=2) == address
    finally:
        one.stop()
    other = binding(tmp_path)
    other.start()
    try:
        assert other.wait_ready(START_S) == address
    finally:
        other.stop()


def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "one.address").write_text(address)
        command = ServiceCommand("one", ("-c", BINDS, "--listen", "127.0.0.1:0"))
        one = ReplicaSupervisor(command, tmp_path / "one.log", replace(QUICK, max_failures=9), tmp_path / "one.address")
        one.start()
        try:
            found = one.wait_ready(START_S)
        finally:
            one.stop()
    assert found != address
    assert one.report().num_starts == MAX_FRUITLESS_STARTS + 1


def test_whose_drain_is_no_end_is_started_again(tmp_path: Path) -> None:
    one = ReplicaSupervisor(ServiceCommand("one", ("-c", SERVES)), tmp_path / "one.log", QUICK, final_codes=())
    one.start()
    try:
        one.wait_ready(START_S)
        one.signal(signal.SIGTERM)
        one.wait_ready(START_S, num_starts=2)
        assert one.report().exit_codes == (0,)
    finally:
        one.stop()
