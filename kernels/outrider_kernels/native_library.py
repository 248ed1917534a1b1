"""Compiles C files of this package once for this machine and loads them: for what neither torch nor numpy has a fast operation for.

The library lies in the user's cache folder under a name that says source, compiler and processor, so that a home folder shared by several
kinds of machines holds one for each. It ends with a hash of itself, which loaders pass over: one that a machine which lost its power left
unwritten would end every process that loads it. No compiler, no library: callers have a slower way, and say why they take it. Must not know
what the code does.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from outrider_kernels.cache_folder import cache_folder
from outrider_kernels.cpu_quota import cpu_quota

_LOG = logging.getLogger(__name__)

COMPILERS = ("cc", "gcc", "clang")
FLAGS: tuple[str, ...] = ("-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-pthread")
COMPILE_DEADLINE_S = 120.0  # of each file, and of their library
_CPU_FACTS = Path("/proc/cpuinfo")
_FACTS_OF_A_KIND = ("model name", "flags", "Features", "CPU part")
_HASH_LEN = 32  # bytes


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
    files = [source for source in sources if source.suffix == ".c"]
    try:
        return _loaded(compiler, files, cache_folder() / name)
    except OSError as error:
        _LOG.info("compiled for this process alone, for %s cannot be used: %s", cache_folder(), error)
    try:
        with tempfile.TemporaryDirectory(prefix="outrider-native-") as own:  # what is loaded needs no name any more
            return _loaded(compiler, files, Path(own) / name)
    except OSError as error:
        raise NativeUnavailable(f"neither {cache_folder()} nor {tempfile.gettempdir()} can be used: {error}") from error


def find_compiler() -> str | None:
    """$CC, or the first of COMPILERS that is there."""
    named = os.environ.get("CC", "")
    return next((found for name in ((named,) if named else COMPILERS) if (found := shutil.which(name))), None)


def _loaded(compiler: str, files: Sequence[Path], path: Path) -> ctypes.CDLL:
    """Built unless it is there, whole. Raises NativeUnavailable, and OSError where it cannot be written, or not be run from."""
    if not _is_whole(path):
        _compile(compiler, files, path)
    return ctypes.CDLL(str(path))


def _is_whole(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if content[-_HASH_LEN:] == _hash(content[:-_HASH_LEN]):
        return True
    _LOG.warning("%s is damaged, or of an earlier version, and is made again", path)
    return False


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _kind_of_build(sources: Sequence[Path], compiler: str) -> str:
    version = _output(compiler, "--version").stdout
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
    """Into a library of another name first, so that nobody ever loads half of one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(prefix=path.stem, suffix=".so", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            content = _built(compiler, sources, path.stem)
            stream.write(content + _hash(content))
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _built(compiler: str, sources: Sequence[Path], name: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="outrider-objects-") as folder, ThreadPoolExecutor(_num_at_once()) as pool:
        objects = [str(Path(folder) / f"{source.stem}.o") for source in sources]
        list(pool.map(lambda source, made: _run(compiler, name, "-c", "-o", made, str(source)), sources, objects))
        library = Path(folder) / f"{name}.so"
        _run(compiler, name, "-shared", "-o", str(library), *objects, "-lm")
        return library.read_bytes()


def _num_at_once() -> int:
    """Files: one for each processor that is ours. More, on a large machine in a small container, would have time and memory run out."""
    num_cores, quota = len(os.sched_getaffinity(0)), cpu_quota()
    return num_cores if quota is None else max(1, min(num_cores, int(quota)))


def _run(compiler: str, name: str, *arguments: str) -> None:
    """Raises NativeUnavailable. name: of what is made, for the message."""
    done = _output(compiler, *FLAGS, *arguments)
    if done.returncode:
        raise NativeUnavailable(f"{compiler} could not compile {name}: {done.stderr.strip()[-2000:]}")


def _output(compiler: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Raises NativeUnavailable for a compiler that cannot be run, or does not end."""
    try:
        return subprocess.run(
            [compiler, *arguments], capture_output=True, text=True, errors="replace", check=False, timeout=COMPILE_DEADLINE_S
        )
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailable(f"{compiler} took longer than {COMPILE_DEADLINE_S:.0f} s over {arguments[-1]}") from error
    except OSError as error:
        raise NativeUnavailable(f"{compiler} could not be run: {error}") from error
