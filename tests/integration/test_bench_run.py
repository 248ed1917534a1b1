"""The speed and identity runs from end to end, as small as they get: they finish, agree with themselves, and print a RESULT line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.cli.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def result_of(printed: str) -> dict[str, object]:
    last = printed.splitlines()[-1]
    assert last.startswith("RESULT ")
    result: dict[str, object] = json.loads(last.removeprefix("RESULT "))
    return result


def test_a_speed_run_measures_every_contestant_and_writes_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "speed.md"
    assert main(["bench", "--quick", "--tasks", "copying", "--prompts", "1", "--max-tokens", "24", "--out", str(report)]) == 0
    result = result_of(capsys.readouterr().out)
    assert result.keys() >= {f"iso_{key}_vs_{other}" for key in ("t0", "t08") for other in ("generate", "assisted", "own_plain")}
    assert result.keys() >= {"min_cell_vs_plain", "stack_ratio", "bound_fraction", "sim_max_error", "identical", "cells"}
    assert result.keys() >= {"stack_ratio_best", "reconcile_share", "draft_token_share"}
    assert isinstance(result["draft_token_share"], float)
    assert 0.0 < result["draft_token_share"] < 2.0
    cells = result["cells"]
    assert isinstance(cells, list)
    contestants = {cell["contestant"] for cell in cells}
    assert contestants >= {"transformers generate", "transformers assisted", "outrider plain", "outrider serial", "outrider pearl"}
    assert contestants >= {"one process serial", "one process adaptive"}
    assert result["identical"] is True, result["flips"]
    replayed = {cell["task"] for cell in cells if cell["task"].startswith("replayed")}
    assert len(replayed) == 4
    text = report.read_text()
    assert "### copying, T = 0.8" in text
    assert "| reconciling |" in text
    assert "### replayed drafts, acceptance 0.9, T = 0" in text


def test_an_identity_run_covers_both_dtypes_and_both_numerics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six requests for each of the ten kinds of drafts: one or two may have nothing rejected, or nothing drafted."""
    report = tmp_path / "identity.md"
    assert main(["bench", "identity", "--prompts", "60", "--max-tokens", "64", "--out", str(report)]) == 0
    result = result_of(capsys.readouterr().out)
    assert result["identical"] is True
    assert result["cells_prove_something"] is True
    assert result["oracle_beyond_ties_fp32"] == 0
    assert "| bfloat16 | invariant |" in report.read_text()
