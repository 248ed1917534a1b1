"""A pytest plugin (`-p sanitized`): thin operations are compiled with a sanitizer of the compiler's, which must have been loaded before
Python was; and perhaps from a copy of their C files in which one thing is wrong.

SANITIZER: address or thread. BROKEN: a json list of file, right, wrong, as in broken_c.py; right stands in the file once.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from outrider_kernels import native_library, thin_team

FLAGS = {"address": ("-fsanitize=address,undefined",), "thread": ("-fsanitize=thread",)}


def _compile_with(sanitizer: str) -> None:
    """With -O1: a compiler takes minutes over what -O3 makes of it."""
    usual = tuple(flag for flag in native_library.FLAGS if flag != "-O3")
    native_library.FLAGS = (*usual, "-O1", *FLAGS[sanitizer], "-g", "-fno-omit-frame-pointer")


def _break(file: str, right: str, wrong: str) -> None:
    folder = Path(shutil.copytree(thin_team.SOURCES, Path(tempfile.mkdtemp(prefix="outrider-broken-")) / "thin"))
    source = (folder / file).read_text("utf-8")
    assert source.count(right) == 1
    (folder / file).write_text(source.replace(right, wrong), "utf-8")
    thin_team.SOURCES = folder


_compile_with(os.environ["SANITIZER"])
if "BROKEN" in os.environ:
    _break(*json.loads(os.environ["BROKEN"]))
