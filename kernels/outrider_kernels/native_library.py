"""Compiles C files of this package once for this machine and loads them: for what neither torch nor numpy has a fast operation for.

The library lies in the user's cache folder under a name that says source, compiler and processor, so that a home folder shared by several
kinds of machines holds one for each. No compiler, no library: callers have a slower way, and say why they take it. Must not know what the
code does.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from outrider_kernels.cache_folder import cache_folder

COMPILERS = ("cc", "gcc", "clang")
FLAGS: tuple[str, ...] = ("-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-pthread")
COMPILE_DEADLINE_S = 120.0  # of each file, and of their library
_CPU_FACTS = Path("/proc/cpuinfo")
_FACTS_OF_A_KIND = ("model name", "flags", "Features", "CPU part")


class NativeUnavailable(RuntimeError):
    """There is no compiler, or it failed; the message says which and how."""


@cache
def native_library(folder: Path) -> ctypes.CDLL:
    """All C files of a folder as one library, built when no process of this user built it before. Raises NativeUnavailable."""
    compiler = find_compiler()
    if compiler is None:
        raise NativeUnavailable(f"no C compiler ({', '.join(COMPILERS)}, or $CC) was found")
    sources = sorted(folder.glob("*.[ch]"))
    name = f"{folder.name}-{_kind_of_build(sources, compiler)}.so"
    for place in _places():
        path = place / name
        if not path.is_file():
            try:
                _compile(compiler, [source for source in sources if source.suffix == ".c"], path)
            except OSError:
                continue  # a home folder that cannot be written to: the next folder is this process's own
        return ctypes.CDLL(str(path))
    raise NativeUnavailable(f"neither the cache folder nor {tempfile.gettempdir()} can be written to")


def find_compiler() -> str | None:
    """$CC, or the first of COMPILERS that is there."""
    named = os.environ.get("CC", "")
    return next((found for name in ((named,) if named else COMPILERS) if (found := shutil.which(name))), None)


def _places() -> Iterator[Path]:
    yield cache_folder()
    yield Path(_own_folder().name)


@cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    """Goes when the process does."""
    return tempfile.TemporaryDirectory(prefix="outrider-native-")


def _kind_of_build(sources: Sequence[Path], compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=COMPILE_DEADLINE_S).stdout
    parts = (
        *(f"{source.name} {source.read_text('utf-8')}" for source in sources),
        version,
        " ".join(FLAGS),
        platform.machine(),
        _processor(),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """What -march=native looks at: the first processor's own lines."""
    if not _CPU_FACTS.is_file():
        return platform.processor()
    lines = _CPU_FACTS.read_text("utf-8", errors="replace").split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(_FACTS_OF_A_KIND))


def _compile(compiler: str, sources: Sequence[Path], path: Path) -> None:
    """As many files at a time as there are processors. Into a library of another name first, so that nobody ever loads half of one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(prefix=path.stem, suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        with tempfile.TemporaryDirectory(prefix="outrider-objects-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [str(Path(folder) / f"{source.stem}.o") for source in sources]
            list(pool.map(lambda source, made: _run(compiler, path.stem, "-c", "-o", made, str(source)), sources, objects))
            _run(compiler, path.stem, "-shared", "-o", unfinished, *objects, "-lm")
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _run(compiler: str, name: str, *arguments: str) -> None:
    """Raises NativeUnavailable. name: of what is made, for the message."""
    try:
        done = subprocess.run([compiler, *FLAGS, *arguments], capture_output=True, text=True, check=False, timeout=COMPILE_DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailable(f"{compiler} took longer than {COMPILE_DEADLINE_S:.0f} s over {name}") from error
    if done.returncode:
        raise NativeUnavailable(f"{compiler} could not compile {name}: {done.stderr.strip()[-2000:]}")
