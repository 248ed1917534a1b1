"""A verifier's process: what it sets before it loads.

Run: pytest tests/unit/test_verifier_process.py
"""

from __future__ import annotations

import sys
from typing import NoReturn

import pytest

from outrider.errors import ModelRefused
from verifier_service.process import SWITCH_INTERVAL_S, serve_engine
from verifier_service.settings import parse_settings


@pytest.mark.usefixtures("own_process")
def test_the_engine_thread_waits_for_the_interpreter_no_longer_than_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    sys.setswitchinterval(0.005)
    found: list[float] = []

    def load() -> NoReturn:
        found.append(sys.getswitchinterval())
        raise ModelRefused("none is here")

    assert serve_engine(parse_settings(["--model", "target", "--listen", "127.0.0.1:0"]), load) == 2
    assert "none is here" in capsys.readouterr().err
    assert found == [pytest.approx(SWITCH_INTERVAL_S)]
    assert 0.0002 <= SWITCH_INTERVAL_S <= 0.001, "longer than a message's turns of the loop, shorter than what a step may lose behind it"
