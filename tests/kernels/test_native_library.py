"""Compiled files: built once, for one machine and one user, and what is said when they cannot be.

Run: pytest tests/kernels/test_native_library.py
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider_kernels import native_library as native
from outrider_kernels.cache_folder import NOBODYS, cache_folder


def test_a_library_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "numbers"
    folder.mkdir()
    (folder / "value.h").write_text("#define VALUE 7\n")
    (folder / "seven.c").write_text('#include "value.h"\nint seven(void) { return VALUE; }\n')
    assert native.native_library.__wrapped__(folder).seven() == 7
    (built,) = (tmp_path / "outrider").iterdir()
    before = built.stat().st_mtime_ns
    assert native.native_library.__wrapped__(folder).seven() == 7
    assert [path.stat().st_mtime_ns for path in (tmp_path / "outrider").iterdir()] == [before]
    (folder / "value.h").write_text("#define VALUE 8\n")
    assert native.native_library.__wrapped__(folder).seven() == 8, "another source is another library"


@pytest.mark.parametrize(
    "damaged",
    [lambda whole: b"", lambda whole: whole[:-1], lambda whole: whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2)],
    ids=["empty", "cut off", "half zeros"],
)
def test_a_library_that_a_lost_machine_left_unwritten_is_made_again(
    damaged: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Loading it would end the process without a word: what lies behind the file's end, or is zero there, is run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "numbers"
    folder.mkdir()
    (folder / "nine.c").write_text("int nine(void) { return 9; }\n")
    native._compile(str(native.find_compiler()), [folder / "nine.c"], built := tmp_path / "outrider" / _name_of(folder))
    whole = built.read_bytes()
    built.write_bytes(damaged(whole))
    assert native.native_library.__wrapped__(folder).nine() == 9
    assert native._is_whole(built)
    assert [record.getMessage() for record in caplog.records] == [f"{built} is damaged, or of an earlier version, and is made again"]


@pytest.mark.parametrize(("quota", "num"), [(None, 3), (64.0, 3), (2.5, 2), (0.5, 1)])
def test_no_more_files_are_compiled_at_once_than_processors_are_ours(
    quota: float | None, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 5})
    monkeypatch.setattr(native, "cpu_quota", lambda: quota)
    assert native._num_at_once() == num


def _name_of(folder: Path) -> str:
    return f"{folder.name}-{native._kind_of_build(sorted(folder.glob('*.[ch]')), str(native.find_compiler()))}.so"


def test_without_a_compiler_or_with_one_that_fails_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "file.c").write_text("this is not C\n")
    with pytest.raises(native.NativeUnavailable, match=r"could not compile broken"):
        native.native_library.__wrapped__(broken)
    assert not list((tmp_path / "outrider").iterdir()), "nothing unfinished stays"
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(native.NativeUnavailable, match="no C compiler"):
        native.native_library.__wrapped__(broken)
    of_another_machine = tmp_path / "cc"
    of_another_machine.write_bytes(b"\x7fELF and no more")
    of_another_machine.chmod(0o700)
    monkeypatch.setenv("CC", str(of_another_machine))
    with pytest.raises(native.NativeUnavailable, match=f"{of_another_machine} could not be run"):
        native.native_library.__wrapped__(broken)


def test_a_cache_folder_that_cannot_be_written_to_costs_a_build_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    folder = tmp_path / "numbers"
    folder.mkdir()
    (folder / "six.c").write_text("int six(void) { return 6; }\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert native.native_library.__wrapped__(folder).six() == 6
    assert not list((tmp_path / "temporary").iterdir()), "a service ends without tidying up: nothing may be left to it"


def test_a_cache_folder_that_cannot_be_run_from_costs_a_build_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that is mounted with noexec: here, what has the library's name cannot be loaded either."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "numbers"
    folder.mkdir()
    (folder / "ten.c").write_text("int ten(void) { return 10; }\n")
    (tmp_path / "outrider" / _name_of(folder)).mkdir(parents=True)
    assert native.native_library.__wrapped__(folder).ten() == 10


def test_a_user_without_a_home_is_served_by_libraries_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers whose user no list of users has."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    folder = tmp_path / "numbers"
    folder.mkdir()
    (folder / "four.c").write_text("int four(void) { return 4; }\n")
    assert native.native_library.__wrapped__(folder).four() == 4
    assert cache_folder().parent == NOBODYS


def test_a_built_library_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user who could write there could run code in ours."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "numbers"
    folder.mkdir()
    (folder / "five.c").write_text("int five(void) { return 5; }\n")
    assert native.native_library.__wrapped__(folder).five() == 5
    (built,) = (tmp_path / "cache" / "outrider").iterdir()
    assert stat.S_IMODE(built.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(built.stat().st_mode) & 0o022 == 0
