"""The grid driver itself, shortly: ten real processes, four coordinators, everybody's tokens the same, and a prediction for every cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.cli.__main__ import main


@pytest.mark.slow
def test_every_cell_is_measured_predicted_and_identical(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grid.md"
    assert main(["bench", "grid", "--quick", "--tasks", "arithmetic", "prose", "--policies", "serial", "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("RESULT "))
    assert result["identical"] is True
    assert [(cell["drafters"], cell["verifiers"]) for cell in result["cells"]] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert all(cell["tokens_per_s"] > 0.0 and cell["predicted_tokens_per_s"] > 0.0 for cell in result["cells"])
    assert result["grid_max_error"] == max(abs(cell["error"]) for cell in result["cells"])
    report = out.read_text(encoding="utf-8")
    assert "| 2 x 2 |" in report
    assert "from micro-benchmarks alone" in report
