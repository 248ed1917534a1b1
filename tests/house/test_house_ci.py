"""What continuous integration calls: the README's test command, its exit status, and pytest's closing line at the end."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from house.repository import ROOT

CLOSING = "===== 3 failed, 4 passed in 2.50s ====="


@pytest.mark.parametrize("status", [0, 7])
def test_ci_runs_make_test_and_ends_with_the_closing_line(tmp_path: Path, status: int) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(f"test:\n\t@echo '{CLOSING}'; echo more; exit {status}\n", encoding="utf-8")
    done = subprocess.run([tmp_path / ".ci/run"], capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == (status != 0)
    assert done.stdout.splitlines()[-1] == CLOSING


def test_ci_calls_the_command_that_the_readme_names() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert [line for line in script.splitlines() if "make" in line and not line.startswith("#")] == ['make test 2>&1 | tee "$log"']
    assert "\nmake test " in (ROOT / "README.md").read_text(encoding="utf-8")
