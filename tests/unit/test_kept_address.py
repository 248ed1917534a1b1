"""The address a service has again after every start: which option becomes it, and when it is given up.

pytest tests/unit/test_kept_address.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.coordinator.kept_address import MAX_FRUITLESS_STARTS, KeptAddress

WANTED = ("-m", "service", "--listen", "10.0.0.2:0", "--drafter", "10.0.0.2:0")
BOUND = "10.0.0.2:4711"
AGAIN = ("-m", "service", "--listen", BOUND, "--drafter", "10.0.0.2:0")


def test_any_port_is_wanted_until_one_is_bound_and_that_one_from_then_on() -> None:
    kept = KeptAddress()
    assert kept.arguments(WANTED) == WANTED
    assert kept.arguments(("--listen", ":0")) == ("--listen", ":0"), "for the service to refuse by name"
    kept.bound(BOUND)
    assert kept.arguments(WANTED) == AGAIN


@pytest.mark.parametrize("listen", ["unix:/tmp/one.sock", "10.0.0.2:70", "10.0.0.2:40", "10.0.0.3:0"])
def test_an_address_of_the_operators_own_stays(listen: str) -> None:
    kept = KeptAddress()
    kept.bound(BOUND)
    assert kept.arguments(("--listen", listen)) == ("--listen", listen)


def test_a_note_keeps_it_for_whoever_supervises_next(tmp_path: Path) -> None:
    KeptAddress(tmp_path / "note").bound(BOUND)
    assert KeptAddress(tmp_path / "note").arguments(WANTED) == AGAIN


def test_after_fruitless_starts_in_a_row_another_port_is_asked_for() -> None:
    kept = KeptAddress()
    kept.bound(BOUND)
    for _ in range(MAX_FRUITLESS_STARTS - 1):
        kept.failed()
    kept.bound(BOUND)  # it came up after all: the count begins anew
    for _ in range(MAX_FRUITLESS_STARTS - 1):
        kept.failed()
        assert kept.arguments(WANTED) == AGAIN
    kept.failed()
    assert kept.arguments(WANTED) == WANTED


def test_a_note_that_cannot_be_kept_is_logged_and_costs_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptAddress(tmp_path / "nowhere" / "note")
    kept.bound(BOUND)
    assert kept.arguments(WANTED) == AGAIN
    assert "cannot be kept" in caplog.text
    KeptAddress(tmp_path)
    assert "cannot be read" in caplog.text
