"""Forked services are what started ones are: ready line, log, exit code, signals, environment, and death with whoever forked them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import forked_services
from forked_services import Nursery
from outrider.launch.process import ServiceCommand, StartFailed

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def quick() -> Iterator[Nursery]:
    """One that has imported little."""
    nursery = Nursery(("outrider.coordinator.server", "uvloop"))
    yield nursery
    nursery.end()


@pytest.fixture
def shared(quick: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_services, "nursery", lambda: quick)


def start(folder: Path, *arguments: str, **options: object) -> forked_services.ForkedService:
    return forked_services.ForkedService(ServiceCommand("service", ("-m", *arguments), **options), folder / "service.log")  # type: ignore[arg-type]


def ready(process: forked_services.ForkedService) -> dict[str, object]:
    return process.wait_ready(time.monotonic() + WITHIN_S)


@pytest.mark.usefixtures("shared")
def test_it_says_that_it_is_ready_and_ends_by_itself(tmp_path: Path) -> None:
    """Its input is empty, on which this one ends."""
    process = start(tmp_path, "fakes_worker", "ready")
    assert ready(process) == {"version": "1"}
    assert process._process.wait(WITHIN_S) == 0
    assert process.stop(WITHIN_S) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("fakes_worker", "die"), r"\(exit code 3\)"),
        (("outrider.coordinator", "--listen", "nowhere"), r"(?s)\(exit code 2\).*coordinator: listen"),
        (("outrider.nothing",), r"(?s)\(exit code 1\).*No module named outrider.nothing"),
    ],
)
@pytest.mark.usefixtures("shared")
def test_one_that_cannot_start_is_explained(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    process = start(tmp_path, *arguments)
    with pytest.raises(StartFailed, match=sentence):
        ready(process)
    process.stop(0.0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
@pytest.mark.usefixtures("shared")
def test_signals_reach_it_and_its_end_is_told(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(tmp_path, "outrider.coordinator", "--listen", f"unix:{tmp_path}/c.sock", cores=(0,))
    assert ready(process)["pid"] == process.pid
    assert f"\nCpus_allowed_list:\t{0}\n" in Path(f"/proc/{process.pid}/status").read_text()
    assert process.exit_code is None
    process.signal(number)
    assert process._process.wait(WITHIN_S) == code
    assert process.exit_code == code
    process.signal(number)  # of a process that is over: nothing
    assert process.stop(0.0) == code


@pytest.mark.usefixtures("shared")
def test_it_gets_the_environment_that_was_meant_for_it(tmp_path: Path) -> None:
    process = start(tmp_path, "outrider.coordinator", "--help", environment={"COLUMNS": "40"})
    assert process._process.wait(WITHIN_S) == 0
    process.stop(0.0)
    widths = [len(line) for line in process.log_path.read_text().splitlines() if line.startswith("usage:")]
    assert max(widths) <= 40


def test_it_dies_with_the_process_that_forked_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nursery = Nursery(())
    monkeypatch.setattr(forked_services, "nursery", lambda: nursery)
    process = start(tmp_path, "outrider.coordinator", "--listen", f"unix:{tmp_path}/c.sock")
    ready(process)
    nursery.end()
    stdout = process._process.stdout
    assert stdout is not None
    process._reader.join(WITHIN_S)  # the other end of its pipe is closed by its death
    assert not process._reader.is_alive()
    stdout.close()


def test_one_with_threads_of_its_own_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(forked_services, "nursery")
    process = start(tmp_path, "fakes_worker", "ready", num_threads=2)
    assert ready(process) == {"version": "1"}
    assert process.stop(WITHIN_S) in (0, -signal.SIGTERM)
