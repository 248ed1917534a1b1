"""The peers run from end to end, as small as it gets; where the extra `peers` is not installed, the sentence that says how to get it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from outrider.cli.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_peers_run_compares_everyone_or_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "peers.md"
    code = main(["bench", "peers", "--quick", "--tasks", "copying", "--prompts", "1", "--max-tokens", "24", "--out", str(report)])
    printed = capsys.readouterr()
    if importlib.util.find_spec("openvino_genai") is None:
        assert code == 2
        assert "`make bench-peers` installs" in printed.err
        return
    assert code == 0
    result = json.loads(printed.out.splitlines()[-1].removeprefix("RESULT "))
    others = ("generate", "assisted", "lookup", "openvino", "openvino_draft", "openvino_lookup", "own_plain")
    assert result.keys() >= {f"iso_{key}_vs_{other}" for key in ("t0", "t08") for other in others}
    assert result["identical"] is True, result["differences"]
    assert not {"outrider serial", "outrider adaptive", "openvino plain"} & set(result["samples_unlike_plain"])
    assert "openvino-genai" in result["facts"]["versions"]
    assert all(cell["cpu_ms_per_token"] > 0 for cell in result["cells"])
    assert "### copying, T = 0.8" in report.read_text()
