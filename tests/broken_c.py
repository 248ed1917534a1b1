"""Thin operations of a copy of their C files in which one thing is wrong, for tests that must notice it."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from functools import cache, partial
from pathlib import Path

import pytest

from outrider_kernels import native_library, thin_team


def break_thin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, right: str, wrong: str) -> None:
    """Teams that are made from now on compute with it. right: stands in the file once. Compiled without -O3: that takes half the time; and
    files in which nothing is wrong once in a run of tests."""
    folder = broken_copy(tmp_path, file, right, wrong)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_library, "FLAGS", tuple(flag for flag in native_library.FLAGS if flag != "-O3"))
    monkeypatch.setattr(native_library, "_run", partial(_run_unless_made, Path(_objects().name)))
    monkeypatch.setattr(thin_team, "SOURCES", folder)


def broken_copy(folder: Path, file: str, right: str, wrong: str) -> Path:
    """All the C files, in a folder in this one. right: stands in the file once."""
    broken = Path(shutil.copytree(thin_team.SOURCES, folder / "broken"))
    source = (broken / file).read_text("utf-8")
    assert source.count(right) == 1
    (broken / file).write_text(source.replace(right, wrong), "utf-8")
    return broken


_run = native_library._run


def _run_unless_made(objects: Path, compiler: str, name: str, *arguments: str) -> None:
    if arguments[0] != "-c":
        _run(compiler, name, *arguments)
        return
    _, _, made, source = arguments
    texts = (Path(source).read_bytes(), *(header.read_bytes() for header in sorted(Path(source).parent.glob("*.h"))))
    kept = objects / hashlib.sha256(b"".join(texts)).hexdigest()
    if not kept.exists():
        _run(compiler, name, *arguments)
        shutil.copy(made, kept)
        return
    shutil.copy(kept, made)


@cache
def _objects() -> tempfile.TemporaryDirectory[str]:
    """Goes when the tests do."""
    return tempfile.TemporaryDirectory(prefix="outrider-objects-")
