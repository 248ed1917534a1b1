"""A pytest plugin (`-p sanitized`): thin operations are compiled with a sanitizer of the compiler's, which must have been loaded before
Python was; and perhaps from a copy of their C files in which one thing is wrong.

SANITIZER: address or thread. BROKEN: a json list of file, right, wrong, as in broken_c.py. XDG_CACHE_HOME: for what is made.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from broken_c import broken_copy
from outrider_kernels import native_library, thin_team

FLAGS = {"address": ("-fsanitize=address,undefined",), "thread": ("-fsanitize=thread",)}


def _compile_with(sanitizer: str) -> None:
    """With -O1: a compiler takes minutes over what -O3 makes of it."""
    usual = tuple(flag for flag in native_library.FLAGS if flag != "-O3")
    native_library.FLAGS = (*usual, "-O1", *FLAGS[sanitizer], "-g", "-fno-omit-frame-pointer")


_compile_with(os.environ["SANITIZER"])
if "BROKEN" in os.environ:
    thin_team.SOURCES = broken_copy(Path(os.environ["XDG_CACHE_HOME"]), *json.loads(os.environ["BROKEN"]))
