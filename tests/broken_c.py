"""Thin operations of a copy of their C files in which one thing is wrong, for tests that must notice it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from outrider_kernels import native_library, thin_team


def break_thin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, right: str, wrong: str) -> None:
    """Teams that are made from now on compute with it. right: stands in the file once. Compiled without -O3: that takes half the time."""
    folder = Path(shutil.copytree(thin_team.SOURCES, tmp_path / "broken"))
    source = (folder / file).read_text("utf-8")
    assert source.count(right) == 1
    (folder / file).write_text(source.replace(right, wrong), "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_library, "FLAGS", tuple(flag for flag in native_library.FLAGS if flag != "-O3"))
    monkeypatch.setattr(thin_team, "SOURCES", folder)
