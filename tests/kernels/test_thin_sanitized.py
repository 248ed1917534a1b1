"""Thin operations read and write nothing but their own memory, do nothing that C leaves undefined, and no two threads touch the same at a
time: what the compiler's sanitizers say of the tests of kernels and of engines that compute ahead, run once more with each.

Broken copies of the C files show that a sanitizer would say so. Tests that break copies themselves are left out.
Run: pytest -m slow tests/kernels/test_thin_sanitized.py (some six minutes on two cores; skipped without GCC's sanitizers)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from outrider_kernels.native_library import find_compiler

TESTS = Path(__file__).parents[1]
LIBRARIES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",  # neither torch nor Python was compiled with it
}
KERNELS = tuple(str(path) for path in sorted((TESTS / "kernels").glob("test_thin_*.py")) if path != Path(__file__))
ENGINES = tuple(str(TESTS / "unit" / f"test_engine_{name}.py") for name in ("round_ahead", "followed", "lent_threads", "shortlist"))
DEADLINE_S = 900.0

TOUCHED, TEAM, AHEAD = (str(TESTS / "kernels" / f"test_thin_{name}.py") for name in ("touched", "team", "ahead"))
BREAKS = {
    "room for too few logits": (
        "address",
        TOUCHED,
        "touched.c",
        "(of->length + row->path_len) * sizeof(float)",
        "of->length * sizeof(float)",
    ),
    "a shift beyond the number": ("address", TEAM, "team.c", "end == LAST ? 1 << 16 : 1", "1 << (end == LAST ? 48 : 0)"),
    "a round is given that is not over": (
        "thread",
        AHEAD,
        "ahead.c",
        "    team_join(ahead->teams[TARGET], &ahead->stage, DONE);\n    if (ahead->foreseen",
        "    if (ahead->foreseen",
    ),
}


@cache
def library(name: str) -> str:
    """Where the compiler has a library; "" where it has none."""
    compiler = find_compiler()
    if compiler is None:
        return ""
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    return found if Path(found).is_absolute() else ""


def run_with(sanitizer: str, tmp_path: Path, *tests: str, broken: tuple[str, str, str] | None = None) -> subprocess.CompletedProcess[str]:
    libraries = " ".join(map(library, LIBRARIES[sanitizer]))
    own = {"SANITIZER": sanitizer, "LD_PRELOAD": libraries, "XDG_CACHE_HOME": str(tmp_path), **OPTIONS}
    if broken is not None:
        own["BROKEN"] = json.dumps(broken)
    # -s: or what it says would go with the process
    command = [sys.executable, *"-m pytest -q -x -s -p sanitized -p no:cacheprovider -k".split(), "not broken and not would and not wrong"]
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [*command, *tests], env={**os.environ, **own, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(library, chain(*LIBRARIES.values()))), reason="this compiler has no sanitizers"),
]


@pytest.mark.parametrize("sanitizer", list(LIBRARIES))
def test_a_sanitizer_has_nothing_to_say(sanitizer: str, tmp_path: Path) -> None:
    done = run_with(sanitizer, tmp_path, *KERNELS, *ENGINES)
    assert not done.returncode, done.stdout[-2000:] + done.stderr[-8000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("broken", list(BREAKS))
def test_of_a_broken_copy_it_has(broken: str, tmp_path: Path) -> None:
    sanitizer, tests, file, right, wrong = BREAKS[broken]
    done = run_with(sanitizer, tmp_path, tests, broken=(file, right, wrong))
    assert done.returncode
    assert f"{file}:" in done.stdout + done.stderr
