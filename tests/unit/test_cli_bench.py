"""`outrider bench`: what is refused before anything is measured.

pytest tests/unit/test_cli_bench.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from outrider.cli.__main__ import build_parser, main
from outrider_bench import simulate


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a driver was asked to measure."""
    asked: list[str] = []

    def measure(args: argparse.Namespace) -> int:
        asked.append(args.what)
        return 0

    monkeypatch.setattr(simulate, "run", measure)
    return asked


@pytest.mark.parametrize("out", ["nothing/x.md", "."])
def test_a_page_that_cannot_be_written_is_refused_before_measuring(
    tmp_path: Path, out: str, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "simulate", "--out", str(tmp_path / out)]) == 2
    assert "--out: " in capsys.readouterr().err
    assert not measured


@pytest.mark.parametrize("exists", [True, False])
def test_a_page_of_somebody_elses_is_refused_too(
    tmp_path: Path, exists: bool, measured: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "x.md"
    if exists:
        page.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: path != (page if exists else tmp_path))
    assert main(["bench", "simulate", "--out", str(page)]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert not measured


def test_a_page_that_can_be_written_is_measured(tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "simulate", "--out", "x.md"]) == 0
    assert measured == ["simulate"]


@pytest.mark.parametrize("amount", ["--repeats", "--prompts", "--max-tokens", "--faults", "--jobs"])
def test_nothing_is_not_an_amount_that_can_be_measured(amount: str, measured: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It was taken for the usual amount, and a run of twenty minutes began."""
    with pytest.raises(SystemExit):
        main(["bench", "simulate", amount, "0"])
    assert f"argument {amount}: must be a whole number of at least 1, got 0" in capsys.readouterr().err
    assert not measured


def test_a_share_of_hardly_any_tokens_is_one_token() -> None:
    plan = simulate.plan_of(build_parser().parse_args(["bench", "simulate", "--quick", "--share", "1e-9"]))
    assert {cell.num_tokens(plan.share) for cell in plan.cells} == {1}
