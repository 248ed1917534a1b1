"""The commands a newcomer types, as processes: `outrider run` with its RESULT line, and `outrider up` with `generate` against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mostly_slow import mostly_slow
from outrider.cli.__main__ import INTERRUPTED, main
from outrider.session.pacing.default import DEFAULT_PACING

TIMEOUT_S = 150.0
RESULT_KEYS = {
    "tokens_per_s",
    "plain_tokens_per_s",
    "speedup",
    "identical",
    "acceptance_rate",
    "mean_emitted_per_round",
    "overlap_share",
}


def outrider(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **variables}
    return subprocess.Popen(
        [sys.executable, "-m", "outrider.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize("pacing", mostly_slow([("--pacing", "serial"), ()], 1), ids=["serial", "default"])
def test_run_streams_compares_and_ends_with_a_result_line(pacing: tuple[str, ...]) -> None:
    process = outrider("run", "--max-tokens", "32", "--repeats", "1", "--numerics", "invariant", "--temperature", "0.8", *pacing)
    printed, complaints = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, complaints
    last = printed.splitlines()[-1]
    assert last.startswith("RESULT ")
    result = json.loads(last.removeprefix("RESULT "))
    assert result.keys() >= RESULT_KEYS
    assert result["identical"] is True
    assert 0 <= result["acceptance_rate"] <= 1
    assert result["mean_emitted_per_round"] >= 1
    assert result["pacing"] == (pacing[-1] if pacing else DEFAULT_PACING)
    if pacing:  # the default may find that drafts do not pay on a busy machine
        assert result["acceptance_rate"] > 0
        assert result["mean_emitted_per_round"] > 1
    assert result["tokens_per_s"] > 0
    assert "accepted" in printed


@pytest.mark.slow
def test_a_terminated_run_leaves_nothing_behind(tmp_path: Path) -> None:
    process = outrider("run", "--repeats", "50", TMPDIR=str(tmp_path))
    assert process.stdout is not None
    assert process.stdout.readline()  # its services are up, and 50 repetitions are far from over
    assert list(tmp_path.glob("outrider-*"))
    process.send_signal(signal.SIGTERM)
    _, complaints = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == INTERRUPTED, complaints
    assert not list(tmp_path.iterdir())


def test_up_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/gateway.sock"
    process = outrider("up", "--listen", address)
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("try: outrider generate"):
                break
        assert any("drafter" in line for line in lines), "".join(lines)
        assert main(["generate", "--gateway", address, "--chat", "What is 2 + 2?", "--max-tokens", "8"]) == 0
        assert main(["doctor", "--no-models", "--gateway", address]) == 0
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, complaints
    assert main(["generate", "--gateway", address, "again"]) == 1


def test_a_model_that_cannot_be_loaded_is_explained(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not a model")
    (tmp_path / "config.json").write_text("{}")
    process = outrider("run", "--target", str(tmp_path), "--draft", "none")
    _, complaints = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "verifier ended before it was ready" in complaints
    assert "end of its log" in complaints
