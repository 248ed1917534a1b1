"""The default run's two halves: at one time, every folder in one of them, words kept apart, and one closing line that tells the truth."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

import side_by_side
from house.repository import ROOT

DEADLINE_S = 60.0
# Each half of a pair waits for the other's file: neither passes in a run after the other.
MEETS = """
import pathlib, threading

def test_meets_the_other_half():
    here, there = {files}
    pathlib.Path(here).touch()
    never = threading.Event()
    for _ in range(3000):
        if pathlib.Path(there).exists():
            return
        never.wait(0.01)
    raise AssertionError("the other half was not there")
"""
PASSES = "def test_passes():\n    pass\n"
FAILS = "def test_fails():\n    assert False, 'on purpose'\n"
DIES = "import os\n\ndef test_dies():\n    os._exit(0)\n"
HAS_A_FIXTURE_THAT_FAILS = """
import pytest

@pytest.fixture
def broken():
    yield
    assert False

def test_passes(broken):
    pass
"""


def started(folder: Path, tests: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
    """The script over these tests, by their path below tests/."""
    for name in side_by_side.WITHIN:
        (folder / name).mkdir(parents=True)
    for name, text in tests.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "tests/side_by_side.py"), *options]
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(folder: Path, tests: Mapping[str, str]) -> tuple[int, list[str]]:
    """Exit code and lines."""
    with started(folder, tests) as process:
        told, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, told.splitlines()


def counted(line: str) -> str:
    """The middle of a closing line, without its time."""
    assert line.startswith("=")
    assert line.endswith("s " + "=" * (len(line) - len(line.rstrip("="))))
    return line.strip("= ").rpartition(" in ")[0]


def test_both_halves_run_at_one_time_and_each_one_s_words_stay_together(tmp_path: Path) -> None:
    tests = {
        "unit/test_a.py": MEETS.format(files=("here", "there")),
        "integration/test_b.py": MEETS.format(files=("there", "here")),
        "new/test_c.py": PASSES,
        "house/test_d.py": FAILS,  # `make check` runs these
    }
    code, lines = run(tmp_path, tests)
    assert code == 0, lines
    assert counted(lines[-1]) == "3 passed"
    at = {name: index for index, line in enumerate(lines) for name in tests if line.startswith(f"tests/{name}")}
    ends = [index for index, line in enumerate(lines) if line.startswith("=") and " passed" in line]
    assert at["unit/test_a.py"] < ends[0] < at["integration/test_b.py"] < at["new/test_c.py"] < ends[1] < ends[2] == len(lines) - 1


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (FAILS, PASSES, "1 failed, 2 passed"),
        (PASSES, DIES, "2 passed, 1 error"),
        (HAS_A_FIXTURE_THAT_FAILS, "import nothing_of_this_name", "1 passed, 2 error"),
    ],
    ids=["a test fails", "a run dies and says that all is well", "what a test needs fails"],
)
def test_what_goes_wrong_in_either_half_fails_the_run(tmp_path: Path, ours: str, theirs: str, expected: str) -> None:
    code, lines = run(tmp_path, {"unit/test_a.py": ours, "unit/test_b.py": PASSES, "kernels/test_c.py": theirs})
    assert code == 1
    assert counted(lines[-1]) == expected


def test_told_to_end_it_ends_both_and_counts_what_there_was(tmp_path: Path) -> None:
    """Neither would come to its end by itself within this test's time."""
    hangs = "import threading\n\ndef test_hangs():\n    print('it hangs', flush=True)\n    threading.Event().wait(100)\n"
    with started(tmp_path, {"unit/test_a.py": PASSES, "unit/test_b.py": hangs, "kernels/test_c.py": hangs}, "-s") as process:
        assert process.stdout is not None
        while "it hangs" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode != 0


def test_a_run_of_nothing_says_so() -> None:
    assert counted(side_by_side.closing_line(Counter(), 1.0)) == "no tests ran"
