"""The level that a service's process logs from: one variable, in any case, and nonsense is refused in a line."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from outrider.errors import InvalidRequest
from outrider.rpc.process_log import LOG_VARIABLE, level_from_environment

TIMEOUT_S = 60.0
# What each would refuse next, had it been content with the variable.
SERVICES = [
    ("verifier_service", "--model", "nowhere"),
    ("drafter_service", "--model", "nowhere", "--listen", "127.0.0.1:0"),
    ("outrider.coordinator", "--listen", "nonsense"),
]


@pytest.mark.parametrize(
    ("text", "level"),
    [("debug", logging.DEBUG), ("DEBUG", logging.DEBUG), ("Warning", logging.WARNING), ("", logging.INFO), (None, logging.INFO)],
)
def test_a_level_is_taken_in_any_case(monkeypatch: pytest.MonkeyPatch, text: str | None, level: int) -> None:
    monkeypatch.delenv(LOG_VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(LOG_VARIABLE, text)
    assert level_from_environment() == level


@pytest.mark.parametrize("text", ["loud", "17", " info"])
def test_what_is_no_level_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(LOG_VARIABLE, text)
    with pytest.raises(InvalidRequest, match=f"must be one of debug, info, warning, error, critical, got '{text}'") as caught:
        level_from_environment()
    assert caught.value.field == LOG_VARIABLE


@pytest.mark.parametrize("command", SERVICES, ids=[command[0] for command in SERVICES])
def test_a_service_says_so_in_one_line(command: tuple[str, ...]) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, LOG_VARIABLE: "loud"}
    process = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
    )
    name = command[0].rpartition(".")[2]
    assert process.stderr == f"{name}: {LOG_VARIABLE}: must be one of debug, info, warning, error, critical, got 'loud'\n"
    assert process.returncode == 2
