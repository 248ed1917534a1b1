"""What doctor says of a card, for the cards there may be; none is here.

Run: pytest tests/unit/test_cli_card_check.py
"""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from outrider.cli.checks.card import check_card
from outrider.cli.checks.finding import Level


@pytest.fixture
def a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 80 GiB as torch would describe it."""
    for name, answer in {
        "is_available": True,
        "current_device": 0,
        "get_device_name": "Card 9000",
        "get_device_properties": SimpleNamespace(total_memory=80 * 2**30),
        "get_device_capability": (9, 0),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)


def test_a_machine_without_a_card_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    finding = check_card()
    assert finding.level is Level.FINE
    assert "no CUDA GPU" in finding.found


@pytest.mark.usefixtures("a_card")
def test_a_card_is_named_with_what_will_run_on_it() -> None:
    finding = check_card()
    assert finding.level is Level.FINE
    for part in ("Card 9000, 80 GiB", "Triton", "graphs"):
        assert part in finding.found


@pytest.mark.usefixtures("a_card")
def test_a_card_without_triton_is_a_note_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    finding = check_card()
    assert finding.level is Level.NOTE
    assert "outrider[triton]" in finding.remedy


@pytest.mark.usefixtures("a_card")
def test_an_old_card_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    finding = check_card()
    assert finding.level is Level.NOTE
    assert "7.0" in finding.found
