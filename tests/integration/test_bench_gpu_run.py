"""The run on a card from end to end without one: the same processes on a processor, a tiny target, and a RESULT line.

Run: pytest -m slow tests/integration/test_bench_gpu_run.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.cli.__main__ import main


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_code_runs_on_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    report = tmp_path / "gpu.md"
    asked = ["--requests", "1", "3", "--replay-acceptances", "0.9", "--max-tokens", "24", "--repeats", "1", "--draft-ms", "0.2"]
    assert main(["bench", "gpu", "--device", "cpu", "--size", "tiny", *asked, "--out", str(report)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("RESULT ")
    result = json.loads(last.removeprefix("RESULT "))
    assert result["identical"] is True
    assert result["num_answers"] == 2 * 4 * (1 + 3)  # temperatures, contestants, requests
    cells = result["cells"]
    assert len(cells) == 2 * 2 * (4 + 1)
    ours = [cell for cell in cells if cell["contestant"] != "transformers generate"]
    assert len(ours) == 2 * 2 * 4
    assert all(float(cell["tokens/s"]) > 0 for cell in cells)
    assert all(float(cell["simulated tokens/s"]) > 0 for cell in ours)
    assert result["num_generate_unlike_plain"] == 0, "the target leads by a wide margin: another library has the same answers"
    assert result["gpu_min_plain_vs_generate"] > 0
    assert "3 at a time: " in result["facts"]["transformers generate"]
    serial = [cell for cell in cells if cell["contestant"] == "outrider serial"]
    assert max(float(cell["tokens a round"]) for cell in serial) > 1.2  # replayed drafts were found, sent and right
    assert result["facts"]["a replayed draft token"].startswith("200 us")
    text = report.read_text()
    assert "### what the simulator was told" in text
    assert "## The full stack on a card" in text
