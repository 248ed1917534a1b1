"""The Makefile: short recipes, help by default, every command that the pages name, and words that reach the program unharmed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from house.repository import ROOT

MAX_RECIPE_LINES = 3
REQUIRED = {"help", "run", "test", "test-all", "check", "bench", "proto", "models", "clean", "setup", "doctor"}
RECORDER = """#!/usr/bin/env python3
import json, sys
print(json.dumps(sys.argv[1:]))
"""


def recipes(text: str) -> dict[str, list[str]]:
    """Target -> lines of its recipe."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("\t"):
            current.append(line)
        elif rule := re.match(r"([\w$().-]+):(?!=)", line):
            current = found.setdefault(rule.group(1), [])
    return found


def make(folder: Path, *arguments: str, **environment: str) -> str:
    """What make prints in this folder; PROMPT, TARGET and DRAFT of the caller's environment do not leak in."""
    names = {"PROMPT", "TARGET", "DRAFT", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    clean = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(["make", *arguments], cwd=folder, env=clean | environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the Makefile beside an installed .venv whose `outrider` prints its arguments."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    recorder = tmp_path / ".venv/bin/outrider"
    recorder.parent.mkdir(parents=True)
    recorder.write_text(RECORDER, encoding="utf-8")
    recorder.chmod(0o755)
    (tmp_path / ".venv/.installed").touch()
    return tmp_path


def test_every_recipe_is_short() -> None:
    found = recipes((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert found.keys() >= REQUIRED
    assert {target: len(lines) for target, lines in found.items() if len(lines) > MAX_RECIPE_LINES} == {}


def test_bare_make_lists_every_target(copy: Path) -> None:
    listed = set(re.findall(r"^  ([a-z-]+) ", make(copy), re.MULTILINE))
    assert listed == set(recipes((ROOT / "Makefile").read_text(encoding="utf-8"))) - {".PHONY", ".NOTPARALLEL", "$(STAMP)"}


def test_every_make_command_of_the_pages_is_a_target() -> None:
    targets = recipes((ROOT / "Makefile").read_text(encoding="utf-8")).keys()
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    named = {target for page in pages for target in re.findall(r"`(?:[A-Z]+=\S+ )*make ([a-z-]+)", page.read_text(encoding="utf-8"))}
    named |= {target for page in pages for target in re.findall(r"^make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)}
    assert {"run", "test"} <= named
    assert named <= targets


@pytest.mark.parametrize(
    "prompt", ["plain", 'it\'s $5 or ${6} "quoted" `id` $(id) \\n %d # not a comment', "--starts-like-an-option", "two\nlines"]
)
def test_a_prompt_reaches_the_program_unharmed(copy: Path, prompt: str) -> None:
    assert json.loads(make(copy, "run", PROMPT=prompt)) == ["run", f"--prompt={prompt}"]
    assert json.loads(make(copy, "run", f"PROMPT={prompt}")) == ["run", f"--prompt={prompt}"]


def test_models_are_passed_on_only_when_named(copy: Path) -> None:
    assert json.loads(make(copy, "run")) == ["run"]
    assert json.loads(make(copy, "run", "TARGET=a b", DRAFT="c")) == ["run", "--target=a b", "--draft=c"]
    assert json.loads(make(copy, "bench", TARGET="big")) == ["bench", "--target=big"]
