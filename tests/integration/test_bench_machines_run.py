"""The three-machine driver itself, shortly: real processes at addresses of their own, one relay, and the same tokens from everybody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.cli.__main__ import main
from outrider.launch.threads import usable_cores


@pytest.mark.slow
@pytest.mark.parametrize("wish", ["auto", "loopback"])
@pytest.mark.skipif(len(usable_cores()) < 2, reason="verifier and drafter need a core each")
def test_two_distances_give_ratios_and_the_same_tokens(wish: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "machines.md"
    amount = ["--tasks", "arithmetic", "--prompts", "1", "--repeats", "1", "--max-tokens", "24"]
    assert main(["bench", "machines", "--machines", wish, "--delays-ms", "0", "20", *amount, "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("RESULT "))
    assert result["identical"] is True
    assert wish == "auto" or result["facts"]["machines"] == "loopback addresses"
    assert set(result["vs_plain_by_delay_ms"]["adaptive"]) == {"0", "20"}
    assert result["adaptive_min_vs_plain"] > 0.0
    drafted = {cell["contestant"]: cell["acceptance_rate"] for cell in result["cells"] if cell["task"] == "20 ms, arithmetic"}
    assert drafted["outrider serial"] > 0.5, "the draft model is reached through the wire"
    assert "| 20 ms | arithmetic |" in out.read_text(encoding="utf-8")
